package supervisor

import (
	"context"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
)

// commit makes a change durable, with a snapshot of the sandbox unless that is nil,
// giving up the ballast if there is no room. The record has its next revision then.
func (b *box) commit(sb *store.Sandbox, entries []lifecycle.Entry, snap *store.Snapshot) error {
	s := b.s
	var forgotten []string
	write := func() (err error) {
		if !sb.Ended() {
			return s.Commit(s.commitContext(), *sb, entries, snap)
		}
		forgotten, err = s.o.Store.CommitEnd(s.commitContext(), *sb, entries)
		return err
	}
	err := s.tenure.Allows(b.sb.Record.Op, sb.Record.Op)
	if err == nil {
		err = write()
	}
	if err != nil && !store.Refused(err) && s.o.Lease == nil && s.space.GiveUp() { // else the database is on another disk
		s.log.Warn("the disk is full: reserve given up", "sandbox", sb.ID, "err", err)
		err = write()
	}
	if b.unsure && store.IsChanged(err) { // by a commit before, whose answer was lost
		b.sb.Rev++
		sb.Rev = b.sb.Rev
		err = write()
	}
	for _, id := range forgotten {
		if oldest, err := s.box(id); err == nil {
			b.background(func(context.Context) { oldest.forgotten() })
		}
	}
	switch {
	case err == nil:
		sb.Rev, b.unsure = sb.Rev+1, false
	case !store.Refused(err):
		b.unsure = true
	}
	if owner, is := store.SandboxElsewhere(err, b.id); is && b.sb.Rev > 0 {
		b.background(func(context.Context) { disown(b, owner) })
	}
	return s.tenure.Heard(err)
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

// commitContext outlives callers and the supervisor: a commit is not left half
// way because somebody went away.
func (s *Supervisor) commitContext() context.Context { return context.WithoutCancel(s.ctx) }

// logEntry commits an entry that goes with no change of the record.
func (b *box) logEntry(e lifecycle.Entry) error {
	e.Generation, e.From, e.To = b.sb.Record.Generation, b.sb.Record.Situation(), b.sb.Record.Situation()
	if err := b.commit(&b.sb, []lifecycle.Entry{e}, nil); err != nil {
		return err
	}
	b.s.Announce()
	b.reportEntry(e)
	return nil
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
