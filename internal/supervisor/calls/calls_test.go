package calls

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
)

// answer is what a scripted sandbox answers to one event.
type answer struct {
	res lifecycle.Result
	end *Ending // nil: the operation in flight never ends
	err error
}

// scripted is a Sandbox that answers in order, and keeps what it was asked.
type scripted struct {
	Sandbox // panics: what is not scripted is not asked
	answers []answer
	asked   []lifecycle.Event
	opened  int   // how often the network was told
	serves  int64 // which generation does; 0 for none
}

func (b *scripted) Request(ev lifecycle.Event) (lifecycle.Result, <-chan Ending, error) {
	a := b.answers[len(b.asked)]
	b.asked = append(b.asked, ev)
	ended := make(chan Ending, 1)
	if a.end != nil {
		ended <- *a.end
	}
	return a.res, ended, a.err
}

func (b *scripted) RequestWith(_ fields.Patch, ev lifecycle.Event, _ string) (lifecycle.Result, <-chan Ending, error) {
	return b.Request(ev)
}

func (b *scripted) Snapshot() store.Sandbox { return store.Sandbox{ID: "a"} }
func (b *scripted) Serving() (store.Sandbox, runtime.Instance) {
	if b.serves == 0 {
		return b.Snapshot(), nil
	}
	return store.Sandbox{ID: "a", Record: lifecycle.Record{Generation: b.serves}}, instance{}
}

func (b *scripted) OpenNetwork()         { b.opened++ }
func (b *scripted) Unfit() *errdef.Error { return nil }

// instance is a runtime that nothing is asked of.
type instance struct{ runtime.Instance }

func (b *scripted) reception() *Reception {
	return &Reception{Find: func(string) (Sandbox, error) { return b, nil }, Pace: NewPace(), Log: slog.New(slog.DiscardHandler)}
}

// ends returns the answer to an event after which an operation is in flight that
// ends with an entry.
func ends(v lifecycle.Verdict, changed bool, entry lifecycle.EntryType) answer {
	return answer{
		res: lifecycle.Result{Verdict: v, Changed: changed},
		end: &Ending{Entry: lifecycle.Entry{Type: entry}, Record: lifecycle.Record{Generation: 7}},
	}
}

// TestPause holds that a pause waits for what is in flight, asks again, and is told
// of its own end only; each time as an operation of its own.
func TestPause(t *testing.T) {
	b := &scripted{answers: []answer{
		ends(lifecycle.Waits, false, lifecycle.EntrySnapshotted),
		ends(lifecycle.Waits, false, lifecycle.EntryResumed),
		ends(lifecycle.Applies, true, lifecycle.EntryPaused),
	}}
	if err := b.reception().Pause(t.Context(), "a", PauseRequest{Actor: "me"}); err != nil {
		t.Fatal(err)
	}
	var ops []string
	for _, ev := range b.asked {
		p := ev.(lifecycle.PauseRequested)
		if p.Actor != "me" || p.Cause != lifecycle.CauseCall || p.Op == "" || slices.Contains(ops, p.Op) {
			t.Errorf("asked with %+v after %q", p.Meta, ops)
		}
		ops = append(ops, p.Op)
	}
	if len(ops) != 3 {
		t.Errorf("asked %d times", len(ops))
	}

	b = &scripted{answers: []answer{ends(lifecycle.Applies, true, lifecycle.EntryPauseFailed)}}
	if err := b.reception().Pause(t.Context(), "a", PauseRequest{}); !errdef.Is(err, errdef.Unavailable) {
		t.Errorf("a pause that failed: %v", err)
	}
}

// TestPauseWithoutWait holds that it waits for what is in flight, and not for its own end.
func TestPauseWithoutWait(t *testing.T) {
	b := &scripted{answers: []answer{
		ends(lifecycle.Waits, false, lifecycle.EntryResumed),
		{res: lifecycle.Result{Verdict: lifecycle.Applies, Changed: true}},
		{res: lifecycle.Result{Verdict: lifecycle.Joins}},
		{err: errdef.New(errdef.Conflict, "already_paused", "it sleeps")},
	}}
	for want := range 3 {
		err := b.reception().Pause(t.Context(), "a", PauseRequest{Mode: lifecycle.Filesystem, NoWait: true, Actor: "me"})
		if refused := want == 2; errdef.Is(err, errdef.Conflict) != refused || err != nil && !refused {
			t.Errorf("pause %d: %v", want, err)
		}
	}
	if p := b.asked[1].(lifecycle.PauseRequested); p.Mode != lifecycle.Filesystem || p.Actor != "me" || p.Op == "" || p.Op == b.asked[0].(lifecycle.PauseRequested).Op {
		t.Errorf("asked with %+v", p)
	}
}

// TestStrictPause holds that it is of the generation whose agent has answered, and of
// none otherwise.
func TestStrictPause(t *testing.T) {
	b := &scripted{serves: 1, answers: []answer{
		{res: lifecycle.Result{Verdict: lifecycle.Stale}},
		ends(lifecycle.Applies, true, lifecycle.EntryPaused),
	}}
	r := b.reception()
	r.Answers = func(context.Context, runtime.Instance, string) error {
		b.serves++ // it was paused and woken meanwhile
		return nil
	}
	if err := r.Pause(t.Context(), "a", PauseRequest{Strict: true}); err != nil {
		t.Fatal(err)
	}
	for i, ev := range b.asked {
		if got := ev.(lifecycle.PauseRequested).Generation; got != int64(i+1) {
			t.Errorf("event %d is for generation %d", i, got)
		}
	}

	r.Answers = func(context.Context, runtime.Instance, string) error { return errors.New("it is silent") }
	err := r.Pause(t.Context(), "a", PauseRequest{Strict: true})
	if e, _ := errors.AsType[*errdef.Error](err); e == nil || e.Code != "agent_unreachable" || len(b.asked) != 2 {
		t.Errorf("after %d events: %v", len(b.asked), err)
	}

	b.serves, b.answers = 0, append(b.answers, answer{err: errdef.New(errdef.Conflict, "already_paused", "it sleeps")})
	if err := r.Pause(t.Context(), "a", PauseRequest{Strict: true}); !errdef.Is(err, errdef.Conflict) {
		t.Errorf("of one that sleeps: %v", err)
	}
}

// TestResume holds what those get who find a resume in flight.
func TestResume(t *testing.T) {
	already := errdef.New(errdef.Conflict, "already_running", "it runs")
	for _, c := range []struct {
		name    string
		answers []answer
		resumed bool
		fails   bool
	}{
		{"its own", []answer{ends(lifecycle.Waits, true, lifecycle.EntryResumed)}, true, false},
		{"another's, which it joins", []answer{ends(lifecycle.Waits, false, lifecycle.EntryResumed), {err: already}}, true, false},
		{"it runs already", []answer{{err: already}}, false, true},
		{"after a pause in flight", []answer{
			ends(lifecycle.Waits, false, lifecycle.EntryPaused), ends(lifecycle.Waits, true, lifecycle.EntryResumed),
		}, true, false},
		{"it fails", []answer{ends(lifecycle.Waits, true, lifecycle.EntryResumeFailed)}, false, true},
	} {
		b := &scripted{answers: c.answers}
		got, err := b.reception().Connect(t.Context(), "a", WakeRequest{Timeout: time.Minute})
		if (err != nil) != c.fails || got.Resumed != c.resumed || c.resumed && got.Sandbox.Record.Generation != 7 {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
		if len(b.asked) != len(c.answers) {
			t.Errorf("%s: asked %d times, want %d", c.name, len(b.asked), len(c.answers))
		}
	}
}

// TestNetworkIsOpenedOnce holds that the runtime is told of new rules when the
// change is committed, and not before.
func TestNetworkIsOpenedOnce(t *testing.T) {
	b := &scripted{answers: []answer{
		ends(lifecycle.Waits, false, lifecycle.EntryPaused),
		{res: lifecycle.Result{Verdict: lifecycle.Applies, Record: lifecycle.Record{Generation: 8}}},
	}}
	got, err := b.reception().Connect(t.Context(), "a", WakeRequest{Timeout: time.Minute, Change: fields.Patch{AllowOut: []string{"example.com"}}})
	if err != nil || got.Sandbox.Record.Generation != 8 || b.opened != 1 {
		t.Errorf("%+v, %v; told %d times", got, err, b.opened)
	}
}

// TestCallersGoAway holds that a caller waits as long as it wants to, and that a kill
// is answered after a bounded wait.
func TestCallersGoAway(t *testing.T) {
	never := answer{res: lifecycle.Result{Verdict: lifecycle.Applies, Changed: true}}
	synctest.Test(t, func(t *testing.T) {
		b := &scripted{answers: []answer{never}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.reception().Pause(ctx, "a", PauseRequest{}); !errdef.Is(err, errdef.Unavailable) {
			t.Errorf("a caller that went away got %v", err)
		}
		b, began := &scripted{answers: []answer{never}}, time.Now()
		if err := b.reception().Kill(t.Context(), "a", ""); err != nil || time.Since(began) != KillWait {
			t.Errorf("a kill that goes on: %v after %s", err, time.Since(began))
		}
	})
}

// TestWaiting holds that each that waits for an operation is told once, and none of
// those that wait for another.
func TestWaiting(t *testing.T) {
	w := Waiting{}
	if w.For(nil) != nil {
		t.Error("waits for no operation")
	}
	first, second, other := w.For(&lifecycle.Operation{ID: "1"}), w.For(&lifecycle.Operation{ID: "1"}), w.For(&lifecycle.Operation{ID: "2"})
	w.Tell("1", Ending{Entry: lifecycle.Entry{Type: lifecycle.EntryPaused}})
	for _, ch := range []<-chan Ending{first, second} {
		if end, err := Wait(t.Context(), ch); err != nil || end.Type != lifecycle.EntryPaused {
			t.Errorf("told %+v, %v", end, err)
		}
	}
	w.Tell("1", Ending{}) // nobody waits any more
	if len(other) != 0 || len(w) != 1 {
		t.Errorf("%d told of another's operation; %d operations are waited for", len(other), len(w))
	}
}

// TestChangesWithoutPause: a key that changes sandboxes without pause waits, by any of
// its sandboxes and whatever it changes; one that has gone meanwhile changes nothing,
// and another key does not wait.
func TestChangesWithoutPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := map[string]*keyed{"a": {key: "greedy"}, "b": {key: "greedy"}, "c": {key: "other"}}
		r := &Reception{
			Find: func(id string) (Sandbox, error) { return all[id], nil },
			Pace: NewPace(), Log: slog.New(slog.DiscardHandler),
		}
		ways := []func(ctx context.Context, id string) error{
			func(ctx context.Context, id string) error { return r.ReleaseHold(ctx, id, "hold", "") },
			func(ctx context.Context, id string) error { return r.Configure(ctx, id, "", "", nil) },
			func(ctx context.Context, id string) error {
				_, err := r.SetTimeout(ctx, id, time.Minute, "")
				return err
			},
			func(ctx context.Context, id string) error {
				_, err := r.Patch(ctx, id, fields.Patch{}, "")
				return err
			},
			func(ctx context.Context, id string) error {
				_, err := r.Connect(ctx, id, WakeRequest{Timeout: time.Minute})
				return err
			},
		}
		took := func(way int, id string) time.Duration {
			begin := time.Now()
			if err := ways[way](t.Context(), id); err != nil {
				t.Fatal(err)
			}
			return time.Since(begin)
		}
		for i := range changesAtOnce {
			if d := took(i%len(ways), []string{"a", "b"}[i%2]); d > 0 {
				t.Fatalf("change %d waited %s", i, d)
			}
		}
		for way := range ways {
			if d := took(way, "b"); d == 0 || d > time.Second {
				t.Errorf("after %d at once, one in way %d waited %s", changesAtOnce, way, d)
			}
			if d := took(way, "c"); d > 0 {
				t.Errorf("another key waited %s", d)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			before := all["a"].changes
			if err := ways[way](ctx, "a"); !errors.Is(err, context.Canceled) || all["a"].changes != before {
				t.Errorf("who has gone changed it in way %d: %v", way, err)
			}
		}
	})
}

// keyed is a Sandbox of an API key, that applies all that it is asked.
type keyed struct {
	Sandbox // panics: the rest is not asked
	key     string
	changes int
}

func (b *keyed) Snapshot() store.Sandbox {
	return store.Sandbox{Config: store.Config{Key: b.key}}
}

func (b *keyed) Request(lifecycle.Event) (lifecycle.Result, <-chan Ending, error) {
	b.changes++
	return lifecycle.Result{Verdict: lifecycle.Applies}, nil, nil
}

func (b *keyed) Change(fields.Patch, string) (store.Sandbox, <-chan Ending, error) {
	b.changes++
	return store.Sandbox{}, nil, nil
}

func (b *keyed) Configure(string, string, func(*store.Config) error) error {
	b.changes++
	return nil
}

// unlearned is a sandbox of which it is not known whether it was committed, and what is answered to attempts
// to find out.
type unlearned struct {
	Sandbox
	rec     lifecycle.Record
	answers []error
	asked   []lifecycle.Kind // "" for Configure
	killed  bool             // by somebody else, before the last answer
}

func (u *unlearned) Snapshot() store.Sandbox { return store.Sandbox{Record: u.rec} }

func (u *unlearned) answer(kind lifecycle.Kind) error {
	u.asked = append(u.asked, kind)
	err := u.answers[0]
	if u.answers = u.answers[1:]; len(u.answers) == 0 && u.killed {
		u.rec = lifecycle.Record{State: lifecycle.Terminated}
	}
	return err
}

func (u *unlearned) Request(ev lifecycle.Event) (lifecycle.Result, <-chan Ending, error) {
	return lifecycle.Result{}, nil, u.answer(ev.Kind())
}

func (u *unlearned) Configure(string, string, func(*store.Config) error) error { return u.answer("") }

// TestLearn: what was committed is ended or kept, and all else is known not to be there; a sandbox that
// somebody else has ended meanwhile was.
func TestLearn(t *testing.T) {
	away := errdef.New(errdef.Unavailable, "store_unavailable", "away")
	never := store.ErrChanged("a")
	starts := lifecycle.Record{Op: &lifecycle.Operation{ID: "one", Phase: lifecycle.Creating}}
	asleep := lifecycle.Record{State: lifecycle.Paused}
	for name, tt := range map[string]struct {
		u          unlearned
		keep       bool
		was, known bool
		asked      lifecycle.Kind
	}{
		"it starts":               {u: unlearned{rec: starts, answers: []error{away, away, nil}}, was: true, known: true, asked: "StartFailed"},
		"it starts, to be kept":   {u: unlearned{rec: starts, answers: []error{nil}}, keep: true, was: true, known: true, asked: "StartFailed"},
		"it never started":        {u: unlearned{rec: starts, answers: []error{away, never}}, known: true, asked: "StartFailed"},
		"it sleeps":               {u: unlearned{rec: asleep, answers: []error{away, nil}}, was: true, known: true, asked: "KillRequested"},
		"it sleeps, to be kept":   {u: unlearned{rec: asleep, answers: []error{away, nil}}, keep: true, was: true, known: true},
		"it never slept":          {u: unlearned{rec: asleep, answers: []error{never}}, keep: true, known: true},
		"it was killed meanwhile": {u: unlearned{rec: asleep, answers: []error{away, errdef.New(errdef.NotFound, "sandbox_not_found", "it ended")}, killed: true}, keep: true, was: true, known: true},
		"killed between":          {u: unlearned{rec: asleep, answers: []error{away}, killed: true}, keep: true, was: true, known: true},
		"the server stops":        {u: unlearned{rec: starts, answers: []error{away, away, away, away}}, asked: "StartFailed"},
	} {
		sleeps := 0
		was, known := Learn(&tt.u, tt.keep, func() bool { sleeps++; return sleeps < 4 })
		if was != tt.was || known != tt.known || len(tt.u.answers) > 0 || slices.ContainsFunc(tt.u.asked, func(k lifecycle.Kind) bool { return k != tt.asked }) {
			t.Errorf("%s: was: %t, known: %t; asked %q, want was: %t, known: %t, %q", name, was, known, tt.u.asked, tt.was, tt.known, tt.asked)
		}
	}
}
