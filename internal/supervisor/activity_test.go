package supervisor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// idleSoon pauses after so little idleness that a test can wait for it.
var idleSoon = lifecycle.Settings{IdleTimeout: 150 * time.Millisecond, OnTimeout: lifecycle.Pause, AutoResume: true}

func paused(t *testing.T, s *Supervisor, id string) bool {
	r := record(t, s, id)
	return r.State == lifecycle.Paused && r.Op == nil
}

// staysAwake watches a sandbox for several idle timeouts.
func staysAwake(t *testing.T, s *Supervisor, id string) {
	t.Helper()
	for end := time.Now().Add(600 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if r := record(t, s, id); r.Situation() != "running" {
			t.Fatalf("it is %s", r.Situation())
		}
	}
}

func TestIdlePauses(t *testing.T) {
	s, _ := newBench(t).open()
	id := create(t, s, CreateRequest{Settings: idleSoon})
	wantCount(t, s, id, 1, 1)
	testmode.Eventually(t, "the pause", func() bool { return paused(t, s, id) })
	wantCount(t, s, id, 2, 2)
	testmode.Eventually(t, "the second pause", func() bool { return paused(t, s, id) })
}

func TestAnOpenRequestIsWork(t *testing.T) {
	s, _ := newBench(t).open()
	id := create(t, s, CreateRequest{Settings: idleSoon})
	lease, err := s.Acquire(t.Context(), id, Access{Port: counterPort, Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	staysAwake(t, s, id)
	e, err := s.Explain(t.Context(), id)
	if err != nil || len(e.Holds) != 1 || e.Holds[0].Kind != awake.HoldStream || !e.Holds[0].Counts {
		t.Errorf("explanation: %+v, %v", e.Holds, err)
	}
	lease.Release()
	testmode.Eventually(t, "the pause", func() bool { return paused(t, s, id) })
}

func TestAProbeIsNoWork(t *testing.T) {
	s, _ := newBench(t).open()
	id := create(t, s, CreateRequest{Settings: idleSoon})
	testmode.Eventually(t, "a pause in spite of probes", func() bool {
		if lease, err := s.Acquire(t.Context(), id, Access{Port: agentapi.Port, Probe: true}); err == nil {
			lease.Release()
		}
		events, err := s.Events(t.Context(), id, 0, 100)
		return err == nil && slices.ContainsFunc(events, func(e store.Event) bool { return e.Type == lifecycle.EntryPausing })
	})
}

// TestWhatIsIgnoredIsNoWorkWhileOpen keeps a stream open over the end of the
// idle timeout, far from when it would stall.
func TestWhatIsIgnoredIsNoWorkWhileOpen(t *testing.T) {
	s, _ := newBench(t).open()
	settings := idleSoon
	settings.StallAfter = time.Hour
	id := create(t, s, CreateRequest{Settings: settings, Config: store.Config{Ports: store.Ports{"8002": lifecycle.Ignore}}})
	lease, err := s.Acquire(t.Context(), id, Access{Port: 8002, Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if e, err := s.Explain(t.Context(), id); err != nil || len(e.Holds) != 1 || e.Holds[0].Counts || !e.Holds[0].Until.IsZero() {
		t.Errorf("holds %+v, %v; want one that counts for nothing and has no end", e.Holds, err)
	}
	testmode.Eventually(t, "the pause beside an open stream that is ignored", func() bool { return paused(t, s, id) })
}

func TestPortPolicies(t *testing.T) {
	s, _ := newBench(t).open()
	ports := store.Ports{"8001": lifecycle.Keep, "8002": lifecycle.Ignore, "8000/healthz": lifecycle.Ignore}
	id := create(t, s, CreateRequest{Settings: idleSoon, Config: store.Config{Ports: ports}})
	use := func(port int, path ...string) error {
		lease, err := s.Acquire(t.Context(), id, Access{Port: port, Path: strings.Join(path, "")})
		if err == nil {
			lease.Release()
		}
		return err
	}
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err := use(8001); err != nil {
			t.Fatalf("keep on a running sandbox: %v", err)
		}
	}
	testmode.Eventually(t, "the pause in spite of polling what is ignored", func() bool {
		_, _ = use(8002), use(counterPort, "/healthz/live")
		return paused(t, s, id)
	})
	if err := use(counterPort, "/x/../%68ealthz"); !errdef.Is(err, errdef.WrongState) {
		t.Errorf("an ignored path of a paused sandbox: %v, want wrong_state", err)
	}
	for _, port := range []int{8001, 8002} {
		if err := use(port); !errdef.Is(err, errdef.WrongState) {
			t.Errorf("port %d of a paused sandbox: %v, want wrong_state", port, err)
		}
	}
	if err := use(counterPort, "/healthzz"); err != nil {
		t.Errorf("a port that wakes: %v", err)
	}
}

func TestAProcessIsWorkUntilItEndsOrStalls(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	progress := func() time.Time { return time.Now() }
	b.set(func() {
		b.activity = func() (agentapi.Activity, error) {
			p := agentapi.Process{PID: 7, Root: 7, Command: "make", Since: time.Now().Add(-time.Hour), LastProgress: progress()}
			return agentapi.Activity{Now: time.Now(), Processes: []agentapi.Process{p}}, nil
		}
	})
	settings := idleSoon
	settings.StallAfter = 400 * time.Millisecond
	id := create(t, s, CreateRequest{Settings: settings})
	staysAwake(t, s, id)
	stuck := time.Now()
	b.set(func() { progress = func() time.Time { return stuck } })
	testmode.Eventually(t, "the pause of a wedged job", func() bool { return paused(t, s, id) })
	if since := time.Since(stuck); since < 400*time.Millisecond {
		t.Errorf("paused %s after the last progress, before it stalled", since)
	}
	events, err := s.Events(t.Context(), id, 0, 100)
	if err != nil || !slices.ContainsFunc(events, func(e store.Event) bool { return e.Type == lifecycle.EntryStalled }) {
		t.Errorf("no hold.stalled among %d events, %v", len(events), err)
	}
}

func TestIdleCountsFromTheEndOfTheProcess(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	ended := time.Now().Add(time.Hour)
	b.set(func() {
		b.activity = func() (agentapi.Activity, error) {
			now := time.Now()
			if now.Before(ended) {
				p := agentapi.Process{PID: 7, Command: "make", Since: now, LastProgress: now}
				return agentapi.Activity{Now: now, Processes: []agentapi.Process{p}}, nil
			}
			return agentapi.Activity{Now: now, LastEnd: ended}, nil
		}
	})
	id := create(t, s, CreateRequest{Settings: idleSoon})
	staysAwake(t, s, id)
	b.set(func() { ended = time.Now() })
	testmode.Eventually(t, "the pause", func() bool { return paused(t, s, id) })
	if since := record(t, s, id).PausedAt.Sub(ended); since < idleSoon.IdleTimeout {
		t.Errorf("paused %s after the end, want %s at least", since, idleSoon.IdleTimeout)
	}
}

func TestLeaseKeepsAwake(t *testing.T) {
	s, _ := newBench(t).open()
	id := create(t, s, CreateRequest{Settings: idleSoon})
	l, err := s.Hold(t.Context(), id, lifecycle.Lease{Reason: "thinking", Until: ids.Now().Add(time.Hour)}, "")
	if err != nil {
		t.Fatal(err)
	}
	staysAwake(t, s, id)
	if err := s.ReleaseHold(t.Context(), id, l.ID, ""); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "the pause", func() bool { return paused(t, s, id) })
	if _, err := s.Hold(t.Context(), id, lifecycle.Lease{Reason: "late", Until: ids.Now().Add(time.Hour)}, ""); !errdef.Is(err, errdef.WrongState) {
		t.Errorf("hold on a paused sandbox: %v", err)
	}
}

func TestMissingTelemetryNeverKills(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	b.set(func() {
		b.activity = func() (agentapi.Activity, error) { return agentapi.Activity{}, errors.New("no telemetry") }
	})
	settings := idleSoon
	settings.OnTimeout, settings.AutoResume = lifecycle.Kill, false
	id := create(t, s, CreateRequest{Settings: settings})
	staysAwake(t, s, id)
	b.set(func() { b.activity = nil })
	testmode.Eventually(t, "the end once telemetry is back", func() bool { return record(t, s, id).State == lifecycle.Terminated })
	if r := record(t, s, id).Tombstone.Reason; r != lifecycle.IdleTimeout {
		t.Errorf("reason %s", r)
	}
}

// TestSilenceIsExplained: while a sandbox does not tell what goes on inside, its
// idle timeout is held back, and whoever asks learns for how long.
func TestSilenceIsExplained(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	b.set(func() {
		b.activity = func() (agentapi.Activity, error) { return agentapi.Activity{}, errors.New("no telemetry") }
	})
	settings := map[string]lifecycle.Settings{
		"pauses": {IdleTimeout: time.Hour, OnIdle: lifecycle.Pause},
		"kills":  {IdleTimeout: time.Hour, OnIdle: lifecycle.Kill},
		"never":  {},
	}
	for name, set := range settings {
		id := create(t, s, CreateRequest{Settings: set})
		before := time.Now().UTC().Truncate(time.Microsecond)
		x, err := s.Explain(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		got := x.Blindness
		if got.Since.Before(before) || got.Since.After(time.Now()) {
			t.Errorf("%s: silent since %s, but it was asked at %s", name, got.Since, before)
		}
		want := awake.Blindness{Since: got.Since, Defers: name != "never"}
		if name == "pauses" {
			want.Until = got.Since.Add(2 * time.Minute)
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if again := s.Outlooks(t.Context(), []string{id, "inope"}); len(again) != 1 || again[id].Blindness != got {
			t.Errorf("%s: the outlook is %+v, want %+v", name, again, got)
		}
	}
}

// TestOutlooksLookInside: what keeps a sandbox awake is known without waiting
// for its idle timeout, and looking again has to wait.
func TestOutlooksLookInside(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	var looks atomic.Int64
	b.set(func() {
		b.activity = func() (agentapi.Activity, error) {
			looks.Add(1)
			p := agentapi.Process{PID: 7, Root: 7, Command: "make", Since: time.Now(), LastProgress: time.Now()}
			return agentapi.Activity{Now: time.Now(), Processes: []agentapi.Process{p}}, nil
		}
	})
	idle := create(t, s, CreateRequest{Settings: lifecycle.Settings{IdleTimeout: time.Hour}})
	other := create(t, s, CreateRequest{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if x := s.Outlooks(gone, []string{idle})[idle]; len(x.Holds) != 0 || looks.Load() != 0 {
		t.Errorf("looked for nobody: %+v", x.Holds)
	}
	began := time.Now()
	for range 3 {
		x := s.Outlooks(t.Context(), []string{idle, other})
		if len(x) != 2 || len(x[idle].Holds) != 1 || x[idle].Holds[0].Kind != awake.HoldProcess || len(x[other].Holds) != 0 {
			t.Errorf("outlooks %+v", x)
		}
	}
	n := looks.Load()
	if n != 1 && time.Since(began) < 5*time.Second {
		t.Errorf("looked %d times, want once", n)
	}
	if err := s.Pause(t.Context(), idle, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if x := s.Outlooks(t.Context(), []string{idle})[idle]; x.Sandbox.Record.State != lifecycle.Paused || len(x.Holds) != 0 || looks.Load() != n {
		t.Errorf("asleep: %+v", x)
	}
}

func TestActivityRefreshesTheTimeout(t *testing.T) {
	s, _ := newBench(t).open()
	const timeout = 3 * time.Second // longer than a loaded machine stands still
	settings := lifecycle.Settings{Timeout: timeout, OnTimeout: lifecycle.Kill, RefreshOnActivity: lifecycle.RefreshOnWork}
	id := create(t, s, CreateRequest{Settings: settings})
	var last time.Time
	for end := time.Now().Add(timeout + time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		last = time.Now()
		if _, _, err := count(t.Context(), s, id); err != nil {
			t.Fatal(err)
		}
	}
	sb, err := s.Get(t.Context(), id)
	if err != nil || sb.Record.EndAt.Before(last) {
		t.Fatalf("endAt %s, %v; want it after the last activity", sb.Record.EndAt, err)
	}
	testmode.Eventually(t, "the end", func() bool { return record(t, s, id).State == lifecycle.Terminated })
	if at := record(t, s, id).Tombstone.At; at.Sub(last) < timeout {
		t.Errorf("ended %s after the last activity", at.Sub(last))
	}
}

// TestRefreshRespectsWork: with refreshOnActivity the soft timeout is time
// without work, so a request, a stream or a process that takes longer than the
// timeout ends by itself, and the timeout counts from there. Time is virtual.
func TestRefreshRespectsWork(t *testing.T) {
	const timeout, work = 3 * time.Second, 7 * time.Second
	for name, begin := range map[string]func(t *testing.T, w *world, s *Supervisor, id string) (end func()){
		"request": func(t *testing.T, _ *world, s *Supervisor, id string) func() {
			return mustAcquire(t, s, id, Access{Port: counterPort}).Release
		},
		"stream": func(t *testing.T, _ *world, s *Supervisor, id string) func() {
			return mustAcquire(t, s, id, Access{Port: counterPort, Stream: true}).Release
		},
		"process": func(t *testing.T, w *world, _ *Supervisor, _ string) func() {
			ended := time.Now().Add(work)
			told := func(*program) (agentapi.Activity, error) {
				if !time.Now().Before(ended) {
					return agentapi.Activity{Now: time.Now(), LastEnd: ended}, nil
				}
				p := agentapi.Process{PID: 7, Root: 7, Command: "make", Since: time.Now(), LastProgress: time.Now()}
				return agentapi.Activity{Now: time.Now(), Processes: []agentapi.Process{p}}, nil
			}
			w.later.Store(&told)
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			synctest.Test(t, func(t *testing.T) {
				srv := w.mustOpen(t)
				settings := lifecycle.Settings{Timeout: timeout, OnTimeout: lifecycle.Kill, RefreshOnActivity: lifecycle.RefreshOnWork}
				id := create(t, srv.s, CreateRequest{Settings: settings})
				end := begin(t, w, srv.s, id)
				began := time.Now()
				time.Sleep(work - time.Millisecond)
				if sb, err := srv.s.Get(t.Context(), id); err != nil || sb.Record.EndAt.Before(time.Now()) {
					t.Errorf("during the work: ends at %s, %v", sb.Record.EndAt, err)
				}
				time.Sleep(time.Millisecond)
				end()
				time.Sleep(timeout + 2*time.Second)
				ts := record(t, srv.s, id).Tombstone
				if ts == nil || ts.Reason != lifecycle.TimeoutExpired {
					t.Fatalf("after the work and the timeout: %+v", ts)
				}
				if took := ts.At.Sub(began); took < work+timeout || took > work+timeout+time.Second {
					t.Errorf("ended %s after the work began, want %s", took, work+timeout)
				}
				w.end(t, srv)
			})
		})
	}
}

// TestRefreshOnRequests: with "requests" a process that runs on holds no timeout
// back; a hold that somebody asked for inside does. Time is virtual.
func TestRefreshOnRequests(t *testing.T) {
	const timeout, held = 10 * time.Second, 25 * time.Second
	server := []agentapi.Process{{PID: 7, Root: 7, Command: "serve"}}
	for name, tt := range map[string]struct {
		idle time.Duration
		told func(since time.Duration) agentapi.Activity
		want time.Duration // from the last request
	}{
		"process":                      {0, func(time.Duration) agentapi.Activity { return agentapi.Activity{} }, timeout},
		"process, and an idle timeout": {time.Hour, func(time.Duration) agentapi.Activity { return agentapi.Activity{} }, timeout},
		"process that ends": {0, func(since time.Duration) agentapi.Activity {
			return agentapi.Activity{LastEnd: time.Now().Add(min(0, 5*time.Second-since))}
		}, timeout},
		"hold": {0, func(since time.Duration) agentapi.Activity {
			if since >= held {
				return agentapi.Activity{LastRelease: time.Now().Add(held - since)}
			}
			return agentapi.Activity{Leases: []agentapi.HeldWork{{ID: "h1", Reason: "nightly", Until: time.Now().Add(held - since)}}}
		}, held + timeout},
		"hold that is released early": {0, func(since time.Duration) agentapi.Activity {
			if since >= held {
				return agentapi.Activity{LastRelease: time.Now().Add(held - since)}
			}
			return agentapi.Activity{Leases: []agentapi.HeldWork{{ID: "h1", Reason: "nightly", Until: time.Now().Add(time.Hour - since)}}}
		}, held + timeout},
		"hold that is released before anybody looks": {0, func(since time.Duration) agentapi.Activity {
			return agentapi.Activity{LastRelease: time.Now().Add(min(0, 5*time.Second-since))}
		}, 5*time.Second + timeout},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			synctest.Test(t, func(t *testing.T) {
				srv := w.mustOpen(t)
				defer w.powerOff()
				defer func() { _ = srv.s.Stop(context.Background()) }()
				settings := lifecycle.Settings{Timeout: timeout, IdleTimeout: tt.idle, OnTimeout: lifecycle.Kill, RefreshOnActivity: lifecycle.RefreshOnRequests}
				id := create(t, srv.s, CreateRequest{Settings: settings})
				time.Sleep(7 * time.Second)
				mustAcquire(t, srv.s, id, Access{Port: counterPort}).Release()
				last := time.Now()
				told := func(*program) (agentapi.Activity, error) {
					a := tt.told(time.Since(last))
					a.Now, a.Processes = time.Now(), slices.Clone(server)
					a.Processes[0].Since, a.Processes[0].LastProgress = last, time.Now()
					return a, nil
				}
				w.later.Store(&told)
				time.Sleep(tt.want - time.Second)
				x, err := srv.s.Explain(t.Context(), id)
				if err != nil || x.Sandbox.Record.State != lifecycle.Running {
					t.Fatalf("before its end: %+v, %v", x, err)
				}
				if i := slices.IndexFunc(x.Holds, func(h awake.Hold) bool { return h.Kind == awake.HoldProcess }); x.Holds[i].Counts != (tt.idle > 0) {
					t.Errorf("the process is said to be %+v", x.Holds[i])
				}
				time.Sleep(2 * time.Second)
				if ts := record(t, srv.s, id).Tombstone; ts == nil || ts.Reason != lifecycle.TimeoutExpired || ts.At.Sub(last).Round(time.Second) != tt.want {
					t.Errorf("ended %+v, want it %s after %s", ts, tt.want, last)
				}
			})
		})
	}
}

func mustAcquire(t *testing.T, s *Supervisor, id string, a Access) *Lease {
	t.Helper()
	lease, err := s.Acquire(t.Context(), id, a)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestLifetimeEndsAPausedSandbox(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, MaxLifetime: time.Hour}})
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	life := time.Since(record(t, s, id).CreatedAt) + 300*time.Millisecond // only now, so that it cannot end before the pause
	if _, err := s.Patch(t.Context(), id, Patch{Settings: lifecycle.Patch{MaxLifetime: &life}}, ""); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "the end", func() bool { r := record(t, s, id); return r.State == lifecycle.Terminated && r.Op == nil })
	if r := record(t, s, id).Tombstone.Reason; r != lifecycle.MaxLifetimeExceeded {
		t.Errorf("reason %s", r)
	}
	b.wantNothingLeft()
}

func TestFilesystemPause(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	wantCount(t, s, id, 1, 1)
	if err := s.Pause(t.Context(), id, PauseRequest{Mode: lifecycle.Filesystem}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := count(t.Context(), s, id); !errdef.Is(err, errdef.WrongState) {
		t.Errorf("traffic on a filesystem pause: %v, want wrong_state", err)
	}
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, id, 1, 2) // a fresh boot
	if err := s.Kill(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	b.wantNothingLeft()
}

func TestWakeQueueIsBounded(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	s.o.WakeQueue = 3
	release := make(chan struct{})
	id := create(t, s, CreateRequest{Settings: sleepy})
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	b.set(func() { b.boot = func() error { <-release; return nil } })
	results := make(chan error, 10)
	for range 10 {
		go func() { _, _, err := count(t.Context(), s, id); results <- err }()
	}
	for range 7 {
		if err := <-results; !errdef.Is(err, errdef.Unavailable) {
			t.Errorf("above the bound: %v, want unavailable", err)
		}
	}
	close(release)
	for range 3 {
		if err := <-results; err != nil {
			t.Errorf("within the bound: %v", err)
		}
	}
}

func TestMaxRunning(t *testing.T) {
	s, _ := newBench(t).open()
	s.slots.Bound(1, nil)
	id := create(t, s, CreateRequest{})
	req := CreateRequest{Template: "test", Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Kill}}
	if _, err := s.Create(t.Context(), req); !errdef.Is(err, errdef.Exhausted) {
		t.Errorf("second: %v, want exhausted", err)
	}
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), req); err != nil {
		t.Errorf("beside a paused one: %v", err)
	}
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); !errdef.Is(err, errdef.Exhausted) {
		t.Errorf("resume above the bound: %v, want exhausted", err)
	}
}

func TestPatchAndEvents(t *testing.T) {
	s, _ := newBench(t).open()
	id := create(t, s, CreateRequest{})
	changed := s.Changed()
	on := lifecycle.Pause
	sb, err := s.Patch(t.Context(), id, Patch{Settings: lifecycle.Patch{OnTimeout: &on}, Metadata: map[string]string{"a": "b"}}, "key")
	if err != nil || sb.Record.Settings.OnTimeout != on || sb.Config.Metadata["a"] != "b" {
		t.Fatalf("patched: %+v, %v", sb, err)
	}
	select {
	case <-changed:
	case <-time.After(testmode.Patience()):
		t.Error("the change was not announced")
	}
	auto := true
	kill := lifecycle.Kill
	if _, err := s.Patch(t.Context(), id, Patch{Settings: lifecycle.Patch{OnTimeout: &kill, AutoResume: &auto}, Metadata: map[string]string{}}, ""); !errdef.Is(err, errdef.Invalid) {
		t.Errorf("contradicting patch: %v", err)
	}
	if sb, _ := s.Find(t.Context(), id); sb.Config.Metadata["a"] != "b" {
		t.Error("a refused patch changed the metadata")
	}
	if err := s.Kill(t.Context(), id, "key"); err != nil {
		t.Fatal(err)
	}
	var types []lifecycle.EntryType
	events, err := s.Events(t.Context(), id, 0, 100)
	for _, e := range events {
		types = append(types, e.Type)
	}
	want := []lifecycle.EntryType{"created", "running", "updated", "terminated"}
	if err != nil || !slices.Equal(types, want) {
		t.Errorf("events %v, %v; want %v", types, err, want)
	}
	e, err := s.Explain(t.Context(), id)
	if err != nil || e.Sandbox.Record.Tombstone == nil || len(e.Transitions) != 4 || e.Transitions[0].Type != "terminated" {
		t.Errorf("explanation of a dead one: %+v, %v", e, err)
	}
}
