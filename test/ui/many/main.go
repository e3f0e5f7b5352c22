// Program many serves the dashboard of ten thousand sandboxes, which are none, or of a
// few with a past, at an address, and prints its URL and an API key.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/ui/uitest"
)

func main() {
	count := flag.Int("count", 10_000, "how many sandboxes; 0 for a few with a past")
	flag.Parse()
	if err := run(context.Background(), flag.Arg(0), *count); err != nil {
		fmt.Fprintln(os.Stderr, "many:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address string, count int) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s, err := uitest.New(ctx, ln)
	if err != nil {
		return err
	}
	if count == 0 {
		err = s.Tell(ctx)
	} else {
		err = s.Fill(ctx, count)
	}
	if err != nil {
		return err
	}
	_, key, err := s.Key(ctx, store.RoleAdmin)
	if err != nil {
		return err
	}
	fmt.Println(s.URL, key)
	server := &http.Server{Handler: s.HTTP, ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(ln)
}
