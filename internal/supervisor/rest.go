package supervisor

import (
	"context"

	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/launch"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
)

// Light sleep: the runtime of a sandbox that is paused stays, frozen, and goes on when
// the sandbox wakes. All that is in it is in the checkpoint too, so that it can be
// released at any time.

func bedOf(b *box) *lightsleep.Bed {
	return b.s.light.Bed(&b.mu, func(launched int64, why lightsleep.Why) {
		b.s.log.Debug("sandbox sleeps deeply", "sandbox", b.id, "why", why)
		b.releaseRuntime(context.WithoutCancel(b.s.ctx), launched)
		if why == lightsleep.ByChange {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.mergeLocked(lifecycle.Record{Restored: b.sb.Record.Restored}) // as if it had just fallen asleep
	})
}

// mayRest reports whether the runtime of a sandbox that is being captured may stay. What was
// merged waits until nothing is mounted over its layers.
func mayRest(b *box, op *lifecycle.Operation) bool {
	return op.MayRest() && b.s.light.On() && b.s.ctx.Err() == nil && b.waitingMerge() == nil
}

// rest carries out RestRuntime. It is called with b.mu held.
func rest(b *box, launched int64) {
	inst, sb := b.inst, b.sb
	b.unserveLocked()
	failpoint.Pass(failpoint.Rested)
	if inst == nil || !b.bed.Lay(inst, launched, sb, b.s.slots.Spare(sb.Config.Key, 0)) {
		b.background(func(ctx context.Context) { b.releaseRuntime(ctx, launched) })
	}
	b.setGate()
}

// makeRoom has others of the key that sleep lightly give up the memory that a sandbox
// needs to start: what they hold is no reason to refuse it.
func makeRoom(b *box, next store.Sandbox) {
	if more := next.Use().Minus(b.sb.Use()).MemoryMiB; more > 0 {
		b.bed.MakeRoom(next.Config.Key, b.s.slots.Spare(next.Config.Key, more))
	}
}

// goOn has the runtime go on that has stayed for a start; nil if there is none, or it
// does not. Then the sandbox starts from its checkpoint.
func goOn(ctx context.Context, b *box, s launch.Start) runtime.Instance {
	b.mu.Lock()
	near := b.bed.Take(s.Checkpoint)
	b.setGate()
	b.mu.Unlock()
	if near == nil {
		return nil
	}
	if err := b.s.launcher.Thaw(ctx, s, near); err != nil {
		b.s.log.Warn("runtime that has stayed does not go on", "sandbox", b.id, "runtime", near.ID(), "err", err)
		b.discard(near.ID())
		return nil
	}
	b.s.metrics.Thawed()
	return near.Instance
}
