package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
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

// A sandbox that falls asleep after a minute, and wakes for a command.
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
