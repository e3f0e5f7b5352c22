package contract

import (
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// named: a name belongs to one sandbox of an API key, until that has ended.
func named(w world) {
	calling := func(key, name string) (store.Sandbox, error) {
		req := asked()
		req.Config.Key, req.Config.Name = key, name
		return w.s.Create(w.t.Context(), req)
	}
	sb, err := calling("key", "web")
	if w.ok("create", err); sb.Config.Name != "web" {
		w.t.Errorf("its name is %q", sb.Config.Name)
	}
	w.pause(sb.ID)
	_, err = calling("key", "web")
	w.refused("the name of one that sleeps", err, errdef.Exists, "name_taken")
	_, err = calling("other", "web")
	w.ok("of another key", err)
	for _, bad := range []string{"-a", "a b", "i00000000000000000009", strings.Repeat("x", 65)} {
		_, err := calling("key", bad)
		w.refused(bad, err, errdef.Invalid, "name_invalid")
	}
	w.ok("kill", w.s.Kill(w.t.Context(), sb.ID, "test"))
	_, err = calling("key", "web")
	w.ok("after its end", err)
}

// made: an idempotency key says what it has made, for a day.
func made(w world) {
	ctx, req := w.t.Context(), asked()
	req.Config.Idempotency = &store.Idempotency{Key: "once", Request: "digest", At: time.Now()}
	_, before, err := w.s.Made(ctx, req.Config)
	if w.ok("before", err); before {
		w.t.Error("it has made something before the create")
	}
	sb := w.made(req)
	found, has, err := w.s.Made(ctx, req.Config)
	if w.ok("made", err); !has || found.ID != sb.ID {
		w.t.Errorf("it has made %s: %t, want %s", found.ID, has, sb.ID)
	}
	other := req.Config
	other.Idempotency = &store.Idempotency{Key: "once", Request: "other", At: time.Now()}
	_, _, err = w.s.Made(ctx, other)
	w.refused("another request", err, errdef.Conflict, "idempotency_key_reused")
	w.sleep(store.IdempotencyLife + time.Minute)
	req.Config.Idempotency.At = time.Now()
	if again := w.made(req); again.ID == sb.ID {
		w.t.Error("after its time, the key makes no other sandbox")
	}
}

// accounts: what a key uses follows what its sandboxes do.
func accounts(w world) {
	ctx, first, second := w.t.Context(), w.create(), w.paused()
	limits := first.Config.Limits
	if limits.MemoryMiB == 0 || limits.DiskMiB == 0 {
		w.t.Errorf("the limits are %+v", limits)
	}
	want := store.Use{Running: 1, Sandboxes: 2, MemoryMiB: limits.MemoryMiB, DiskMiB: 2 * limits.DiskMiB}
	if got := w.s.KeyUse("key"); got != want {
		w.t.Errorf("the key uses %+v, want %+v", got, want)
	}
	if got := w.s.KeyUse("other"); got != (store.Use{}) {
		w.t.Errorf("another key uses %+v", got)
	}
	for _, id := range []string{first.ID, second.ID} {
		w.ok("kill", w.s.Kill(ctx, id, "test"))
	}
	if got := w.s.KeyUse("key"); got != (store.Use{}) {
		w.t.Errorf("after their end the key uses %+v", got)
	}
	seen := map[string]bool{}
	for _, id := range []string{first.ID, second.ID, first.ID} {
		seen[w.s.EnvdToken(id)], seen[w.s.TrafficToken(id)] = true, true
	}
	if len(seen) != 4 || seen[""] {
		w.t.Errorf("two sandboxes have %d tokens", len(seen))
	}
}

// traffic wakes a sandbox where that is allowed, and for as long as its timeout.
func traffic(w world) {
	reach := func(id string, port int, path string) bool { return w.s.Reach(w.t.Context(), id, port, path) == nil }
	waking := lifecycle.Settings{Timeout: time.Minute, OnTimeout: lifecycle.Pause, AutoResume: true}
	for name, c := range map[string]struct {
		settings lifecycle.Settings
		port     int
		path     string
		wakes    bool
	}{
		"allowed":     {waking, 8000, "/", true},
		"not allowed": {lifecycle.Settings{Timeout: time.Minute, OnTimeout: lifecycle.Pause}, 8000, "/", false},
		"ignored":     {waking, 8000, "/healthz/live", false},
		"kept asleep": {waking, 9000, "/", false},
	} {
		req := asked()
		req.Settings, req.Config.Ports = c.settings, store.Ports{"8000/healthz": lifecycle.Ignore, "9000": lifecycle.Keep}
		id := w.made(req).ID
		if !reach(id, c.port, c.path) {
			w.t.Errorf("%s: not reached while it runs", name)
		}
		w.pause(id)
		state, generation := lifecycle.Paused, int64(1)
		if c.wakes {
			state, generation = lifecycle.Running, 2
		}
		if got := reach(id, c.port, c.path); got != c.wakes {
			w.t.Errorf("%s: reached %t while it sleeps", name, got)
		}
		w.is(id, state, generation)
		if r := w.find(id).Record; c.wakes && !r.EndAt.Equal(r.StartedAt.Add(max(time.Minute, lifecycle.MinAutoResume))) {
			w.t.Errorf("%s: it runs until %s after its start", name, r.EndAt.Sub(r.StartedAt))
		}
		if last := w.last(id); c.wakes && last.Cause != lifecycle.CauseAccess {
			w.t.Errorf("%s: it woke because of %q", name, last.Cause)
		}
		w.ok("kill", w.s.Kill(w.t.Context(), id, "test"))
		if reach(id, c.port, c.path) {
			w.t.Errorf("%s: reached after its end", name)
		}
	}
	if reach("i00000000000000000009", 8000, "/") {
		w.t.Error("a sandbox was reached that does not exist")
	}
}
