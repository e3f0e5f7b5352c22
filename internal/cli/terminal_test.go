package cli_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/drowse-dev/drowse/internal/cli"
	"github.com/drowse-dev/drowse/internal/cli/fakeserver"
)

// desk is somebody at a terminal, with a server.
type desk struct {
	t   *testing.T
	url string
}

func sitDown(t *testing.T) desk {
	fake := fakeserver.New(key, t.TempDir())
	srv := httptest.NewServer(fake)
	t.Cleanup(func() {
		fake.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return desk{t, srv.URL}
}

// run runs a command in a pipe, and returns its code and what it printed.
func (d desk) run(args ...string) (int, string) {
	var out strings.Builder
	code := cli.Main(context.Background(), args, d.options(cli.Options{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out}))
	return code, strings.TrimSpace(out.String())
}

// typed runs a command on a terminal on which something is typed.
func (d desk) typed(keys string, args ...string) (int, string) {
	d.t.Helper()
	ours, theirs, err := pty.Open()
	if err != nil {
		d.t.Fatal(err)
	}
	defer ours.Close()
	shown := make(chan string)
	go func() {
		var out strings.Builder
		b := make([]byte, 4096)
		for {
			n, err := ours.Read(b)
			out.Write(b[:n])
			if err != nil { // the other end is closed
				shown <- out.String()
				return
			}
		}
	}()
	if _, err := ours.WriteString(keys); err != nil {
		d.t.Fatal(err)
	}
	code := cli.Main(context.Background(), args, d.options(cli.Options{Stdin: theirs, Stdout: theirs, Stderr: theirs}))
	theirs.Close()
	return code, <-shown
}

func (d desk) options(o cli.Options) cli.Options {
	o.Getenv = func(name string) string {
		return map[string]string{"DROWSE_URL": d.url, "DROWSE_API_KEY": key}[name]
	}
	return o
}

// TestAsksBeforeTimeoutKills: "timeout ID now" asks on a terminal where it kills, and
// nowhere else.
func TestAsksBeforeTimeoutKills(t *testing.T) {
	d := sitDown(t)
	_, id := d.run("create", "--timeout", "none", "--idle-timeout", "10m", "--on-idle", "pause")
	if code, out := d.typed("n\n", "timeout", id, "now"); code != 1 || !strings.Contains(out, "kills it") || !strings.Contains(out, "drowse pause "+id) {
		t.Errorf("refused: code %d, %s", code, out)
	}
	if code, out := d.run("get", id); code != 0 || !strings.Contains(out, "running") {
		t.Errorf("it was killed in spite of the answer: %s", out)
	}
	if code, out := d.typed("y\n", "timeout", id, "now"); code != 0 || !strings.Contains(out, "[y/N]") || !strings.Contains(out, "is killed now") {
		t.Errorf("confirmed: code %d, %s", code, out)
	}
	_, id = d.run("create", "--on-timeout", "pause")
	if code, out := d.typed("", "timeout", id, "now"); code != 0 || strings.Contains(out, "[y/N]") || !strings.Contains(out, "is asleep now") {
		t.Errorf("one that is paused: code %d, %s", code, out)
	}
	_, id = d.run("create")
	if code, out := d.run("timeout", id, "now"); code != 0 || strings.Contains(out, "[y/N]") {
		t.Errorf("in a pipe: code %d, %s", code, out)
	}
	_, id = d.run("create")
	if code, out := d.typed("", "timeout", id, "now", "--yes"); code != 0 || strings.Contains(out, "[y/N]") {
		t.Errorf("with --yes: code %d, %s", code, out)
	}
}
