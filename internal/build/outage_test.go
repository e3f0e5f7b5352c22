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
