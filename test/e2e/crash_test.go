package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestKilledServer kills the server while five sandboxes run and five are
// paused. After a restart all answer, the running ones never stopped, and no
// deadline has moved; those that passed meanwhile fire at once.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	running := s.startGuests(ctx, 5, sleeper)
	paused := s.startGuests(ctx, 5, sleeper)
	for _, g := range paused {
		g.first = g.ask(ctx)
		s.pause(ctx, g.sb.ID)
		s.waitGone(g.sb.ID)
	}
	all := slices.Concat(running, paused)
	recorded := map[string]map[string]string{}
	for _, g := range all {
		recorded[g.sb.ID] = s.texts(ctx, g.sb.ID)
	}

	// Two whose time comes while nobody is there to see to it.
	mortal := s.create(ctx, client.CreateOptions{Timeout: 10 * time.Minute})
	drowsy := s.startGuest(ctx, client.CreateOptions{OnTimeout: client.Pause, Timeout: 10 * time.Minute})
	before := map[string]report{}
	for _, g := range append(running, drowsy) {
		before[g.sb.ID] = g.ask(ctx)
	}
	due := time.Now()
	for _, id := range []string{mortal.ID, drowsy.sb.ID} {
		if err := s.client.SetTimeout(ctx, id, 12*time.Second); err != nil {
			t.Fatal(err)
		}
		info, err := s.client.Get(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if info.State != client.Running {
			t.Fatalf("sandbox %s is %s before the crash", id, info.State)
		}
		if info.EndAt.After(due) {
			due = info.EndAt
		}
	}

	s.crash()
	crashed := time.Now()
	time.Sleep(time.Until(due.Add(100 * time.Millisecond))) // the deadlines themselves
	down := time.Since(crashed)
	s.start()

	for _, g := range all {
		if now := s.texts(ctx, g.sb.ID); !maps.Equal(now, recorded[g.sb.ID]) {
			t.Errorf("sandbox %s is now %v, was %v", g.sb.ID, now, recorded[g.sb.ID])
		}
	}
	for _, g := range running {
		was, now := before[g.sb.ID], g.ask(ctx)
		g.same(was, now)
		if now.generation(t) != was.generation(t) {
			t.Errorf("generation went from %s to %s", was.Generation, now.Generation)
		}
		// It counts to 100 in a second where the machine is idle; had it stood still, to none.
		if least := int64(down.Seconds()); now.Counter-was.Counter < least {
			t.Errorf("counter moved by %d in the %s without a server", now.Counter-was.Counter, down)
		}
	}
	for i, g := range paused {
		begin := time.Now()
		if i%2 == 0 {
			s.connect(ctx, g.sb.ID)
		}
		now := g.ask(ctx)
		t.Logf("paused sandbox answered after %s (%s)", since(begin), choose(i%2 == 0, "connect", "request"))
		g.same(g.first, now)
		checkClock(t, now)
	}
	late := eventually(t, 30*time.Second, "sandbox whose time came is killed", func() error {
		return gone(ctx, s, mortal.ID, "TimeoutExpired")
	})
	eventually(t, 30*time.Second, "sandbox whose time came is paused", func() error {
		return s.is(ctx, drowsy.sb.ID, client.Paused)
	})
	t.Logf("server was down for %s; overdue sandboxes had ended %s after the checks", down.Round(time.Millisecond), late)
	s.waitGone(mortal.ID)
	s.connect(ctx, drowsy.sb.ID)
	drowsy.same(before[drowsy.sb.ID], drowsy.ask(ctx))
	for _, g := range all {
		g.checkAppended(ctx)
	}
}

// TestKilledServerInMidChange kills the server while sandboxes are created,
// paused, resumed and killed. Whatever came of those, each sandbox is then in
// one of its states, none has lost its memory, and nothing else is left.
func TestKilledServerInMidChange(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	guests := s.startGuests(ctx, 4, sleeper)
	rounds := testmode.Choose(3, 8)
	for i := range rounds {
		before := map[string]report{}
		for j, g := range guests {
			before[g.sb.ID] = g.ask(ctx)
			if j%2 == 1 {
				s.pause(ctx, g.sb.ID)
			}
		}
		// Their outcome is unknown, and so not looked at.
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = s.client.Create(ctx, client.CreateOptions{Timeout: 10 * time.Minute}) })
		for j, g := range guests {
			calls.Go(func() {
				if j%2 == 1 {
					_, _ = s.client.Connect(ctx, g.sb.ID, 10*time.Minute)
				} else {
					_ = s.client.Pause(ctx, g.sb.ID)
				}
			})
		}
		moment := 120 * time.Millisecond * time.Duration(i+1) / time.Duration(rounds)
		time.Sleep(moment)
		s.crash()
		calls.Wait()
		s.start()
		for _, g := range guests {
			now := g.ask(ctx)
			g.same(before[g.sb.ID], now)
			g.checkAppended(ctx)
			if t.Failed() {
				t.Fatalf("after the crash %s into the changes", moment)
			}
		}
	}
	list, err := s.client.List(ctx, client.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range list {
		if err := s.client.Kill(ctx, info.ID); err != nil {
			t.Error(err)
		}
		s.waitGone(info.ID)
	}
	for _, m := range s.each() {
		for _, f := range named(m.home, "", "layers", "images", "run/rootfs", "run/gv/bundles") {
			t.Errorf("left behind: %s", f)
		}
	}
}

// TestTornRuntimeState restarts the server after a crash tore what gVisor
// keeps about one runtime, which it does not write in one piece. That must not
// keep the server from starting, nor touch any other sandbox, and the one
// concerned must be in one of its states.
func TestTornRuntimeState(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		paused bool // before, so that there is a checkpoint to fall back to
	}{{"never paused", false}, {"paused before", true}} {
		t.Run(c.name, func(t *testing.T) {
			ctx := deadline(t, time.Minute)
			s := startServer(t)
			torn, other := s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper)
			if c.paused {
				s.pause(ctx, torn.sb.ID)
				s.connect(ctx, torn.sb.ID)
			}
			wasTorn, wasOther := torn.ask(ctx), other.ask(ctx)
			// Before the crash: while a server is there to do it, the runtime that the
			// pause captured goes.
			cid := s.containerID(torn.sb.ID)
			s.crash()
			files := s.glob("run/gv/runsc", cid+"*.state")
			if len(files) != 1 {
				t.Fatalf("state files of %s: %q", torn.sb.ID, files)
			}
			if err := os.Truncate(files[0], 0); err != nil {
				t.Fatal(err)
			}
			s.start()
			other.same(wasOther, other.ask(ctx))
			info, err := s.client.Get(ctx, torn.sb.ID)
			t.Logf("the one concerned: %s %v", info.State, err)
			switch {
			case err == nil:
				// It went on, or fell back to its checkpoint.
				if now := torn.ask(ctx); now.Born != wasTorn.Born {
					t.Errorf("another process answers")
				}
			case c.paused:
				t.Errorf("it is lost, want its checkpoint: %v", err)
			default:
				if err := gone(ctx, s, torn.sb.ID, "RuntimeLost"); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// startGuests starts n guests, several at a time.
func (s *server) startGuests(ctx context.Context, n int, o client.CreateOptions) []*guest {
	guests := make([]*guest, n)
	each(n, 3, func(i int) { guests[i] = s.startGuest(ctx, o) })
	if s.t.Failed() || slices.Contains(guests, nil) {
		s.t.FailNow()
	}
	return guests
}

// each calls f for 0 to n-1, at most width at a time.
func each(n, width int, f func(i int)) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, width)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			f(i)
		})
	}
	wg.Wait()
}

// texts returns what the control plane says of a sandbox, as text.
func (s *server) texts(ctx context.Context, id string) map[string]string {
	s.t.Helper()
	m := map[string]string{}
	for k, v := range s.details(ctx, id) {
		m[k] = string(v)
	}
	return m
}

// gone returns an error unless the sandbox has ended for the reason.
func gone(ctx context.Context, s *server, id, reason string) error {
	_, err := s.client.Get(ctx, id)
	if !errors.Is(err, client.ErrNotFound) {
		return fmt.Errorf("want %w, got %w", client.ErrNotFound, err)
	}
	if !strings.Contains(err.Error(), reason) {
		return fmt.Errorf("the answer does not say %s: %w", reason, err)
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != http.StatusNotFound || e.Code == "" {
		return fmt.Errorf("answer %+v, want 404 with a code", e)
	}
	return nil
}
