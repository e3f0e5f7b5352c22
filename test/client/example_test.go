package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/fakeserver"
)

// exampleServer stands for a server, so that the example runs.
func exampleServer() (url string, stop func()) {
	dir, err := os.MkdirTemp("", "drowse-example-")
	if err != nil {
		panic(err)
	}
	fake := fakeserver.New(key, dir)
	srv := httptest.NewServer(fake)
	return srv.URL, func() {
		fake.Close()
		srv.Close()
		_ = os.RemoveAll(dir)
	}
}

// Example runs the example of the package's documentation against a server.
func Example() {
	url, stop := exampleServer()
	defer stop()
	ctx := context.Background()

	c, err := client.New(client.Options{URL: url, APIKey: key})
	if err != nil {
		fmt.Println(err)
		return
	}
	sb, err := c.Create(ctx, client.CreateOptions{
		Timeout:    time.Minute,
		OnTimeout:  client.Pause,
		AutoResume: new(true),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Kill(ctx, sb.ID) }()

	if err := sb.WriteFile(ctx, "notes.txt", strings.NewReader("still here\n")); err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Pause(ctx, sb.ID); err != nil { // as the timeout would
		fmt.Println(err)
		return
	}

	exit, err := sb.Run(ctx, client.Command{Args: []string{"cat", "notes.txt"}, Stdout: os.Stdout})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(exit.Status)

	err = c.Pause(ctx, "nosuchsandbox")
	fmt.Println(errors.Is(err, client.ErrNotFound))
	// Output:
	// still here
	// exit status 0
	// true
}

// TestExampleIsShown holds that the documentation shows the example that is run here.
func TestExampleIsShown(t *testing.T) {
	body := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(text), "\nfunc Example() {")
		_, body, _ = strings.Cut(body, "client.New(")
		_, body, found := strings.Cut(body, "\n")
		if !found {
			t.Fatalf("%s has no example with a client", path)
		}
		body, _, _ = strings.Cut(body, "\n}\n")
		body, _, _ = strings.Cut(body, "\n\t// Output:")
		return body
	}
	run, shown := body("example_test.go"), body(filepath.Join(source(t), "example_test.go"))
	if run != shown {
		t.Errorf("client/example_test.go shows:\n%s\nrun is:\n%s", shown, run)
	}
}
