package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// terminal is a terminal of tmux.
type terminal struct {
	t      testing.TB
	socket string
}

// startTerminal runs a shell script in a terminal of 110 columns and 20 lines.
func startTerminal(ctx context.Context, t testing.TB, script string) *terminal {
	t.Helper()
	term := &terminal{t, filepath.Join(t.TempDir(), "tmux")}
	t.Cleanup(func() { term.tmux(context.WithoutCancel(ctx), "kill-server") })
	term.tmux(ctx, "-f", os.DevNull, "new-session", "-d", "-x", "110", "-y", "20", script)
	return term
}

func (term *terminal) tmux(ctx context.Context, args ...string) string {
	term.t.Helper()
	out, err := exec.CommandContext(ctx, "tmux", append([]string{"-S", term.socket}, args...)...).CombinedOutput()
	if err != nil {
		term.t.Errorf("tmux %s: %v: %s", args, err, out)
	}
	return string(out)
}

func (term *terminal) keys(ctx context.Context, keys ...string) {
	term.t.Helper()
	term.tmux(ctx, append([]string{"send-keys"}, keys...)...)
}

// sees waits until the terminal shows a text.
func (term *terminal) sees(ctx context.Context, text string) {
	term.t.Helper()
	eventually(term.t, time.Minute, "the terminal shows "+text, func() error {
		if screen := term.tmux(ctx, "capture-pane", "-p"); !strings.Contains(screen, text) {
			return fmt.Errorf("it shows:\n%s", screen)
		}
		return nil
	})
}

// TestTop pauses, wakes, enters, explains and ends a sandbox by the keys of drowse
// top, on a real terminal, which is as before when it is left.
func TestTop(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)
	term := startTerminal(ctx, t, fmt.Sprintf("echo before; TERM=xterm-256color DROWSE_URL=http://%s DROWSE_API_KEY=%s %s top; echo ended with $?; sleep 1000", s.addr, apiKey, drowseBinary))
	term.sees(ctx, sb.ID+"  running")
	get := func() client.Info {
		t.Helper()
		info, err := s.client.Get(ctx, sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	generation := get().Generation
	time.Sleep(5 * time.Second) // in which it looks again and again
	if now := get(); now.AwakeBecause != "" || now.OpenStreams > 0 {
		t.Errorf("looking keeps it awake: %+v", now)
	}
	term.keys(ctx, "p")
	term.sees(ctx, sb.ID+" is asleep")
	term.sees(ctx, "0 running · 1 paused")
	if err := s.is(ctx, sb.ID, client.Paused); err != nil {
		t.Error(err)
	}
	term.keys(ctx, "Enter")
	term.sees(ctx, "why "+sb.ID)
	term.sees(ctx, "asleep for")
	term.keys(ctx, "q", "w")
	term.sees(ctx, sb.ID+" is awake")
	term.sees(ctx, "wakes 1/min")
	term.keys(ctx, "s")
	term.sees(ctx, "user@")
	term.keys(ctx, "echo in $((40+2))", "Enter")
	term.sees(ctx, "in 42")
	term.keys(ctx, "exit 3", "Enter")
	term.sees(ctx, "1 running · 0 paused")
	if now := get().Generation; now != generation+1 {
		t.Errorf("it has generation %d, want %d: one wake", now, generation+1)
	}
	term.keys(ctx, "x")
	term.sees(ctx, "end "+sb.ID+"?")
	term.keys(ctx, "y")
	term.sees(ctx, "no sandboxes")
	term.keys(ctx, "s") // of nothing
	term.keys(ctx, "q")
	term.sees(ctx, "ended with 0")
	term.sees(ctx, "before")
}

// TestDemoScreen watches the demo's sandbox on a real terminal, over a sleep that
// comes by itself and one that a key asks for.
func TestDemoScreen(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	term := startTerminal(ctx, t, fmt.Sprintf("TERM=xterm-256color DROWSE_URL=http://%s DROWSE_API_KEY=%s %s demo --tui; echo ended with $?; sleep 1000", s.addr, apiKey, drowseBinary))
	term.sees(ctx, "a request wakes it in")
	term.sees(ctx, "no process, 0 MiB")
	term.sees(ctx, "the same after 1 sleep")
	term.keys(ctx, "Space")
	term.sees(ctx, "the same after 2 sleeps")
	term.keys(ctx, "q")
	term.sees(ctx, "memory, files and process were the same each time")
	term.sees(ctx, "demo: ok")
	term.sees(ctx, "ended with 0")
	s.nothingLeft(ctx)
}
