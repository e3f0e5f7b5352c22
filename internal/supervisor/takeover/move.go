package takeover

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
)

// A sandbox moves to another server while both live: it sleeps, its copy is complete, its
// owner commits that the other may take it, and that one does. Requests for the sandbox wait
// meanwhile, and go on where it is then. It runs there if it ran here.

// Op is what waits for the end of a move, in the place of an operation's id.
const Op = "move"

// Waits reports whether an event waits while its sandbox is moved: what comes from outside and
// would change the sandbox, or wake it; and a pause, or it would wake again by the move. An end
// need not wait.
func Waits(ev lifecycle.Event) bool {
	switch e := ev.(type) {
	case lifecycle.ConnectRequested:
		return e.Cause != lifecycle.CauseMove
	case lifecycle.PauseRequested:
		return e.Cause != lifecycle.CauseMove && e.Cause != lifecycle.CauseShutdown
	case lifecycle.AccessRequested, lifecycle.ResumeRequested, lifecycle.TimeoutSet, lifecycle.ExtendRequested, lifecycle.SettingsPatched,
		lifecycle.LeaseRequested, lifecycle.LeaseReleased, lifecycle.SnapshotRequested, lifecycle.RestoreRequested:
		return true
	}
	return false
}

// Gate is the way to a sandbox. What Waits is told at the end by Waiting, as that of Op.
type Gate struct {
	Mu      sync.Locker // guards the others, and belongs to the sandbox's owner
	Shut    *bool
	Waiting calls.Waiting
	// Left gives up to another server what is here of the sandbox. One that has come back since
	// has a gate of its own, and stays.
	Left func(server string)
}

// shut has requests wait until open; it is an errdef.Conflict where they do already.
func (g Gate) shut(id string) error {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if *g.Shut {
		return errdef.New(errdef.Conflict, codeConflict, "sandbox %s is being moved already", id).
			WithRemedy("wait until that has ended, and see where it is")
	}
	*g.Shut = true
	return nil
}

func (g Gate) open() {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	*g.Shut = false
	g.Waiting.Tell(Op, calls.Ending{})
}

const codeConflict = "move_conflict"

const (
	// tries is how often a sandbox is offered that changes meanwhile.
	tries = 3
	// leftWithin is how long a server waits until what it had of a sandbox is removed, before
	// it refuses to have the sandbox back, and leftEvery how often it looks.
	leftWithin = 20 * time.Second
	leftEvery  = 20 * time.Millisecond
	// settleWithin bounds what must still be done when a move has ended.
	settleWithin = 10 * time.Second
	// wakeAgain is after how long a wake is tried again that failed.
	wakeAgain = 5 * time.Second
)

// HandOver has the server to take a sandbox of this one, which take asks it for. It returns
// when that one has it. One that does not sleep is paused, or is an errdef.Conflict unless pauses is
// set. After an error the sandbox is here, and runs if it ran before.
func (t *Taker) HandOver(ctx context.Context, id, to, actor string, pauses bool, take func(context.Context) error) error {
	gate, err := t.o.Gate(id)
	if err == nil {
		err = gate.shut(id)
	}
	if err != nil {
		return err
	}
	defer gate.open()
	if t.stopping.Load() {
		return errdef.New(errdef.Conflict, codeConflict, "the server stops, and sandbox %s stays on it", id).
			WithRemedy("stop the server with --on-shutdown pause: another one goes on with it then")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	if err := t.mayPause(ctx, id, pauses); err != nil {
		return err
	}
	err = t.handOver(ctx, gate, id, to, actor, take)
	if err != nil {
		t.wake(id, actor)
	}
	return err
}

// mayPause returns why a sandbox that may run is not paused to be moved: that is not wanted, or it
// could not be copied.
func (t *Taker) mayPause(ctx context.Context, id string, pauses bool) error {
	sb, err := t.o.Store.Sandbox(ctx, id)
	switch {
	case err != nil || sb.Record.State == lifecycle.Paused && sb.Record.Op == nil:
		return err
	case !pauses:
		return errdef.New(errdef.Conflict, codeConflict, "sandbox %s does not sleep any more", id).WithRemedy("try again in a moment")
	}
	return t.o.Replicas.Outage()
}

// handOver is HandOver while requests wait.
func (t *Taker) handOver(ctx context.Context, gate Gate, id, to, actor string, take func(context.Context) error) error {
	for n := 1; ; n++ {
		if err := t.o.Calls.Pause(ctx, id, calls.PauseRequest{Cause: lifecycle.CauseMove, Actor: actor}); err != nil && errdef.CodeOf(err) != "already_paused" {
			return err
		}
		if err := t.o.Replicas.Wait(ctx, id); err != nil {
			return err
		}
		sb, err := t.o.Store.Sandbox(ctx, id)
		if err != nil {
			return err
		}
		if sb.Record.Checkpoint == nil {
			return cmp.Or(sb.Record.Over(), store.ErrSandboxNotFound(id))
		}
		err = t.o.Store.Offer(ctx, id, sb.Record.Checkpoint.ID, to)
		if err == nil {
			err = take(ctx)
		}
		if err == nil || t.lost(ctx, id, to) {
			gate.Left(to)
			return nil
		}
		if code := errdef.CodeOf(err); code != "record_changed" && code != "not_replicated" || n == tries {
			if now, failed := t.o.Store.Sandbox(ctx, id); failed == nil { // it may have ended, and its copy with it
				err = cmp.Or(now.Record.Over(), err)
			}
			return err
		}
	}
}

// lost withdraws an offer that was not taken; it reports whether it was.
func (t *Taker) lost(ctx context.Context, id, to string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	err := t.o.Store.Offer(ctx, id, "", "")
	server, is := store.Elsewhere(err)
	if err != nil && !is { // the other may take it still, unless it wakes here first
		t.o.Log.Warn("an offer of a sandbox could not be withdrawn", "sandbox", id, "server", to, "err", err)
	}
	return is && server == to
}

// StopMoves is called when the server stops: no sandbox runs again by a move.
func (t *Taker) StopMoves() { t.stopping.Store(true) }

// WakeMoved has the sandboxes of this server run again that were paused to be moved, when a
// server ended.
func (t *Taker) WakeMoved(ctx context.Context) error {
	all, err := t.o.Store.Sandboxes(ctx)
	for _, sb := range all {
		if sb.Owner == t.o.Store.Self() && sb.Record.Moves != nil {
			t.wake(sb.ID, "")
		}
	}
	return err
}

// wake has a sandbox run again that was paused to be moved, with what it had then: later, if that
// is not possible now. It outlives who called, and ends with the supervisor.
func (t *Taker) wake(id, actor string) {
	err := t.wakeNow(t.ctx, id, actor)
	if err == nil {
		return
	}
	t.o.Log.Warn("a sandbox does not run again after a move", "sandbox", id, "err", err)
	go func() {
		for mayWakeLater(err) && insist.Sleep(t.ctx, wakeAgain) {
			err = t.wakeNow(t.ctx, id, actor)
		}
	}()
}

// mayWakeLater reports whether a wake failed for want of room, or of the database.
func mayWakeLater(err error) bool {
	return errdef.Is(err, errdef.Exhausted) || errdef.Is(err, errdef.Unavailable)
}

func (t *Taker) wakeNow(ctx context.Context, id, actor string) error {
	sb, err := t.o.Store.Sandbox(ctx, id)
	if err == nil && sb.Owner == t.o.Store.Self() && sb.Record.State == lifecycle.Paused && sb.Record.Moves != nil && !t.stopping.Load() {
		_, err = t.o.Calls.Connect(ctx, id, calls.WakeRequest{Timeout: time.Second, Actor: actor, Cause: lifecycle.CauseMove})
	}
	return err
}

// Receive takes a sandbox over that its server offers, and returns when it is here, and runs
// if it ran there.
func (t *Taker) Receive(ctx context.Context, id, actor string) error {
	for end := time.Now().Add(leftWithin); t.leaving(id) && time.Now().Before(end) && insist.Sleep(ctx, leftEvery); {
	}
	return t.takeOver(ctx, id, actor)
}
