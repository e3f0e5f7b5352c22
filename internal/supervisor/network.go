package supervisor

import (
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/store"
)

// policyOf returns what a sandbox may reach outside. Without a word about it,
// that is the internet.
func policyOf(c store.Config) (egress.Policy, error) {
	internet := c.AllowInternet == nil || *c.AllowInternet
	return egress.NewPolicy(internet, c.AllowOut, c.DenyOut)
}

// setGate holds the sandbox to what its record says. One that says what this
// version does not understand reaches nothing.
func (b *box) setGate() {
	p, err := policyOf(b.sb.Config)
	if err != nil {
		b.s.log.Error("rules for the network could not be read", "sandbox", b.id, "err", err)
	}
	b.gate.Set(p)
}

// openNetwork tells the runtime that serves which addresses its gate is open for.
func (b *box) openNetwork() {
	b.mu.Lock()
	inst := b.inst
	b.mu.Unlock()
	b.s.launcher.OpenNetwork(inst, b.id, b.gate)
}
