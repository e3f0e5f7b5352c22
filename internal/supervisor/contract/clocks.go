package contract

import (
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// clocks lets each clock run out, of which a sandbox is paused or ends: then, and not
// before, and the event log says why.
func clocks(w world) {
	const long = 10 * time.Minute
	for name, c := range map[string]struct {
		settings lifecycle.Settings
		asleep   bool
		reason   lifecycle.Reason // empty where it pauses
		code     string
		cause    lifecycle.Cause
	}{
		"timeout":             {lifecycle.Settings{Timeout: long, OnTimeout: lifecycle.Kill}, false, lifecycle.TimeoutExpired, "timeout_expired", lifecycle.CauseTimeout},
		"timeout that pauses": {lifecycle.Settings{Timeout: long, OnTimeout: lifecycle.Pause}, false, "", "", lifecycle.CauseTimeout},
		"idle":                {lifecycle.Settings{IdleTimeout: long, OnIdle: lifecycle.Kill}, false, lifecycle.IdleTimeout, "idle_timeout", lifecycle.CauseIdle},
		"idle that pauses":    {lifecycle.Settings{Timeout: time.Hour, IdleTimeout: long, OnIdle: lifecycle.Pause}, false, "", "", lifecycle.CauseIdle},
		"lifetime":            {lifecycle.Settings{Timeout: time.Hour, MaxLifetime: long}, false, lifecycle.MaxLifetimeExceeded, "max_lifetime_exceeded", lifecycle.CauseTimeout},
		"retention":           {lifecycle.Settings{PausedRetention: long}, true, lifecycle.PausedExpired, "paused_expired", lifecycle.CauseTimeout},
	} {
		id := w.with(c.settings)
		before, after := lifecycle.Running, lifecycle.Paused
		if c.asleep {
			w.pause(id)
			before = lifecycle.Paused
		}
		w.sleep(long - time.Second)
		w.is(id, before, 1)
		w.sleep(10 * time.Second)
		if c.reason != "" {
			after = lifecycle.Terminated
			_, err := w.s.Get(w.t.Context(), id)
			w.refused(name, err, errdef.NotFound, c.code)
		}
		w.is(id, after, 1)
		sb, last := w.find(id), w.last(id)
		if at := last.At.Sub(sb.Record.CreatedAt).Round(time.Second); at != long || last.Cause != c.cause || last.Actor != "" {
			w.t.Errorf("%s: %s after %s because of %q, by %q", name, last.Type, at, last.Cause, last.Actor)
		}
		if tomb := sb.Record.Tombstone; tomb != nil && (tomb.Reason != c.reason || !tomb.At.Equal(last.At)) {
			w.t.Errorf("%s: its tombstone is %+v", name, tomb)
		}
	}
}

// holdsAndClocks: a hold keeps a sandbox awake until its end, from which on it is idle.
func holdsAndClocks(w world) {
	ctx, id := w.t.Context(), w.with(lifecycle.Settings{IdleTimeout: 10 * time.Minute, OnIdle: lifecycle.Pause})
	l, err := w.s.Hold(ctx, id, lifecycle.Lease{Until: time.Now().Add(30 * time.Minute)}, "holder")
	w.ok("hold", err)
	w.sleep(20*time.Minute - time.Second)
	w.is(id, lifecycle.Running, 1)
	x, err := w.s.Explain(ctx, id)
	if w.ok("explain", err); len(x.Deadlines) != 1 || x.Deadlines[0].Clock != lifecycle.ClockRecheck {
		w.t.Errorf("what is due while it is held: %+v", x.Deadlines)
	}
	w.sleep(20*time.Minute - time.Second)
	w.is(id, lifecycle.Running, 1)
	if x, err := w.s.Explain(ctx, id); err != nil || len(x.Holds) != 1 || x.Holds[0].Counts || len(x.Deadlines) != 1 || x.Deadlines[0].Clock != lifecycle.ClockIdle {
		w.t.Errorf("after the end of the hold: %+v, %+v, %v", x.Holds, x.Deadlines, err)
	}
	w.ok("release after its end", w.s.ReleaseHold(ctx, id, l.ID, "test"))
	w.sleep(10 * time.Second)
	w.is(id, lifecycle.Paused, 1)
}

// tombstones are forgotten in the end.
func tombstones(w world) {
	ctx, id := w.t.Context(), w.create().ID
	w.ok("kill", w.s.Kill(ctx, id, "killer"))
	if tomb := w.find(id).Record.Tombstone; tomb == nil || tomb.Actor != "killer" {
		w.t.Errorf("its tombstone is %+v", tomb)
	}
	w.sleep(lifecycle.TombstoneKept - time.Hour)
	w.is(id, lifecycle.Terminated, 1)
	w.sleep(2 * time.Hour)
	_, err := w.s.Find(ctx, id)
	w.refused("find", err, errdef.NotFound, "sandbox_not_found")
	_, err = w.s.EventsBefore(ctx, id, 1000, 10)
	w.refused("its events", err, errdef.NotFound, "sandbox_not_found")
	all, err := w.s.All(ctx)
	if w.ok("all", err); len(all) != 0 {
		w.t.Errorf("%d sandboxes are left", len(all))
	}
	log, err := w.s.Events(ctx, "", 0, 100)
	if w.ok("events", err); len(log) != 0 {
		w.t.Errorf("of it the log has %v", types(slices.Clone(log)))
	}
}

// activity moves the clocks that it is to move: traffic that counts, and holds.
func activity(w world) {
	for _, refresh := range []lifecycle.Refresh{lifecycle.RefreshOnWork, lifecycle.RefreshOnRequests} {
		activityRefreshes(w, refresh)
	}
}

func activityRefreshes(w world, refresh lifecycle.Refresh) {
	ctx := w.t.Context()
	req := asked()
	req.Settings = lifecycle.Settings{Timeout: 10 * time.Minute, OnTimeout: lifecycle.Pause, RefreshOnActivity: refresh}
	req.Config.Ports = store.Ports{"9000": lifecycle.Ignore, "9001": lifecycle.Keep}
	id := w.made(req).ID
	left := func(want time.Duration) {
		w.t.Helper()
		x, err := w.s.Explain(ctx, id)
		w.ok("explain", err)
		for what, sb := range map[string]store.Sandbox{"explained": x.Sandbox, "found": w.find(id)} {
			if got := time.Until(sb.Record.EndAt).Round(time.Second); got != want {
				w.t.Errorf("%s: it has %s left, want %s", what, got, want)
			}
		}
	}
	left(10 * time.Minute)
	w.sleep(5 * time.Minute)
	w.ok("reach an ignored port", w.s.Reach(ctx, id, 9000, "/"))
	left(5 * time.Minute)
	w.ok("reach a port", w.s.Reach(ctx, id, 9001, "/"))
	left(10 * time.Minute)
	w.sleep(5 * time.Minute)
	left(5 * time.Minute)
	l, err := w.s.Hold(ctx, id, lifecycle.Lease{Until: time.Now().Add(time.Hour)}, "holder")
	w.ok("hold", err)
	w.sleep(30 * time.Minute)
	w.is(id, lifecycle.Running, 1)
	left(40 * time.Minute) // 10 after the hold
	w.ok("release", w.s.ReleaseHold(ctx, id, l.ID, "test"))
	w.sleep(9 * time.Minute)
	left(time.Minute)
	w.sleep(2 * time.Minute)
	w.is(id, lifecycle.Paused, 1)
}
