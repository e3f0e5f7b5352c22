package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/drowse-dev/drowse/internal/cli"
	"github.com/drowse-dev/drowse/internal/cli/fakeserver"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/serve/settings"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const key = "e2b_0123456789abcdef0123456789abcdef01234567"

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"drowse": func() { os.Exit(drowse()) }})
}

// drowse is what cmd/drowse does, with a fake server behind serve and doctor.
func drowse() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	path, err := exec.LookPath("drowse")
	if err != nil {
		panic(err)
	}
	return cli.Main(ctx, os.Args[1:], cli.Options{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
		Executable: path, Serve: serve, Doctor: doctor, Fsck: upkeep, GC: upkeep,
		Backup: func(ctx context.Context, w io.Writer, o cli.UpkeepOptions) error {
			_, err := upkeep(ctx, w, o)
			return err
		},
	})
}

// serve runs a fake server. FAKE_SERVE makes it print its options or fail.
func serve(ctx context.Context, o settings.Server) error {
	switch os.Getenv("FAKE_SERVE") {
	case "print":
		return json.NewEncoder(os.Stdout).Encode(o)
	case "fail":
		return errdef.New(errdef.Conflict, "port_in_use", "another program listens on %s", "ADDR").WithRemedy("choose another")
	}
	ln, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return err
	}
	fake := fakeserver.New(o.APIKey, filepath.Join(o.StateDir, "boxes"))
	defer fake.Close()
	srv := &http.Server{Handler: fake}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func doctor(_ context.Context, w io.Writer, asJSON bool, stateDir string) (bool, error) {
	switch filepath.Base(stateDir) {
	case "broken":
		return false, errors.New("cannot look")
	case "bad":
		_, err := fmt.Fprintln(w, "gvisor: not usable")
		return false, err
	}
	if asJSON {
		return true, json.NewEncoder(w).Encode(map[string]any{"ok": true, "stateDir": stateDir})
	}
	_, err := fmt.Fprintln(w, "gvisor: usable")
	return true, err
}

// upkeep is what fsck and gc do: it prints what it was told.
func upkeep(_ context.Context, w io.Writer, o cli.UpkeepOptions) (bool, error) {
	switch filepath.Base(o.StateDir) {
	case "used":
		return false, errdef.New(errdef.Conflict, "state_dir_in_use", "another drowse server (pid %d) uses %s", 7, o.StateDir).WithRemedy("stop it first")
	case "broken":
		return false, errors.New("cannot look")
	}
	return filepath.Base(o.StateDir) != "bad", json.NewEncoder(w).Encode(o)
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":    codeCmd,
			"capture": captureCmd,
			"retry":   retryCmd,
		},
	})
}

// setup gives each script a server.
func setup(env *testscript.Env) error {
	dir := filepath.Join(env.WorkDir, ".boxes")
	fake := fakeserver.New(key, dir)
	fake.PageSize = 2
	srv := httptest.NewServer(fake)
	env.Defer(func() {
		fake.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	closed := "http://" + ln.Addr().String()
	env.Setenv("DROWSE_URL", srv.URL)
	env.Setenv("DROWSE_API_KEY", key)
	env.Setenv("DROWSE_STATE_DIR", filepath.Join(env.WorkDir, "state"))
	env.Setenv("KEY", key)
	env.Setenv("GORACE", "atexit_sleep_ms=0") // else every command takes a second more
	env.Setenv("URL", srv.URL)
	env.Setenv("NOWHERE", closed)
	return ln.Close()
}

// codeCmd runs a program that must end with a code: code N program args...
func codeCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// captureCmd puts the last stdout into a variable: capture NAME
func captureCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: capture NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// retryCmd runs a program until its stdout matches: retry REGEXP program args...
func retryCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: retry REGEXP program [args...]")
	}
	pattern := regexp.MustCompile(args[0])
	deadline := time.After(testmode.Patience())
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := ts.Exec(args[1], args[2:]...); err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("never matched %s", pattern)
		}
	}
}

// TestInterrupt ends commands as Ctrl-C does, in process.
func TestInterrupt(t *testing.T) {
	fake := fakeserver.New(key, t.TempDir())
	srv := httptest.NewServer(fake)
	t.Cleanup(func() {
		fake.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	env := map[string]string{"DROWSE_URL": srv.URL, "DROWSE_API_KEY": key}
	getenv := func(name string) string { return env[name] }
	for _, tt := range []struct {
		args []string
		says string // what is to be watched until it is ended ends quietly
	}{
		{[]string{"run", "--", "sh", "-c", "echo started; exec sleep 60"}, "drowse: interrupted\n"},
		{[]string{"demo"}, "drowse: interrupted\n"},
		{[]string{"events", "-f"}, ""},
		{[]string{"ls", "--watch"}, ""},
	} {
		args := tt.args
		t.Run(args[0], func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var stderr strings.Builder
			if args[0] == "events" { // there must be one to see
				cli.Main(t.Context(), []string{"run", "true"}, cli.Options{
					Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: getenv,
				})
			}
			// The first output is the sign that there is something to end.
			stdout := writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })
			code := cli.Main(ctx, args, cli.Options{
				Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &stderr, Getenv: getenv,
			})
			if code != 130 || stderr.String() != tt.says {
				t.Errorf("got code %d, stderr %q", code, &stderr)
			}
			var list strings.Builder
			cli.Main(t.Context(), []string{"ls", "-o", "json"}, cli.Options{Stdout: &list, Stderr: &stderr, Getenv: getenv})
			if list.String() != "[]\n" {
				t.Errorf("left behind: %s", &list)
			}
		})
	}
}

// TestInterruptedHold ends the command that a sandbox is held for, and the hold.
func TestInterruptedHold(t *testing.T) {
	fake := fakeserver.New(key, t.TempDir())
	srv := httptest.NewServer(fake)
	t.Cleanup(func() {
		fake.Close()
		srv.Close()
	})
	env := map[string]string{"DROWSE_URL": srv.URL, "DROWSE_API_KEY": key}
	var stderr strings.Builder
	do := func(ctx context.Context, stdout io.Writer, args ...string) int {
		return cli.Main(ctx, args, cli.Options{
			Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &stderr, Getenv: func(name string) string { return env[name] },
		})
	}
	var id, list strings.Builder
	do(t.Context(), &id, "create")
	ctx, cancel := context.WithCancel(t.Context())
	stdout := writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })
	code := do(ctx, stdout, "hold", strings.TrimSpace(id.String()), "--", "sh", "-c", "echo started; exec sleep 60")
	if code != 130 || stderr.String() != "drowse: interrupted\n" {
		t.Errorf("got code %d, stderr %q", code, &stderr)
	}
	do(t.Context(), &list, "hold", strings.TrimSpace(id.String()), "--list", "-o", "json")
	if list.String() != "[]\n" {
		t.Errorf("left behind: %s", &list)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestInterruptWhileCreating: the sandbox that is being made is killed too.
func TestInterruptWhileCreating(t *testing.T) {
	fake := fakeserver.New(key, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			cancel()
		}
		fake.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		fake.Close()
		srv.Close()
	})
	env := map[string]string{"DROWSE_URL": srv.URL, "DROWSE_API_KEY": key}
	getenv := func(name string) string { return env[name] }
	var out, stderr strings.Builder
	code := cli.Main(ctx, []string{"run", "true"}, cli.Options{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr, Getenv: getenv,
	})
	if code != 130 {
		t.Errorf("got code %d, stderr %q", code, &stderr)
	}
	cli.Main(t.Context(), []string{"ls", "-o", "json"}, cli.Options{Stdout: &out, Stderr: &stderr, Getenv: getenv})
	if out.String() != "[]\n" {
		t.Errorf("left behind: %s", &out)
	}
}

// TestWatch has ls show a sandbox that was made after it began, and end by Ctrl-C.
func TestWatch(t *testing.T) {
	t.Parallel()
	fake := fakeserver.New(key, t.TempDir())
	srv := httptest.NewServer(fake)
	t.Cleanup(func() {
		fake.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	getenv := func(name string) string {
		return map[string]string{"DROWSE_URL": srv.URL, "DROWSE_API_KEY": key}[name]
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var id, seen string
	stdout := writerFunc(func(b []byte) (int, error) {
		switch seen += string(b); {
		case id == "":
			var made, stderr strings.Builder
			if code := cli.Main(t.Context(), []string{"create"}, cli.Options{Stdin: strings.NewReader(""), Stdout: &made, Stderr: &stderr, Getenv: getenv}); code != 0 {
				t.Errorf("create: %d %s", code, &stderr)
				cancel()
			}
			id = strings.TrimSpace(made.String())
		case strings.Contains(seen, id):
			cancel()
		}
		return len(b), nil
	})
	var stderr strings.Builder
	code := cli.Main(ctx, []string{"ls", "--watch"}, cli.Options{Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &stderr, Getenv: getenv})
	if code != 130 || !strings.Contains(seen, id) || strings.Contains(seen, "\x1b") {
		t.Errorf("code %d, stdout %q, stderr %q", code, seen, &stderr)
	}
}
