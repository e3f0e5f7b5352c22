package supervisor

import (
	goruntime "runtime"

	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/supervisor/greed"
)

// share keeps the parts of sandboxes that run right, until the supervisor stops.
func (s *Supervisor) share() {
	s.resharing.Follow(s.ctx, s.slots.Sharers, func() { s.each((*box).takeShare) })
}

// takeShare gives the runtime of a sandbox its part of the key's part.
func (b *box) takeShare() {
	b.mu.Lock()
	inst, key, had := b.inst, b.sb.Config.Key, b.sharers
	n := b.s.slots.Sharers(key)
	b.sharers = n
	b.mu.Unlock()
	sharer, ok := inst.(runtime.Sharer)
	if !ok || n == had {
		return
	}
	if err := sharer.ShareAmong(n); err != nil {
		b.s.log.Debug("a sandbox keeps its part of the CPU time", "sandbox", b.id, "err", err) // it may just have ended
	}
}

// confine has greedy keys step back for others, until the supervisor stops.
func (s *Supervisor) confine() {
	greed.New(goruntime.NumCPU(), greed.Busy).Follow(s.ctx, s.o.ConfineEvery, func() []greed.Running { return confinable(s) }, func(r greed.Running, err error) {
		s.log.Debug("a sandbox does not step back", "key", r.Key, "err", err) // it may just have ended
	})
}

// confinable returns the runtimes that serve and can be made to step back.
func confinable(s *Supervisor) (running []greed.Running) {
	s.each(func(b *box) {
		sb, inst := b.serving()
		if c, ok := inst.(runtime.Confiner); ok {
			running = append(running, greed.Running{Key: sb.Config.Key, Runtime: c})
		}
	})
	return running
}
