package supervisor

import (
	"context"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/supervisor/takeover"
	"github.com/drowse-dev/drowse/internal/supervisor/tasks"
	"github.com/drowse-dev/drowse/internal/supervisor/tenure"
)

func newTaker(s *Supervisor) *takeover.Taker {
	return takeover.New(s.ctx, takeover.Options{
		Store: s.o.Store, Replicas: s.replicas, Shelf: func() *snapshots.Shelf { return s.Shelf }, Carrier: s.carrier, Layers: s.o.Layers, Fetches: s.checkpoints.Fetches, Space: s.space, Tenure: s.tenure, Removals: s.removals, Calls: s.Reception, Log: s.log, Knows: s.Knows,
		Gate: func(id string) (takeover.Gate, error) {
			b, err := s.box(id)
			if err != nil {
				return takeover.Gate{}, err
			}
			return takeover.Gate{Mu: &b.mu, Shut: &b.moves, Waiting: b.ended, Left: func(server string) { disown(b, server) }}, nil
		},
		Left: func(sb store.Sandbox) {
			if b, _ := s.box(sb.ID); b != nil && b.snapshot().Rev < sb.Rev {
				disown(b, sb.Owner)
			}
		},
		Arrived: func(sb store.Sandbox, before lifecycle.Record, res lifecycle.Result) {
			b := newBox(s, sb)
			b.moves = sb.Record.State == lifecycle.Paused && sb.Record.Moves != nil
			register(s, b)
			s.Announce()
			b.mu.Lock()
			defer b.mu.Unlock()
			b.arm()
			b.report(before, res)
			b.actAll(res.Effects)
		},
	})
}

// disown gives up a sandbox that another server has: what is here of it goes.
func disown(b *box, server string) {
	s := b.s
	b.mu.Lock()
	defer b.mu.Unlock()
	why := store.ErrElsewhere("sandbox "+b.id, server)
	if !b.disowned.CompareAndSwap(nil, &why) {
		return
	}
	s.Leaving(b.id)
	s.log.Info("another server has a sandbox now: what is here of it is removed", "sandbox", b.id, "server", server)
	b.desk.Cut(why)
	b.unserveLocked()
	b.ended.Abandon(why)
	b.bed.Follow(lifecycle.Record{State: lifecycle.Terminated})
	if c := b.last.Drop(); c != nil && c.Refused != nil {
		c.Refused()
	}
	_ = s.slots.Move(b.sb, store.Sandbox{Config: b.sb.Config}) // giving back never fails
	s.EndServices(b.id)
	s.replicas.Lost(b.id)
	atWork := b.tasks.StopAll()
	b.background(func(ctx context.Context) {
		tasks.Await(atWork, taskPatience, func() { _ = s.remains.Runtimes(ctx, b.id) })
		b.forgotten() // while it is not taken back
		s.Taker.Leave(b.id, func() error { return s.remains.All(ctx, b.sb.Config.Key, b.id, b.record, b.unknownLayers) })
	})
}

// CutAll ends the leases on all sandboxes, which run on: this process is not certain any more
// that no other server has taken them over. It waits for nothing.
func (s *Supervisor) CutAll() {
	s.each(func(b *box) { b.desk.Sever(tenure.ErrUnsure()) })
}

// Knows reports whether a sandbox is here, also one that has ended. It does not wait.
func (s *Supervisor) Knows(id string) bool {
	_, err := s.box(id)
	return err == nil
}
