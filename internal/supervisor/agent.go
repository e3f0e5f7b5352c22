package supervisor

import (
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
)

// agent returns the agent of a runtime of the sandbox.
func (b *box) agent(inst runtime.Instance) agentclient.Agent {
	return b.s.guests.Agent(inst, b.id)
}
