package supervisor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient/hostile"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
)

// TestGuestsThatDoNotAnswerHoldUpNobodyElse: a start held one of the server's
// turns until its guest had answered, so that four sandboxes whose guests did
// not kept every other one from being made or woken.
func TestGuestsThatDoNotAnswerHoldUpNobodyElse(t *testing.T) {
	w := newHostileWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		settings := lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Kill}
		silent := silentAgent
		w.answer.Store(&silent)
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 * srv.s.launcher.Turns() {
			go func() {
				_, _ = srv.s.Create(ctx, CreateRequest{Template: "test", Settings: settings, Config: store.Config{Key: "greedy"}})
			}()
		}
		synctest.Wait()
		w.answer.Store(nil)
		began := time.Now()
		sb, err := srv.s.Create(t.Context(), CreateRequest{Template: "test", Settings: settings, Config: store.Config{Key: "modest"}})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("another key's sandbox took %s to start", took)
		}
		if err := srv.s.Kill(t.Context(), sb.ID, ""); err != nil {
			t.Error(err)
		}
		cancel()
		w.close(t, srv)
		if keys, turns := srv.s.launcher.Underway(); keys != 0 || turns != 0 {
			t.Errorf("%d keys are on their way, %d turns are taken", keys, turns)
		}
	})
}

// TestWakesThatDoNotEndHoldUpNobodyElse: the same of wakes, where the agent does not
// answer, or only the command does not end that the owner has run after each.
func TestWakesThatDoNotEndHoldUpNobodyElse(t *testing.T) {
	for name, answer := range map[string]func(net.Conn){"the agent": silentAgent, "the hook": silentHook} {
		t.Run(name, func(t *testing.T) {
			w := newHostileWorld(t)
			synctest.Test(t, func(t *testing.T) {
				srv := w.mustOpen(t)
				settings := lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Kill}
				hook := store.Hooks{PostResume: store.Hook{Command: "sleep 3600", Budget: fields.MaxHookBudget}}
				var asleep []string
				for range 2 * srv.s.launcher.Turns() {
					sb, err := srv.s.Create(t.Context(), CreateRequest{Template: "test", Settings: settings, Config: store.Config{Key: "greedy", Hooks: hook}})
					if err != nil {
						t.Fatal(err)
					}
					if err := srv.s.Pause(t.Context(), sb.ID, PauseRequest{}); err != nil {
						t.Fatal(err)
					}
					asleep = append(asleep, sb.ID)
				}
				w.answer.Store(&answer)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, len(asleep))
				for _, id := range asleep {
					go func() {
						_, err := srv.s.Resume(ctx, id, WakeRequest{Timeout: time.Hour})
						ended <- err
					}()
				}
				synctest.Wait()
				if keys, _ := srv.s.launcher.Underway(); keys != 1 || len(ended) > 0 {
					t.Fatalf("%d keys are on their way, and %d wakes have ended", keys, len(ended))
				}
				w.answer.Store(nil)
				began := time.Now()
				sb, err := srv.s.Create(t.Context(), CreateRequest{Template: "test", Settings: settings, Config: store.Config{Key: "modest"}})
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("another key's sandbox took %s to start", took)
				}
				if err := srv.s.Kill(t.Context(), sb.ID, ""); err != nil {
					t.Error(err)
				}
				cancel()
				w.close(t, srv)
			})
		})
	}
}

// silentAgent takes a connection and says nothing.
func silentAgent(c net.Conn) { _, _ = bufio.NewReader(c).Peek(1); hostile.Listen(c) }

// silentHook answers like an agent until it is asked to run a command.
func silentHook(c net.Conn) {
	for r := bufio.NewReader(c); ; {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if strings.Contains(req.URL.Path, "rocess") {
			hostile.Listen(c)
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		if _, err := io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n"); err != nil {
			return
		}
	}
}

// TestFieldsHaveLimits: 16 MiB of metadata were kept for each sandbox, for 30
// days after its end too. The error says what the limit is.
func TestFieldsHaveLimits(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	many := map[string]string{}
	for i := range fields.MaxEnvCount + 1 { // few bytes
		many[strconv.Itoa(i)] = ""
	}
	for name, c := range map[string]struct {
		config store.Config
		says   string
	}{
		"metadata":      {store.Config{Metadata: map[string]string{"a": long(fields.MaxMetadata)}}, "may have 16384"},
		"much metadata": {store.Config{Metadata: many}, "may have 128"},
		"env":           {store.Config{Env: map[string]string{long(fields.MaxEnv): "b"}}, "may have 131072"},
		"much env":      {store.Config{Env: many}, "may have 1024"},
		"host mask":     {store.Config{HostMask: long(fields.MaxHostMask + 1)}, "may have 512"},
		"HTTPS ports":   {store.Config{HTTPSPorts: make([]int, fields.MaxHTTPSPorts+1)}, "may have 128"},
		"network":       {store.Config{Network: []byte(long(fields.MaxNetwork + 1))}, "may have 16384"},
		"a hook":        {store.Config{Hooks: store.Hooks{PreKill: store.Hook{Command: long(fields.MaxHookCommand + 1)}}}, "may have 16384"},
		"volumes":       {store.Config{Volumes: make([]store.VolumeMount, fields.MaxMounts+1)}, "may have 64"},
	} {
		err := fields.Check(c.config)
		e, ok := errors.AsType[*errdef.Error](err)
		if !ok || e.Code != "field_too_large" || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %.200v, want what it %s", name, err, c.says)
		}
	}
	if err := fields.Check(store.Config{Metadata: map[string]string{"a": long(fields.MaxMetadata - 1)}, Env: map[string]string{"b": long(fields.MaxEnv - 1)}}); err != nil {
		t.Errorf("what is just small enough: %v", err)
	}
	if err := fields.CheckTemplateName(long(fields.MaxTemplateName + 1)); !errdef.Is(err, errdef.NotFound) || len(err.Error()) > 300 {
		t.Errorf("a long name of a template: %.300v", err)
	}
}

// TestManyHolds: thousands of holds were kept with one sandbox.
func TestManyHolds(t *testing.T) {
	w := newHostileWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Kill}})
		hold := func(l lifecycle.Lease) (lifecycle.Lease, error) {
			l.Until = time.Now().Add(time.Minute)
			return srv.s.Hold(t.Context(), id, l, "test")
		}
		first, err := hold(lifecycle.Lease{})
		if err != nil {
			t.Fatal(err)
		}
		for range lifecycle.MaxLeases - 1 {
			if _, err := hold(lifecycle.Lease{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := hold(lifecycle.Lease{}); !errdef.Is(err, errdef.Exhausted) {
			t.Errorf("one hold too many: %v", err)
		}
		if _, err := hold(lifecycle.Lease{ID: first.ID}); err != nil {
			t.Errorf("one is prolonged: %v", err)
		}
		if _, err := hold(lifecycle.Lease{ID: first.ID, Reason: strings.Repeat("x", fields.MaxHoldReason+1)}); !errdef.Is(err, errdef.Invalid) {
			t.Errorf("a long reason: %v", err)
		}
		time.Sleep(2 * time.Minute) // and they run out
		if _, err := hold(lifecycle.Lease{}); err != nil {
			t.Errorf("after the others ran out: %v", err)
		}
		killHostile(t, w, srv, id)
		w.close(t, srv)
	})
}

// TestTombstonesAreSlim: of a sandbox that has ended, what it was given for its
// life is not kept, and what is kept is bounded for each key: with 16 KiB of metadata
// in each, 10,000 tombstones took 160 MiB.
func TestTombstonesAreSlim(t *testing.T) {
	w := newHostileWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		sb, err := srv.s.Create(t.Context(), CreateRequest{Template: "test", Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Kill}, Config: store.Config{
			Key: "k", Metadata: map[string]string{"a": "b", "long": strings.Repeat("x", fields.MaxMetadata-6)}, Env: map[string]string{"SECRET": strings.Repeat("x", 1<<16)}, AllowOut: []string{"203.0.113.1"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		killHostile(t, w, srv, sb.ID)
		got, err := srv.s.Find(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.Config.Env != nil || got.Config.AllowOut != nil || got.Config.Metadata["a"] != "b" || got.Config.Key != "k" || got.Config.Alias != sb.Config.Alias {
			t.Errorf("kept: %+v", got.Config)
		}
		got.Config.Volumes = make([]store.VolumeMount, fields.MaxMounts)
		if kept := fields.Bytes(fields.Remembered(got)); kept > fields.MaxMetadata+(2<<10) {
			t.Errorf("%d bytes are kept", kept)
		}

		// The tombstones after it leave no room for it.
		for i := range 2 {
			buryAside(t, srv.s, "k", strconv.Itoa(i), store.MostTombstoneBytes/2)
		}
		second, err := srv.s.Create(t.Context(), CreateRequest{Template: "test", Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Kill}, Config: store.Config{Key: "k"}})
		if err != nil {
			t.Fatal(err)
		}
		killHostile(t, w, srv, second.ID)
		synctest.Wait()
		if ids := buried(t, srv.s, "k"); !slices.Equal(ids, []string{"1", second.ID}) {
			t.Errorf("the tombstones of %q are kept, want those that fit", ids)
		}
		w.close(t, srv)
	})
}

// TestServicesOfSleepersThatEnd: what was noted of the services of a sandbox was kept
// for ever where it was killed while it slept.
func TestServicesOfSleepersThatEnd(t *testing.T) {
	w := newHostileWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		web := service.Service{Name: "web", Shell: "serve", Port: 8000}.WithDefaults()
		sb, err := srv.s.Create(t.Context(), CreateRequest{
			Template: "test", Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Kill},
			Config: store.Config{Services: []service.Service{web}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := srv.s.Pause(t.Context(), sb.ID, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := srv.s.Noted(); n != 1 {
			t.Errorf("the services of %d sandboxes are noted, want those of the one that sleeps", n)
		}
		if err := srv.s.Kill(t.Context(), sb.ID, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := srv.s.Noted(); n != 0 {
			t.Errorf("the services of %d sandboxes are noted after the last has ended", n)
		}
		w.close(t, srv)
	})
}
