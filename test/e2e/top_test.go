package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// startTerminal runs a shell script in a terminal of 24 lines.
func startTerminal(ctx context.Context, t testing.TB, columns int, script string) *terminal {
	t.Helper()
	term := &terminal{t, filepath.Join(t.TempDir(), "tmux")}
	t.Cleanup(func() { term.tmux(context.WithoutCancel(ctx), "kill-server") })
	term.tmux(ctx, "-f", os.DevNull, "new-session", "-d", "-x", fmt.Sprint(columns), "-y", "24", script)
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
	term := startTerminal(ctx, t, 110, fmt.Sprintf("echo before; TERM=xterm-256color DROWSE_URL=http://%s DROWSE_API_KEY=%s %s top; echo ended with $?; sleep 1000", s.addr, apiKey, drowseBinary))
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

// whole waits until the terminal shows all of these, and nothing that is cut.
func (term *terminal) whole(ctx context.Context, texts ...string) {
	term.t.Helper()
	eventually(term.t, time.Minute, "the terminal shows all of it", func() error {
		screen := term.tmux(ctx, "capture-pane", "-p")
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				return fmt.Errorf("it does not show %q:\n%s", text, screen)
			}
		}
		for line := range strings.Lines(screen) {
			if strings.HasSuffix(strings.TrimSpace(line), "…") {
				return fmt.Errorf("a line is cut: %s", line)
			}
		}
		return nil
	})
}

// TestTopFits has all that matters on terminals of the usual widths: the list with what
// happens next, why, the log, and keys.
func TestTopFits(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)
	if _, err := sb.Run(ctx, client.Command{Args: []string{"sh", "-c", "exit 3", "\x1b[2J" + strings.Repeat("long ", 60) + "end"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.client.Pause(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	generation := func() uint64 {
		info, err := s.client.Get(ctx, sb.ID)
		if err != nil || info.State != client.Paused {
			t.Errorf("it is %s: %v", info.State, err)
		}
		return uint64(info.Generation)
	}
	before := generation()
	for columns, more := range map[int][]string{80: nil, 200: {"http://" + s.addr, "TEMPLATE", "WAKES ON", "/ filter"}} {
		term := startTerminal(ctx, t, columns, fmt.Sprintf("TERM=xterm-256color DROWSE_URL=http://%s DROWSE_API_KEY=%s %s top; echo ended with $?; sleep 1000", s.addr, apiKey, drowseBinary))
		term.whole(ctx, append(more, "0 running · 1 paused", sb.ID+"  paused", "NEXT", "wakes on ", "l log", "? keys · q quit")...)
		term.keys(ctx, "l")
		term.whole(ctx, "log of "+sb.ID, "process started: sh -c", "long end", "exit status 3", "sandbox paused")
		term.keys(ctx, "q", "Enter")
		term.whole(ctx, "why "+sb.ID, "asleep for")
		term.keys(ctx, "q", "q")
		term.sees(ctx, "ended with 0")
	}
	if now := generation(); now != before {
		t.Errorf("looking at it woke it: generation %d, then %d", before, now)
	}
}

// TestDemoScreen watches the demo's two sandboxes on real terminals, over a sleep of
// each that a key asks for and one that comes by itself.
func TestDemoScreen(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	var terms []*terminal
	for _, columns := range []int{80, 200} {
		terms = append(terms, startTerminal(ctx, t, columns, fmt.Sprintf("TERM=xterm-256color DROWSE_URL=http://%s DROWSE_API_KEY=%s %s demo --tui; echo ended with $?; sleep 1000", s.addr, apiKey, drowseBinary)))
	}
	for _, term := range terms {
		term.matches(ctx, 2, "is awake")
		term.whole(ctx, "2 processes, ", "8388608 bytes, sha256 ", "1048576 bytes, sha256 ")
		term.keys(ctx, "Space")
		term.whole(ctx, "a request wakes it in", "no process, 0 MiB")
	}
	for _, term := range terms {
		term.matches(ctx, 4, `each the same after ([2-9]|\d\d+) sleeps`) // memory and files of both
		term.whole(ctx, "WOKEN IN")
		term.keys(ctx, "q")
		term.whole(ctx, "memory and files are the same, byte for byte", "demo: ok", "ended with 0")
	}
	s.nothingLeft(ctx)
}

// matches waits until the terminal shows so many texts of a form.
func (term *terminal) matches(ctx context.Context, n int, form string) {
	term.t.Helper()
	text := regexp.MustCompile(form)
	eventually(term.t, time.Minute, fmt.Sprintf("%d times: %s", n, form), func() error {
		if screen := term.tmux(ctx, "capture-pane", "-p"); len(text.FindAllString(screen, -1)) != n {
			return fmt.Errorf("it shows:\n%s", screen)
		}
		return nil
	})
}
