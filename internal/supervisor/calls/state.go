package calls

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// PauseRequest is how a sandbox is to be paused.
type PauseRequest struct {
	Mode   lifecycle.Mode  // memory, if empty
	Strict bool            // only if the agent of the generation that is paused answers
	NoWait bool            // return when the pause has begun; the event log has how it ends
	Cause  lifecycle.Cause // CauseCall, if empty
	Actor  string
}

// Pause pauses a sandbox and returns when that is committed. A pause in flight
// is joined.
func (r *Reception) Pause(ctx context.Context, id string, q PauseRequest) error {
	b, err := r.Find(id)
	if err != nil {
		return err
	}
	ev := lifecycle.PauseRequested{Meta: By("", q.Actor), Mode: cmp.Or(q.Mode, lifecycle.Memory)}
	ev.Cause = cmp.Or(q.Cause, ev.Cause)
	for {
		if q.Strict {
			if ev.Generation, err = r.answering(ctx, b); err != nil {
				return err
			}
		}
		switch _, err := pause(ctx, b, ev, q.NoWait); {
		case errors.Is(err, errStale):
		case q.NoWait || r.Kept == nil || planted.In(planted.EarlyPromise) || err != nil && errdef.CodeOf(err) != "already_paused":
			return err
		default:
			return cmp.Or(r.Kept(ctx, id), err)
		}
	}
}

// answerWithin bounds how long the agent of a sandbox may take to answer.
const answerWithin = 5 * time.Second

// answering returns the generation whose agent answers; where there is none to be
// asked, one that never runs.
func (r *Reception) answering(ctx context.Context, b Sandbox) (int64, error) {
	const none = -1
	sb, inst := b.Serving()
	if inst == nil || sb.Record.Phase() == lifecycle.Pausing {
		return none, nil
	}
	ask, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	err := r.Answers(ask, inst, sb.ID)
	if err == nil {
		return sb.Record.Generation, nil
	}
	if after, now := b.Serving(); now != inst || after.Record.Phase() == lifecycle.Pausing {
		return none, nil // it went to sleep meanwhile
	}
	if ctx.Err() != nil {
		return none, ctx.Err()
	}
	return none, outcome.Unanswered(sb.ID, err)
}

// PauseAnyhow pauses a sandbox with its memory, or by its files alone where something
// inside keeps that from being captured: who asks will not ask again.
func PauseAnyhow(ctx context.Context, b Sandbox, m lifecycle.Meta) error {
	end, err := pause(ctx, b, lifecycle.PauseRequested{Meta: m, Mode: lifecycle.Memory}, false)
	by, so := end.NotCapturable()
	if err == nil || !so {
		return err
	}
	if m.Detail != "" {
		m.Detail += "; "
	}
	m.Detail += lifecycle.WithoutMemory(by)
	_, err = pause(ctx, b, lifecycle.PauseRequested{Meta: m, Mode: lifecycle.Filesystem, Without: by}, false)
	return err
}

// errStale is why a pause did not begin that was meant for another generation.
var errStale = errors.New("another generation runs")

// pause pauses a sandbox, and returns the entry with which that ended; none if it is not
// waited for.
func pause(ctx context.Context, b Sandbox, ev lifecycle.PauseRequested, noWait bool) (lifecycle.Entry, error) {
	for {
		ev.Op = ids.NewOp()
		res, ended, err := b.Request(ev)
		switch {
		case err != nil:
			return lifecycle.Entry{}, err
		case res.Verdict == lifecycle.Stale:
			return lifecycle.Entry{}, errStale
		case res.Verdict != lifecycle.Waits && noWait:
			return lifecycle.Entry{}, nil
		}
		end, err := Wait(ctx, ended)
		if err != nil {
			return lifecycle.Entry{}, err
		}
		if res.Verdict == lifecycle.Waits {
			continue
		}
		if end.Type != lifecycle.EntryPaused {
			return end.Entry, outcome.PauseFailed(b.Snapshot(), end.Entry)
		}
		return end.Entry, nil
	}
}

// PauseAll pauses every sandbox that runs or is being started, with its memory where that can be
// captured, for as long as ctx lasts. It is for a server that stops and serves nobody any more. It
// returns how many sandboxes still run: those that could not be paused, or not in time.
func (r *Reception) PauseAll(ctx context.Context) (left int) {
	var pausing sync.WaitGroup
	turns := make(chan struct{}, r.Pauses)
	r.eachUp(func(b Sandbox) {
		turns <- struct{}{}
		pausing.Go(func() {
			defer func() { <-turns }()
			err := PauseAnyhow(ctx, b, lifecycle.Meta{Cause: lifecycle.CauseShutdown})
			if err != nil && isUp(b) { // else its start has failed
				r.Log.Warn("sandbox not paused", "sandbox", b.Snapshot().ID, "err", err)
			}
		})
	})
	pausing.Wait()
	r.eachUp(func(Sandbox) { left++ })
	return left
}

// Learn finds out whether a sandbox was committed that nobody has got yet, and ends it then unless it is to
// be kept. It tries until it knows, or sleep returns false.
func Learn(b Sandbox, keep bool, sleep func() bool) (was, known bool) {
	const why = "whether it was committed was learned too late"
	for {
		var err error
		switch rec := b.Snapshot().Record; {
		case rec.State == lifecycle.Terminated: // somebody else has ended what is there
		case rec.Phase() == lifecycle.Creating:
			_, _, err = b.Request(lifecycle.StartFailed{Op: rec.Op.ID, Detail: why})
		case keep:
			err = b.Configure("", why, func(*store.Config) error { return nil })
		default:
			_, _, err = b.Request(lifecycle.KillRequested{Meta: lifecycle.Meta{Op: ids.NewOp(), Cause: lifecycle.CauseFailure}})
		}
		switch {
		case err == nil || b.Snapshot().Record.State == lifecycle.Terminated:
			return true, true
		case store.Refused(err):
			return false, true
		case !sleep():
			return false, false
		}
	}
}

// Starting reports whether a sandbox is being started, or a request waits for one to run.
func (r *Reception) Starting() (starts bool) {
	if r.Waiting.Load() > 0 {
		return true
	}
	r.Each(func(b Sandbox) { starts = starts || b.Snapshot().Record.Starts() })
	return starts
}

// eachUp calls f for every sandbox that runs or is being started.
func (r *Reception) eachUp(f func(Sandbox)) {
	r.Each(func(b Sandbox) {
		if isUp(b) {
			f(b)
		}
	})
}

func isUp(b Sandbox) bool {
	rec := b.Snapshot().Record
	return rec.State == lifecycle.Running || rec.Starts()
}

// Connected is the answer to Connect.
type Connected struct {
	Sandbox store.Sandbox
	Resumed bool // it was paused and has been woken by this call or one it joined
}

// WakeRequest is how a sandbox is to be woken.
type WakeRequest struct {
	Timeout time.Duration
	Change  fields.Patch // comes with the wake: both happen, or neither does
	Boot    bool         // from its files: memory that it sleeps with goes when it runs
	Actor   string
	Cause   lifecycle.Cause // of a Connect; a call where it is empty
}

// Connect makes sure that the sandbox runs for at least the timeout from now: it
// extends a running one and resumes a paused one. Without a limit, it takes the
// end from a running one.
func (r *Reception) Connect(ctx context.Context, id string, q WakeRequest) (Connected, error) {
	return r.rouse(ctx, id, q, func(op string, change *lifecycle.Patch) lifecycle.Event {
		m := By(op, q.Actor)
		m.Cause = cmp.Or(q.Cause, m.Cause)
		return lifecycle.ConnectRequested{Meta: m, Timeout: q.Timeout, Boot: q.Boot, Change: change}
	})
}

// Resume resumes a paused sandbox; one that runs is an errdef.Conflict with code
// "already_running", and stays as it is.
func (r *Reception) Resume(ctx context.Context, id string, q WakeRequest) (store.Sandbox, error) {
	c, err := r.rouse(ctx, id, q, func(op string, change *lifecycle.Patch) lifecycle.Event {
		return lifecycle.ResumeRequested{Meta: By(op, q.Actor), Timeout: q.Timeout, Boot: q.Boot, Change: change}
	})
	return c.Sandbox, err
}

// rouse sends the event until the sandbox runs. Callers that find a resume in
// flight join it.
func (r *Reception) rouse(ctx context.Context, id string, q WakeRequest, event func(op string, change *lifecycle.Patch) lifecycle.Event) (Connected, error) {
	if err := r.Ceiling.Check(q.Timeout); err != nil {
		return Connected{}, err
	}
	p := q.Change
	if err := fields.Check(store.Config{Metadata: p.Metadata, Ports: p.Ports}); err != nil {
		return Connected{}, err
	}
	r.Waiting.Add(1)
	defer r.Waiting.Add(-1)
	b, err := r.findToChange(ctx, id)
	if err != nil {
		return Connected{}, err
	}
	request := func() (lifecycle.Result, <-chan Ending, error) { return b.Request(event(ids.NewOp(), nil)) }
	if !p.Empty() {
		request = func() (lifecycle.Result, <-chan Ending, error) {
			return b.RequestWith(p, event(ids.NewOp(), &p.Settings), q.Actor)
		}
	}
	var joined *lifecycle.Record // of a resume that others asked for
	for {
		res, ended, err := request()
		switch {
		case joined != nil && errdef.CodeOf(err) == "already_running":
			return Connected{Sandbox: As(b, *joined), Resumed: true}, nil
		case err != nil:
			return Connected{}, err
		case res.Verdict == lifecycle.Applies:
			if p.ChangesNetwork() {
				b.OpenNetwork()
			}
			return Connected{Sandbox: As(b, res.Record), Resumed: joined != nil}, nil
		}
		end, err := Wait(ctx, ended)
		if err != nil {
			return Connected{}, err
		}
		switch {
		case end.Type == lifecycle.EntryResumeFailed:
			return Connected{}, outcome.NotResumed(id, end.Entry, b.Unfit())
		case end.Type == lifecycle.EntryResumed && res.Changed:
			return Connected{Sandbox: As(b, end.Record), Resumed: true}, nil
		case end.Type == lifecycle.EntryResumed:
			joined = &end.Record
		}
	}
}

// KillWait bounds how long Kill waits for the resources of a sandbox to be
// gone. It has ended by then in any case.
const KillWait = 10 * time.Second

// Kill ends a sandbox for good. It returns when nothing of it is left, or
// after a bounded wait while that goes on.
func (r *Reception) Kill(ctx context.Context, id string, actor string) error {
	b, err := r.Find(id)
	if err != nil {
		return err
	}
	_, ended, err := b.Request(lifecycle.KillRequested{Meta: By(ids.NewOp(), actor)})
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, KillWait)
	defer cancel()
	if _, err := Wait(wait, ended); err != nil {
		r.Log.Warn("kill is still releasing", "sandbox", id, "err", err)
	}
	return nil
}
