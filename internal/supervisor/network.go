package supervisor

import (
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/runtime"
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

// openNetwork tells a runtime which addresses its gate is open for now. Where
// that fails the gate still judges every connection.
func (b *box) openNetwork(inst runtime.Instance) {
	n, ok := inst.(runtime.Networked)
	if !ok {
		return
	}
	if err := n.SetNetwork(b.gate); err != nil {
		b.s.log.Error("network could not be opened", "sandbox", b.id, "runtime", inst.ID(), "err", err)
	}
}

// serving returns the runtime that serves; nil if none does.
func (b *box) serving() runtime.Instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inst
}
