package cli

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
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
over SSH, the link is printed and nothing else happens. The browser gets the link by
a file in your home that you alone can read, and that is removed after 15 seconds.

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
				_, _ = fmt.Fprintf(a.Stderr, "opening it in a browser, which has %s; ^C ends the wait\n", browserTime)
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

// browserTime is how long a browser has to read the page that leads to the link.
const browserTime = 15 * time.Second

// openBrowser opens a link in the browser of this desktop. All users of a machine see
// the arguments of its programs, so the browser is not given the link: it is given a
// page that leads to it, in a file that this user alone can read. The file is gone
// when openBrowser returns.
func openBrowser(ctx context.Context, link string) error {
	dir, err := dirForBrowser()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "dashboard.html")
	if err := os.WriteFile(file, []byte(leadingTo(link)), 0o600); err != nil {
		return err
	}
	// Some programs that open browsers end with these only.
	failed := make(chan error, 1)
	quietBrowsers()
	go func() {
		if err := browser.OpenURL(fileURL(file)); err != nil {
			failed <- err
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-time.After(browserTime): // nothing tells when a browser has read a file
	case <-ctx.Done():
	}
	return nil
}

// quietBrowsers keeps what browsers print off the terminal.
var quietBrowsers = sync.OnceFunc(func() { browser.Stdout, browser.Stderr = io.Discard, io.Discard })

// dirForBrowser makes a directory that this user alone can read. It is in the home, and
// not hidden: browsers from snaps see neither hidden files there nor those in /tmp.
func dirForBrowser() (string, error) {
	const name = "drowse-ui-*"
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		if dir, err := os.MkdirTemp(home, name); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("", name)
}

// leadingTo is a page that leads to a link by itself, without scripts.
func leadingTo(link string) string {
	to := html.EscapeString(link)
	return `<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url=` + to + `">
<title>drowse</title>
<p><a href="` + to + `">Open the dashboard</a></p>
`
}

// fileURL is the address of a file, which has an absolute path.
func fileURL(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") { // C:/
		path = "/" + path
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}
