package tenure

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// lapsed is a lease that has lapsed, for ever or until another process claims the server.
type lapsed chan struct{}

var errLapsed = errors.New("lapsed")

func (l lapsed) Check() error {
	select {
	case <-l:
		return store.ErrFenced("one")
	default:
		return errLapsed
	}
}

func (l lapsed) Wait(ctx context.Context) error {
	select {
	case <-l:
	case <-ctx.Done():
	}
	return l.Check()
}

func (l lapsed) Fenced() <-chan struct{} { return l }

// TestNoLease: a process that needs no lease may do everything, until the store refuses
// what it writes.
func TestNoLease(t *testing.T) {
	x := New(nil, nil)
	op := &lifecycle.Operation{ID: "a"}
	if err := errors.Join(x.Over(), x.Check(), x.Wait(t.Context()), x.Allows(nil, op)); err != nil {
		t.Error(err)
	}
	if err := x.Heard(errLapsed); err != errLapsed || x.Over() != nil {
		t.Errorf("%v; then %v", err, x.Over())
	}
	why := store.ErrFenced("one")
	_ = x.Heard(why)
	_ = x.Heard(store.ErrFenced("two"))
	for _, err := range []error{x.Over(), x.Check(), x.Wait(t.Context()), x.Allows(nil, op), x.Allows(op, nil)} {
		if err != why {
			t.Errorf("got %v, want %v", err, why)
		}
	}
	told := 0
	x.fenced = func() { told++ }
	x.Follow(t.Context(), func(err error) {
		if err != why || told != 1 {
			t.Errorf("ended by %v, after it was told %d times", err, told)
		}
		told++
	})
	if told != 2 {
		t.Error("nothing was ended")
	}
}

// TestAllows: while the lease has lapsed, an operation may end, and nothing else changes.
func TestAllows(t *testing.T) {
	x := New(make(lapsed), nil)
	a, b := &lifecycle.Operation{ID: "a"}, &lifecycle.Operation{ID: "b"}
	for _, c := range []struct {
		was, will *lifecycle.Operation
		want      error
	}{
		{nil, nil, errLapsed},
		{a, a, nil},
		{a, nil, nil},
		{nil, a, errLapsed},
		{a, b, errLapsed},
	} {
		if got := x.Allows(c.was, c.will); got != c.want {
			t.Errorf("from %v to %v: %v, want %v", c.was, c.will, got, c.want)
		}
	}
}

// TestWaitEnds: who waits for the lease hears that the tenure is over, whoever finds out.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, byStore := range []bool{true, false} {
			l := make(lapsed)
			x := New(l, nil)
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := x.Wait(short); err != errLapsed {
				t.Errorf("got %v, want %v", err, errLapsed)
			}
			waited, ended := make(chan error), make(chan error)
			go func() { waited <- x.Wait(t.Context()) }()
			go x.Follow(t.Context(), func(why error) { ended <- why })
			synctest.Wait()
			if byStore {
				_ = x.Heard(store.ErrFenced("one"))
			} else {
				close(l)
			}
			for _, err := range []error{<-ended, <-waited} {
				if !errdef.Is(err, errdef.Fenced) {
					t.Errorf("got %v, want class %q", err, errdef.Fenced)
				}
			}
		}
	})
}
