package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// repeatable are the calls that make a sandbox and take an idempotency key.
var repeatable = map[string]struct {
	call func(f *faults, key string) (id string, err error)
	// What is on disk of the new sandbox at the crashes that must occur.
	states []lifecycle.State
	is     lifecycle.State // of the sandbox that the call makes
}{
	"create": {
		call: func(f *faults, key string) (string, error) {
			sb, err := f.s.client.Create(f.ctx, client.CreateOptions{Timeout: time.Hour, IdempotencyKey: key})
			if err != nil {
				return "", err
			}
			return sb.ID, nil
		},
		states: []lifecycle.State{"", lifecycle.Pending, lifecycle.Running},
		is:     lifecycle.Running,
	},
	"import": {
		call: func(f *faults, key string) (string, error) {
			info, err := f.s.client.Import(f.ctx, bytes.NewReader(f.export), client.ImportOptions{NewID: true, IdempotencyKey: key})
			return info.ID, err
		},
		states: []lifecycle.State{"", lifecycle.Paused},
		is:     lifecycle.Paused,
	},
}

// TestOnceOverCrashes kills the server at each commit of a call that makes a
// sandbox, just before it and just after, so that the client gets no answer. The
// client sends the call again with the same key. Where the sandbox had come up, or
// had come in, it gets that very one, and in no case are there two.
func TestOnceOverCrashes(t *testing.T) {
	t.Parallel()
	f := startFaulty(deadline(t, 6*time.Minute), t, 0)
	for name, o := range repeatable {
		seen := map[lifecycle.State]bool{}
		for _, point := range []failpoint.Point{failpoint.CommitBegin, failpoint.Committed} {
			for nth := 1; f.crashed(name, point, nth, o.call, o.is, seen); nth++ {
			}
		}
		for _, state := range o.states {
			if !seen[state] {
				t.Errorf("%s: no crash left the sandbox %q: %v", name, state, seen)
			}
		}
	}
	f.end()
}

// crashed makes the call, with a crash at the nth pass of a point, and again. It
// notes in which state the crash has left the sandbox, and returns false if the
// call does not come to the point so often.
func (f *faults) crashed(name string, point failpoint.Point, nth int, call func(*faults, string) (string, error), is lifecycle.State, seen map[lifecycle.State]bool) bool {
	f.t.Helper()
	what := fmt.Sprintf("%s, crash at pass %d of %s", name, nth, point)
	key := fmt.Sprintf("%s-%s-%d", name, point, nth)
	f.arm(failpoint.Armed{Point: point, Fault: failpoint.Crash, Nth: nth})
	id, err := call(f, key)
	f.disarm()
	if err == nil {
		if err := f.kill(id); err != nil {
			f.t.Error(err)
		}
		return false
	}
	if err := <-f.s.exited; !killed(err) {
		f.t.Fatalf("%s: the server ended with %v", what, err)
	}
	f.s.cmd = nil
	was := f.under(key)
	if len(was) > 1 {
		f.t.Fatalf("%s: made %d sandboxes", what, len(was))
	}
	var left store.Sandbox
	if len(was) == 1 {
		left = was[0]
	}
	seen[left.Record.State] = true
	f.s.start()

	for try := range 2 {
		id, err = call(f, key)
		if err != nil {
			f.t.Fatalf("%s: try %d after it: %v", what, try+1, err)
		}
		if left.Record.State == is && id != left.ID {
			f.t.Errorf("%s: had made %s, and try %d made %s", what, left.ID, try+1, id)
		}
	}
	alive := 0
	for _, sb := range f.under(key) {
		if sb.Record.State != lifecycle.Terminated {
			alive++
		}
		if sb.ID == id && sb.Record.State != is {
			f.t.Errorf("%s: it is %s, want %s", what, sb.Record.State, is)
		}
	}
	if alive != 1 {
		f.t.Errorf("%s: %d sandboxes are there under one key", what, alive)
	}
	if err := f.kill(id); err != nil {
		f.t.Error(err)
	}
	return true
}

// under returns what the store has of sandboxes that were made with an
// idempotency key.
func (f *faults) under(key string) []store.Sandbox {
	f.t.Helper()
	all, err := f.db.Sandboxes(f.ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	var made []store.Sandbox
	for _, sb := range all {
		if as := sb.Config.Idempotency; as != nil && as.Key == key {
			made = append(made, sb)
		}
	}
	return made
}

// TestConnectOverCrashes kills the server at each commit of a resume that changes
// settings and metadata too, of a sandbox that sleeps and of one that runs: all of
// it has happened then, or nothing.
func TestConnectOverCrashes(t *testing.T) {
	t.Parallel()
	f := startFaulty(deadline(t, 6*time.Minute), t, 0)
	sb := f.s.create(f.ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, IdleTimeout: 2 * time.Hour, Metadata: map[string]string{"is": "old"}})
	outcomes := map[string]bool{}
	for _, state := range []lifecycle.State{lifecycle.Paused, lifecycle.Running} {
		for _, point := range []failpoint.Point{failpoint.CommitBegin, failpoint.Committed} {
			for nth := 1; ; nth++ {
				f.bring(sb.ID, state)
				old := client.PatchOptions{IdleTimeout: new(2 * time.Hour), Metadata: map[string]string{"is": "old"}}
				before, err := f.s.client.Patch(f.ctx, sb.ID, old)
				if err != nil {
					t.Fatal(err)
				}
				what := fmt.Sprintf("of a %s one, crash at pass %d of %s", state, nth, point)
				f.arm(failpoint.Armed{Point: point, Fault: failpoint.Crash, Nth: nth})
				err = f.connectAnew(sb.ID)
				f.disarm()
				if err == nil {
					break
				}
				if err := <-f.s.exited; !killed(err) {
					t.Fatalf("%s: the server ended with %v", what, err)
				}
				f.s.cmd = nil
				f.s.start()
				if err := poll(time.Minute, func() error { return f.idle(sb.ID) }); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				after, err := f.s.client.Get(f.ctx, sb.ID)
				if err != nil {
					t.Fatal(err)
				}
				outcomes[f.outcome(what, before, after)] = true
			}
		}
	}
	if !outcomes["all of it"] || !outcomes["nothing"] {
		t.Errorf("the crashes left %v", outcomes)
	}
	f.end()
}

// connectAnew resumes a sandbox, or extends it, with other settings and metadata.
func (f *faults) connectAnew(id string) error {
	header := http.Header{"X-Api-Key": {apiKey}, "Content-Type": {"application/json"}}
	const body = `{"timeoutSeconds": 7200, "idleTimeoutSeconds": 1200, "metadata": {"is": "new"}}`
	got, err := f.s.raw(f.ctx, http.MethodPost, "/v1/sandboxes/"+id+"/resume", header, strings.NewReader(body))
	if err == nil && got.status != http.StatusOK {
		f.t.Fatalf("resume: status %d: %s", got.status, got.body)
	}
	return err
}

// idle reports whether no operation is in flight.
func (f *faults) idle(id string) error {
	if op := f.records()[id].Op; op != nil {
		return fmt.Errorf("%s is in flight", op.Phase)
	}
	return nil
}

// outcome says whether all of a resume has happened or nothing of it.
func (f *faults) outcome(what string, before, after client.Info) string {
	f.t.Helper()
	changed := after.Settings.IdleTimeout == 20*time.Minute && after.Metadata["is"] == "new"
	same := after.Settings.IdleTimeout == 2*time.Hour && after.Metadata["is"] == "old"
	extended := after.State == client.Running && time.Until(after.EndAt) > 90*time.Minute
	switch {
	case changed && extended:
		return "all of it"
	case same && after.State == before.State && after.EndAt.Equal(before.EndAt) && after.Generation == before.Generation:
		return "nothing"
	}
	f.t.Errorf("%s: half of it has happened: %s, until %s, %+v, %v", what, after.State, after.EndAt, after.Settings, after.Metadata)
	return "half"
}
