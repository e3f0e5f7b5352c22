package e2e

import (
	"bytes"
	"fmt"
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
