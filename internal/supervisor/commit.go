package supervisor

import (
	"cmp"
	"context"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/commits"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// newCommitter returns what makes the changes of all sandboxes durable.
func newCommitter(s *Supervisor) *commits.Committer {
	o := commits.Options{
		Commit: func(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry, snap *store.Snapshot) error {
			return s.Commit(ctx, sb, entries, snap)
		},
		Store: s.o.Store, Tenure: s.tenure, Later: func() bool { return s.sleep(storeRetry) }, Go: func(f func()) { s.work.Go(f) }, Log: s.log,
		Forgotten: func(id string) {
			if b, err := s.box(id); err == nil {
				b.background(func(context.Context) { b.forgotten() })
			}
		},
	}
	if s.o.Lease == nil { // else the database is on another disk
		o.Relieve = s.space.GiveUp
	}
	return commits.New(s.ctx, o)
}

// settleLocked returns when it is known whether the last change has happened, or else an error:
// nothing else may happen until then.
func (b *box) settleLocked() error {
	if why := b.disowned.Load(); why != nil { // nothing will end here that could be waited for
		return *why
	}
	return b.s.commits.Settle(&b.last)
}

// learned has what follows from a change who asked for it has not heard that it has happened.
func (b *box) learned() {
	b.setGate()
	b.background(func(ctx context.Context) {
		b.openNetwork()
		b.s.removals.Insist(func() error { return b.s.RefreshSnapshots(ctx) }, "a snapshot may not be known here yet", "sandbox", b.id)
	})
}

// resign serves nobody any more: another process has claimed the server.
func resign(s *Supervisor, why error) {
	s.log.Error("another process has taken the place of this one: nothing is served any more", "err", why)
	s.stop()
	s.each(func(b *box) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.desk.Cut(why)
		b.unserveLocked()
		b.ended.Abandon(why)
	})
}

// logEntry commits an entry that goes with no change of the record.
func (b *box) logEntry(e lifecycle.Entry) error {
	if err := cmp.Or(b.settleLocked(), outcome.Alive(&b.sb)); err != nil {
		return err
	}
	e.Generation, e.From, e.To = b.sb.Record.Generation, b.sb.Record.Situation(), b.sb.Record.Situation()
	return b.s.commits.Commit(&b.last, &commits.Change{Sandbox: b.sb, Was: b.sb.Record.Op, Entries: []lifecycle.Entry{e}, Stored: func(sb store.Sandbox) {
		b.sb = sb
		b.s.Announce()
		b.reportEntry(e)
	}})
}

// reportEntry counts an entry of the event log, and tells it in the server's:
// one line each.
func (b *box) reportEntry(e lifecycle.Entry) {
	b.s.metrics.Entry(e)
	b.s.fleet.Note(e)
	b.s.log.Info("sandbox "+string(e.Type), "sandbox", b.id, "op", e.Op, "from", e.From, "to", e.To,
		"generation", e.Generation, "cause", e.Cause, "actor", e.Actor, "dur", e.Duration, "bytes", e.Bytes, "freed", e.Freed, "detail", e.Detail)
}

// report logs a change and tells those who wait for the operation that ended.
func (b *box) report(before lifecycle.Record, res lifecycle.Result) {
	for _, e := range res.Entries {
		b.reportEntry(e)
	}
	old := before.Op
	if old == nil || (res.Record.Op != nil && res.Record.Op.ID == old.ID) {
		return
	}
	end := calls.Ending{Record: res.Record}
	if n := len(res.Entries); n > 0 {
		end.Entry = res.Entries[n-1]
	}
	b.ended.Tell(old.ID, end)
}
