package supervisor

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/template"
)

// agent returns the agent of a runtime of the sandbox.
func (b *box) agent(inst runtime.Instance) agentclient.Agent {
	return agentclient.Of(inst, b.s.agentToken(b.id))
}

// envdToken returns what the agent of a sandbox wants of everybody; empty for
// nothing.
func (s *Supervisor) envdToken(sb store.Sandbox) string {
	if !sb.Config.Secure {
		return ""
	}
	return s.EnvdToken(sb.ID)
}

// initAgent waits for the agent to answer and tells it everything that differs
// in this generation. When it returns, the sandbox can serve.
func (b *box) initAgent(ctx context.Context, inst runtime.Instance, sb store.Sandbox, t template.Template, generation int64) error {
	token := b.s.envdToken(sb)
	return b.agent(inst).Init(ctx, agentapi.InitRequest{
		EnvVars:        t.Env(sb.Config.Env),
		AccessToken:    &token,
		Timestamp:      time.Now().UTC(),
		DefaultUser:    t.DefaultUser(),
		DefaultWorkdir: t.Workdir(),
		SandboxID:      sb.ID,
		TemplateID:     sb.Config.Template,
		Generation:     &generation,
	})
}

// succeedHost makes this server the host of an agent that knows another one by
// token.
func (s *Supervisor) succeedHost(ctx context.Context, inst runtime.Instance, id, token string) error {
	return agentclient.Of(inst, token).Init(ctx, agentapi.InitRequest{HostSecret: s.agentToken(id)})
}

// runHook runs a command inside, as root, for as long as its budget allows.
// Then it is killed, before the sandbox is frozen or serves.
func (b *box) runHook(ctx context.Context, inst runtime.Instance, sb store.Sandbox, name string, h store.Hook) {
	if h.Command == "" || inst == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, h.Budget)
	defer cancel()
	began := time.Now()
	err := b.agent(inst).RunAsRoot(ctx, b.s.envdToken(sb), h.Command)
	b.s.log.Info("hook "+name, "sandbox", sb.ID, "dur", time.Since(began), "err", err)
}
