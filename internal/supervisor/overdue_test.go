package supervisor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestOverdueElsewhere: the clocks of a sandbox go on when its server is gone. What has run out ends it
// on another one, by itself or when somebody asks for it, and it is not woken.
func TestOverdueElsewhere(t *testing.T) {
	const soon, never = 10 * time.Minute, 10 * time.Hour
	type settings = lifecycle.Settings
	for name, c := range map[string]struct {
		settings
		asleep bool
		want   lifecycle.Reason // empty if it does not end
	}{
		"asleep":                        {settings{}, true, ""},
		"running":                       {settings{}, false, ""},
		"asleep, with time left":        {settings{MaxLifetime: never, PausedRetention: never}, true, ""},
		"running, with time left":       {settings{MaxLifetime: never}, false, ""},
		"running, and would sleep":      {settings{Timeout: soon}, false, ""},
		"asleep, with a timeout":        {settings{Timeout: soon, OnTimeout: lifecycle.Kill}, true, ""},
		"asleep for too long":           {settings{PausedRetention: soon}, true, lifecycle.PausedExpired},
		"asleep, too old":               {settings{MaxLifetime: soon}, true, lifecycle.MaxLifetimeExceeded},
		"running, too old":              {settings{MaxLifetime: soon}, false, lifecycle.MaxLifetimeExceeded},
		"running for too long":          {settings{Timeout: soon, OnTimeout: lifecycle.Kill}, false, lifecycle.TimeoutExpired},
		"running for too long, unused":  {settings{Timeout: soon, OnTimeout: lifecycle.Kill, RefreshOnActivity: lifecycle.RefreshOnWork}, false, lifecycle.TimeoutExpired},
		"running, and idle for so long": {settings{Timeout: never, IdleTimeout: soon, OnIdle: lifecycle.Kill}, false, lifecycle.IdleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, nil)
				set := c.settings
				if set.OnTimeout == "" {
					set.OnTimeout = lifecycle.Pause
				}
				watched, asked := create(t, p.one, CreateRequest{Settings: set}), create(t, p.one, CreateRequest{Settings: set})
				for _, id := range []string{watched, asked} {
					if err := p.one.Pause(t.Context(), id, PauseRequest{}); err != nil {
						t.Fatal(err)
					}
					copied(t, p.one)
					if c.asleep {
						continue
					}
					if _, err := p.one.Connect(t.Context(), id, WakeRequest{Timeout: set.Timeout}); err != nil {
						t.Fatal(err)
					}
				}
				p.servers[p.one].crash()
				p.leave(t, 0)
				end := func() {
					t.Helper()
					if err := p.two.EndOverdue(t.Context()); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(store.LostAfter)
				end()
				for _, id := range []string{watched, asked} {
					if sb, err := p.two.o.Store.Sandbox(t.Context(), id); err != nil || sb.Owner != "one" || sb.Record.State == lifecycle.Terminated {
						t.Fatalf("before its time it is %s of %q, %v", sb.Record.State, sb.Owner, err)
					}
				}
				time.Sleep(soon)
				err := p.two.TakeOver(t.Context(), asked)
				if ended := lifecycle.Ended(err); ended != (c.want != "") || !ended && err != nil {
					t.Errorf("who asks gets %v", err)
				}
				end()
				if c.want == "" {
					if sb, err := p.two.o.Store.Sandbox(t.Context(), watched); err != nil || sb.Owner != "one" {
						t.Errorf("it is %s of %q, %v", sb.Record.State, sb.Owner, err)
					}
					return
				}
				for _, id := range []string{watched, asked} {
					testmode.Eventually(t, "it has ended, and nothing of it is in object storage", func() bool {
						sb, err := p.two.Find(t.Context(), id)
						_, none := p.two.o.Store.Replica(t.Context(), id)
						return err == nil && sb.Ended() && sb.Record.Tombstone.Reason == c.want && errdef.Is(none, errdef.NotFound)
					})
				}
			})
		})
	}
}

// TestOverdueCreate: what was being created on a server that is gone has failed, and holds nothing
// of its key any more.
func TestOverdueCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil)
		begun := make(chan struct{})
		p.worlds[p.one].meddle = func(ctx context.Context, _ *server, at point, _ string) error {
			if at == atStart {
				close(begun)
				<-ctx.Done()
			}
			return ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = p.one.Create(ctx, underKey("a")) }()
		<-begun
		p.servers[p.one].crash()
		p.leave(t, 0)
		all, err := p.two.o.Store.Sandboxes(t.Context())
		if err != nil || len(all) != 1 || all[0].Record.Phase() != lifecycle.Creating {
			t.Fatalf("stored are %+v, %v", all, err)
		}
		wantElsewhere(t, "at once", p.two.Overdue(t.Context(), all[0]), all[0].ID, "one")
		time.Sleep(store.LostAfter)
		if err := p.two.EndOverdue(t.Context()); err != nil {
			t.Error(err)
		}
		if sb, err := p.two.Find(t.Context(), all[0].ID); err != nil || !sb.Failed() {
			t.Errorf("it is %+v, %v", sb, err)
		}
		if _, err := p.two.Create(t.Context(), underKey("a")); err != nil {
			t.Errorf("once more: %v", err)
		}
	})
}

// TestOverdueIsNotWoken: a clock that has run out comes before what would wake the sandbox, be it that
// the timers have not got that far.
func TestOverdueIsNotWoken(t *testing.T) {
	w := newWorld(t)
	srv := w.mustOpen(t)
	t.Cleanup(func() { w.end(t, srv) })
	other := create(t, srv.s, CreateRequest{Settings: sleepy})
	wakes := map[string]func(id string) error{
		"access": func(id string) error {
			_, err := srv.s.Acquire(t.Context(), id, Access{Port: counterPort})
			return err
		},
		"connect": func(id string) error {
			_, err := srv.s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour})
			return err
		},
		"resume": func(id string) error {
			_, err := srv.s.Resume(t.Context(), id, WakeRequest{Timeout: time.Hour})
			return err
		},
	}
	boxes := map[string]string{}
	for name := range wakes {
		boxes[name] = create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true, PausedRetention: 300 * time.Millisecond}})
	}
	b, err := srv.s.box(other)
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock() // one whose timer takes long: the others wait
	srv.s.timers.Set(b, time.Now(), false)
	for _, id := range boxes {
		if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(300 * time.Millisecond)
	for name, wake := range wakes {
		if err := wake(boxes[name]); errdef.CodeOf(err) != "paused_expired" {
			t.Errorf("%s: %v", name, err)
		}
		if r := record(t, srv.s, boxes[name]); r.State != lifecycle.Terminated || r.Tombstone.Reason != lifecycle.PausedExpired {
			t.Errorf("after a refused %s it is %+v", name, r)
		}
	}
	b.mu.Unlock()
}
