package commits

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// database is a store with one sandbox, whose answers are told in advance.
type database struct {
	has     store.Sandbox
	answers []error // of the next commits
	happens []bool  // which of them happen
	heard   []error
}

func (d *database) Self() string { return "one" }

func (d *database) Sandbox(context.Context, string) (store.Sandbox, error) { return d.has, nil }

func (d *database) CommitEnd(context.Context, store.Sandbox, []lifecycle.Entry) ([]string, error) {
	return nil, errors.New("nothing ends here")
}

func (d *database) commit(_ context.Context, sb store.Sandbox, _ []lifecycle.Entry, _ *store.Snapshot) error {
	answer, happens := d.answers[0], d.happens[0]
	d.answers, d.happens = d.answers[1:], d.happens[1:]
	if sb.Rev != d.has.Rev && answer == nil {
		answer, happens = store.ErrChanged(sb.ID), false
	}
	if happens {
		d.has.Rev++
	}
	return answer
}

func (d *database) Allows(*lifecycle.Operation, *lifecycle.Operation) error { return nil }

func (d *database) Heard(err error) error {
	d.heard = append(d.heard, err)
	return err
}

// TestSettle: what is in doubt is tried again until it is known, and has happened once, or never.
func TestSettle(t *testing.T) {
	lost, broken := store.ErrUnlearned(errors.New("no answer")), errors.New("broken")
	full := errdef.New(errdef.Exhausted, "key_limit_reached", "the key is full")
	for what, c := range map[string]struct {
		answers []error
		happens []bool
		want    string // of each try
		learned int
	}{
		"in time":                        {[]error{nil}, []bool{true}, "stored", 0},
		"refused":                        {[]error{full}, []bool{false}, "refused", 0},
		"broken":                         {[]error{broken}, []bool{false}, "refused", 0},
		"happened":                       {[]error{lost, nil}, []bool{true, false}, "unknown stored", 1},
		"not happened":                   {[]error{lost, nil}, []bool{false, true}, "unknown stored", 1},
		"away meanwhile":                 {[]error{lost, broken, lost, nil}, []bool{true, false, false, false}, "unknown unknown unknown stored", 1},
		"not happened, and may not now":  {[]error{lost, full}, []bool{false, false}, "unknown refused", 0},
		"happened, and might not now":    {[]error{lost, full}, []bool{true, false}, "unknown stored", 1},
		"another process has the server": {[]error{lost, store.ErrFenced("one")}, []bool{true, false}, "unknown unknown", 0},
	} {
		t.Run(what, func(t *testing.T) {
			d := &database{has: store.Sandbox{ID: "i", Owner: "one", Rev: 7}, answers: c.answers, happens: c.happens}
			x := New(t.Context(), Options{Store: d, Commit: d.commit, Tenure: d, Later: func() bool { return false }, Go: func(f func()) { f() }, Log: slog.New(slog.DiscardHandler)})
			learned := 0
			l := &Last{Mu: noLock{}, Learned: func() { learned++ }}
			var got []string
			err := x.Commit(l, &Change{
				Sandbox: d.has,
				Stored: func(sb store.Sandbox) {
					if got = append(got, "stored"); sb.Rev != d.has.Rev {
						t.Errorf("it has revision %d, and %d in the store", sb.Rev, d.has.Rev)
					}
				},
				Refused: func() { got = append(got, "refused") },
			})
			for ; !l.Known(); err = x.Settle(l) {
				if got = append(got, "unknown"); err == nil {
					t.Error("what is in doubt is no error")
				}
				if len(d.answers) == 0 {
					break
				}
			}
			if fenced := errdef.Is(errors.Join(d.heard...), errdef.Fenced); fenced != (what == "another process has the server") {
				t.Errorf("it is heard that the server is fenced: %t", fenced)
			}
			if text := fmt.Sprint(got); text != "["+c.want+"]" || learned != c.learned {
				t.Errorf("%s, learned %d times; want %s, %d", text, learned, c.want, c.learned)
			}
		})
	}
}

// TestSettleWhatFollows: a change that another one has led to can be in doubt as well.
func TestSettleWhatFollows(t *testing.T) {
	lost := store.ErrUnlearned(errors.New("no answer"))
	d := &database{has: store.Sandbox{ID: "i", Owner: "one", Rev: 7}, answers: []error{lost, nil, lost, lost, nil}, happens: []bool{true, false, true, false, false}}
	var mu sync.Mutex
	x := New(t.Context(), Options{Store: d, Commit: d.commit, Tenure: d, Later: func() bool { return false }, Go: func(func()) {}, Log: slog.New(slog.DiscardHandler)})
	l := &Last{Mu: &mu, Learned: func() {}}
	var sb store.Sandbox
	second := 0
	first := &Change{Sandbox: d.has, Stored: func(now store.Sandbox) {
		sb = now
		_ = x.Commit(l, &Change{Sandbox: now, Stored: func(now store.Sandbox) { sb = now; second++ }})
	}}
	if err := x.Commit(l, first); !store.IsUnlearned(err) {
		t.Fatal(err)
	}
	if err := x.Commit(l, &Change{Sandbox: d.has}); err == nil {
		t.Error("something happens to the sandbox while the last change is in doubt")
	}
	if err := x.Settle(l); !store.IsUnlearned(err) || second != 0 || l.Known() {
		t.Errorf("while what follows is in doubt: %v, %d", err, second)
	}
	if err := x.Settle(l); err != nil || second != 1 || !l.Known() || sb.Rev != d.has.Rev {
		t.Errorf("then: %v, %d, revision %d and %d in the store", err, second, sb.Rev, d.has.Rev)
	}
}

// noLock is a lock that nobody else takes.
type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}
