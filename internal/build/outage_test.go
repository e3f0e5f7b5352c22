package build

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

var errAway = errdef.New(errdef.Unavailable, "store_unavailable", "the database does not answer")

// away is what fails while the database does.
type away struct{ templates, ends, drops bool }

// is has the database go away, or come back.
func (a away) is(w *world, away bool) {
	w.put.as(nil)
	if away && a.templates {
		w.put.as(func(Template, func(Template) error) error { return errAway })
	}
	w.shop.mu.Lock()
	defer w.shop.mu.Unlock()
	w.ends, w.drops = nil, nil
	if away && a.ends {
		w.ends = errAway
	}
	if away && a.drops {
		w.drops = errAway
	}
}

// TestBuildEndsWhileTheDatabaseIsAway: the build is over when the database is back, and leaves
// nothing. The next one of its template waits until its end is stored.
func TestBuildEndsWhileTheDatabaseIsAway(t *testing.T) {
	const long = 10 * leaveWithin
	for name, c := range map[string]struct {
		away  away
		steps []Step
		want  Status
	}{
		"what a step has led to":    {away{templates: true}, []Step{run("block")}, Failed},
		"the end of a failed build": {away{templates: true}, []Step{run("block"), run("exit 1")}, Failed},
		"its sandbox":               {away{ends: true}, []Step{run("block"), run("exit 1")}, Failed},
		"the sandbox of its steps":  {away{ends: true}, []Step{run("block")}, Failed},
		"what it replaces":          {away{drops: true}, []Step{run("block")}, Ready},
		"all":                       {away{true, true, true}, []Step{run("block")}, Failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.make("tpl", recipe(run("old")))
				id := w.start("tpl", recipe(append([]Step{run("one")}, c.steps...)...))
				<-w.blocked
				next := w.start("tpl", recipe(run("next")))
				w.commands()
				c.away.is(w, true)
				close(w.block)
				time.Sleep(long)
				if ran := w.commands(); c.away.templates && slices.Contains(ran, "next") {
					t.Errorf("ran %q while the end of the build before was not stored", ran)
				}
				c.away.is(w, false)
				if b := w.await("tpl", id); b.Status != c.want {
					t.Errorf("%s: %+v, want %s", b.Status, b.Reason, c.want)
				}
				if b := w.await("tpl", next); c.away.templates && b.Status != Ready {
					t.Errorf("the next build: %s, %+v", b.Status, b.Reason)
				}
				w.clean()
				w.none()
			})
		})
	}
}

// none checks that the builder takes no build for one that runs, when the last is over.
func (w *world) none() {
	w.Helper()
	w.work.Wait()
	w.Builder.mu.Lock()
	defer w.Builder.mu.Unlock()
	if n := len(w.cancels); n > 0 {
		w.Errorf("%d builds are taken for some that run", n)
	}
}

// TestEndWithoutAnAnswer: the end of a build is stored, and the answer is lost. What the build has
// replaced goes nevertheless, and its log says once why it failed.
func TestEndWithoutAnAnswer(t *testing.T) {
	for want, last := range map[Status]Step{Ready: run("two"), Failed: run("exit 1")} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.make("tpl", recipe(run("old")))
			_, b, err := w.Request(Request{Name: "tpl", Key: "k1"})
			if err != nil {
				t.Fatal(err)
			}
			lost := false
			w.put.as(func(t Template, put func(Template) error) error {
				err := put(t)
				if x := t.Build(b.ID); x.Status.Over() && err == nil && !lost {
					lost = true
					return store.ErrUnlearned(errAway)
				}
				return err
			})
			if err := w.Start("tpl", b.ID, recipe(run("one"), last)); err != nil {
				t.Fatal(err)
			}
			if b := w.await("tpl", b.ID); b.Status != want {
				t.Errorf("%s: %+v, want %s", b.Status, b.Reason, want)
			}
			w.clean()
			p, err := w.Progress("tpl", b.ID, 0, 100)
			said := 0
			for _, l := range p.Lines {
				if l.Level == Error {
					said++
				}
			}
			if err != nil || said > 1 || !lost {
				t.Errorf("%v: the log has %d errors; the answer was lost: %t", err, said, lost)
			}
		})
	}
}

// TestServerStopsWhileTheDatabaseIsAway: the server stops at once, and the next start finds the
// build unfinished.
func TestServerStopsWhileTheDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := w.start("tpl", recipe(run("one"), run("block")))
		<-w.blocked
		all := away{true, true, true}
		all.is(w, true)
		close(w.block)
		time.Sleep(time.Minute)
		began := time.Now()
		w.Stop()
		if d := time.Since(began); d > 0 {
			t.Errorf("the server stopped after %v", d)
		}
		all.is(w, false)
		w.open()
		w.clean()
		if b := w.await("tpl", id); b.Status != Failed || !strings.Contains(b.Reason.Text, "server was stopped") {
			t.Errorf("%s: %+v", b.Status, b.Reason)
		}
	})
}

// TestStartWithoutAnAnswer: a start whose answer is lost is learned when the database is back. The
// build runs once if it was stored, whenever that was, and else waits to be started again.
func TestStartWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		stored    bool                                              // at once
		meanwhile func(w *world, id string, put func() error) error // while the database is away
		again     string                                            // the code of a start after that
		ran       []string
	}{
		"stored":     {true, nil, "build_started", []string{"one"}},
		"not stored": {false, nil, "", []string{"again"}},
		"stored later": {false, func(_ *world, _ string, put func() error) error {
			return put()
		}, "build_started", []string{"one"}},
		"known from elsewhere": {true, func(w *world, _ string, _ func() error) error {
			return w.Refresh(w.Context())
		}, "build_started", []string{"one"}},
		"deleted": {true, func(w *world, _ string, _ func() error) error {
			return w.Delete(w.Context(), "tpl")
		}, "template_not_found", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				tpl, b, err := w.Request(Request{Name: "tpl", Key: "k1"})
				if err != nil {
					t.Fatal(err)
				}
				var put func() error
				w.put.as(func(t Template, as func(Template) error) error {
					if put != nil {
						return errAway
					}
					if put = func() error { return as(t) }; c.stored {
						if err := put(); err != nil {
							return err
						}
					}
					return store.ErrUnlearned(errAway)
				})
				if err := w.Start("tpl", b.ID, recipe(run("one"))); !store.IsUnlearned(err) {
					t.Fatalf("the start: %v", err)
				}
				synctest.Wait()
				if c.meanwhile == nil {
					w.put.as(nil) // it is back, and has not been asked yet
					class(t, w.Start("tpl", b.ID, recipe(run("meanwhile"))), errdef.Unavailable, "store_unavailable")
				} else if err := c.meanwhile(w, b.ID, put); err != nil {
					t.Fatal(err)
				}
				w.put.as(nil)
				time.Sleep(again)
				synctest.Wait()
				if err := w.Builder.Start(t.Context(), tpl.ID, b.ID, recipe(run("again"))); errdef.CodeOf(err) != c.again {
					t.Errorf("a start after that: %v, want code %q", err, c.again)
				}
				if c.ran != nil {
					if b := w.await("tpl", b.ID); b.Status != Ready {
						t.Errorf("%s: %+v", b.Status, b.Reason)
					}
				}
				w.none()
				w.clean()
				if got := w.commands(); !slices.Equal(got, c.ran) {
					t.Errorf("ran %q, want %q", got, c.ran)
				}
			})
		})
	}
}

// TestStartThatFails: a start that is not stored leaves nothing of the build, which can be started
// again.
func TestStartThatFails(t *testing.T) {
	w := newWorld(t)
	_, b, err := w.Request(Request{Name: "tpl", Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	gone := away{templates: true}
	gone.is(w, true)
	class(t, w.Start("tpl", b.ID, recipe(run("one"))), errdef.Unavailable, "store_unavailable")
	w.none()
	gone.is(w, false)
	if err := w.Start("tpl", b.ID, recipe(run("one"))); err != nil {
		t.Fatal(err)
	}
	if b := w.await("tpl", b.ID); b.Status != Ready {
		t.Errorf("%s: %+v", b.Status, b.Reason)
	}
}
