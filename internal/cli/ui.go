package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cli/browser"
	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

func uiCommand(a *app) *cobra.Command {
	var noOpen bool
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "open the dashboard, signed in, and print the link that does it",
		Long: `Print a link to the server's dashboard, and open it in a browser. The link signs one
browser in, with the rights of your API key, works once and expires after one
minute. Whoever has the link can use it.

The browser is opened only if the output is a terminal on a desktop. Otherwise, as
over SSH, the link is printed and nothing else happens.

Browsers keep the dashboard safe on HTTPS and on localhost only. For a server on
another machine that has no TLS, forward its port first, and use that:

  ssh -L 3000:127.0.0.1:3000 HOST`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				link, err := client.NewDashboard(c).SignInLink(ctx)
				if err != nil {
					return err
				}
				if err := a.print(link, func(w io.Writer) { _, _ = fmt.Fprintln(w, link.URL) }); err != nil {
					return err
				}
				if noOpen || a.output == "json" || !isTerminal(a.Stdout) || !onDesktop() {
					return nil
				}
				if err := openBrowser(ctx, link.URL); err != nil {
					_, _ = fmt.Fprintf(a.Stderr, "no browser was opened: %v; open the link yourself\n", err)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "print the link and open no browser")
	return cmd
}

// onDesktop reports whether a browser that is started here has a screen to show on.
func onDesktop() bool {
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		return os.Getenv("SSH_CONNECTION") == ""
	}
	return os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != ""
}

// browserTime bounds how long a browser may take to ask for the page.
const browserTime = 15 * time.Second

// openBrowser opens a link in the browser of this desktop. All users of a machine see
// the arguments of its programs, so the browser is not given the link: it is given an
// address of this process, good for one request, that leads to the link.
func openBrowser(ctx context.Context, link string) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	path := "/" + rand.Text()
	var used atomic.Bool
	came := make(chan struct{})
	srv := &http.Server{ReadHeaderTimeout: browserTime, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		if used.Swap(true) {
			http.Error(w, "this address was used already: run drowse ui again", http.StatusGone)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		http.Redirect(w, r, link, http.StatusSeeOther)
		close(came)
	})}
	go func() { _ = srv.Serve(ln) }()
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = srv.Shutdown(ending) // what has been answered still arrives
	}()
	// Some programs that open browsers end with these only.
	failed := make(chan error, 1)
	browser.Stdout, browser.Stderr = io.Discard, io.Discard
	go func() {
		if err := browser.OpenURL("http://" + ln.Addr().String() + path); err != nil {
			failed <- err
		}
	}()
	select {
	case <-came:
		return nil
	case err := <-failed:
		return err
	case <-time.After(browserTime):
		return errors.New("none asked for the page within " + browserTime.String())
	case <-ctx.Done():
		return ctx.Err()
	}
}
