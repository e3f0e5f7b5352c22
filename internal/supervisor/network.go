package supervisor

import (
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// setGate holds the sandbox to what its record says. One that says what this
// version does not understand reaches nothing.
func (b *box) setGate() {
	p, err := b.s.outside.Policy(b.sb.Config)
	if err != nil {
		b.s.log.Error("rules for the network could not be read", "sandbox", b.id, "err", err)
	}
	if b.bed.Stays() != nil { // nothing of a sandbox that sleeps goes out, as what its runtime had begun to
		p = egress.Policy{}
	}
	b.gate.Set(p)
}

// openNetwork tells the runtime that serves which addresses its gate is open for.
func (b *box) openNetwork() {
	_, inst := b.serving()
	b.s.launcher.OpenNetwork(inst, b.id, b.gate)
}

// audited returns what writes to the event log of a sandbox that has not ended.
func audited(b *box) func(lifecycle.Entry) error {
	return func(e lifecycle.Entry) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if err := outcome.Alive(&b.sb); err != nil {
			return err
		}
		return b.logEntry(e)
	}
}
