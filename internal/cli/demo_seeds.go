package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gdamore/tcell/v3"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/sleeps"
)

// seeds is the program of "demo --tui": it has random bytes in memory and in files,
// and hands them out, and its pid and a count.
const seeds = `
import http.server, os, secrets, threading, time

memory, count = secrets.token_bytes(8 << 20), 0
directory = os.path.expanduser("~/drowse-demo")
os.makedirs(directory, exist_ok=True)
for n in range(16):
    with open("%s/%02d" % (directory, n), "wb") as f:
        f.write(secrets.token_bytes(64 << 10))

def tick():
    global count
    while True:
        count += 1
        time.sleep(0.1)

def files():
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), "rb") as f:
            yield f.read()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {"/memory": lambda: memory, "/files": lambda: b"".join(files())}.get(
            self.path, lambda: b"%d - %d\n" % (os.getpid(), count))()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

threading.Thread(target=tick, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()
`

// How long a sandbox of "demo --tui" is awake and asleep.
const (
	seedsAwake  = 4 * time.Second
	seedsAsleep = 3 * time.Second
)

// watch runs the demo on a terminal's screen until the user ends it.
func (d *demo) watch(ctx context.Context) error {
	if d.app.output == "json" {
		return usagef("demo: there is no -o json with --tui")
	}
	if !isTerminal(d.app.Stdin) || !isTerminal(d.app.Stdout) {
		return hint(usagef("demo: stdin and stdout must be a terminal"), "without a terminal, use: drowse demo")
	}
	if err := d.do(ctx, []namedStep{{"server ready", d.findServer}}); err != nil {
		return err
	}
	d.second = &demo{app: d.app, client: d.client, own: d.own}
	for _, each := range []*demo{d, d.second} {
		if err := d.do(ctx, []namedStep{
			{"sandbox created", each.create},
			{"bytes made", each.plant},
			{"seen on the host", each.lookAwake},
		}); err != nil {
			return err
		}
	}
	tty, err := tcell.NewScreen()
	if err != nil {
		return usagef("cannot use this terminal: %w", err)
	}
	slept, err := sleeps.Run(ctx, tty, sleeps.Options{
		Sandboxes: []sleeps.Sandbox{watched{d}, watched{d.second}}, URL: d.client.URL(), Awake: seedsAwake, Asleep: seedsAsleep,
	})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	text := fmt.Sprintf("they slept %d times: memory and files are the same, byte for byte", len(slept))
	if len(slept) == 0 {
		text = "they have not slept"
	}
	if _, err := fmt.Fprintf(d.app.Stdout, "  %s\n", text); err != nil {
		return err
	}
	return d.do(ctx, []namedStep{{"sandbox killed", d.kill}, {"sandbox killed", d.second.kill}})
}

// plant starts the program that has the bytes.
func (d *demo) plant(ctx context.Context) (string, error) {
	d.counter = counterProgram{port: counterPort, target: "/"}
	exit, err := d.sandbox.Run(ctx, client.Command{Args: []string{"python3", "-c", "import http.server, secrets"}})
	if errors.Is(err, client.ErrInvalid) || err == nil && exit.Code != 0 {
		return "", hint(errors.New("the sandbox has no Python"), "install python3 on the server's machine, or leave --tui out")
	}
	if err != nil {
		return "", err
	}
	program := strings.Replace(seeds, "PORT", fmt.Sprint(counterPort), 1)
	return "8 MiB in memory, 16 files of 64 KiB", d.start(ctx, client.Command{Args: []string{"python3", "-c", program}})
}

// watched is a sandbox of the demo, for the screen.
type watched struct{ d *demo }

// ID implements sleeps.Sandbox.
func (w watched) ID() string { return w.d.sandbox.ID }

// Read implements sleeps.Sandbox.
func (w watched) Read(ctx context.Context) (sleeps.Reading, error) {
	r, firstByte, err := w.d.timedRead(ctx)
	if err != nil {
		return sleeps.Reading{}, err
	}
	memory, err := w.bytes(ctx, "/memory")
	if err != nil {
		return sleeps.Reading{}, err
	}
	files, err := w.bytes(ctx, "/files")
	return sleeps.Reading{PID: r.pid, Count: r.count, Memory: memory, Files: files, FirstByte: firstByte}, err
}

// bytes returns what the program in the sandbox has at a path.
func (w watched) bytes(ctx context.Context, path string) ([]byte, error) {
	req, err := w.d.sandbox.Request(ctx, http.MethodGet, counterPort, path, nil)
	if err != nil {
		return nil, err
	}
	return answerTo(req)
}

// Nap implements sleeps.Sandbox.
func (w watched) Nap(ctx context.Context, after time.Duration) error {
	return w.d.client.SetTimeout(ctx, w.d.sandbox.ID, after)
}

// Pause implements sleeps.Sandbox. The sandbox may have fallen asleep by itself just now.
func (w watched) Pause(ctx context.Context) error {
	err := w.d.client.Pause(ctx, w.d.sandbox.ID)
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "already_paused" {
		return nil
	}
	return err
}

// Info implements sleeps.Sandbox.
func (w watched) Info(ctx context.Context) (client.Info, error) {
	return w.d.client.Get(ctx, w.d.sandbox.ID)
}

// Host implements sleeps.Sandbox.
func (w watched) Host() (string, int, error) {
	if !w.d.processes {
		return "not seen from here", -1, nil
	}
	found, err := hostProcesses(w.d.sandbox.ID)
	return found.String(), found.count, err
}
