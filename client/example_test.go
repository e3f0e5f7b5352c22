package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// A sandbox that falls asleep after a minute, and wakes for a command.
func Example() {
	ctx := context.Background()

	c, err := client.New(client.Options{URL: "http://127.0.0.1:3000", APIKey: os.Getenv("DROWSE_API_KEY")})
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
}
