package agentclient

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/trace"
)

// Host is this server, as the agents of its sandboxes know it.
type Host struct {
	// Secret returns that by which the agent of a sandbox knows this server, and
	// Token what the agent of a secure one wants of everybody.
	Secret, Token func(sandbox string) string
	// Lent returns what a sandbox gets of secrets: variables with placeholders, and
	// the certificate of the authority that it is to trust; nil for nothing.
	Lent func(c store.Config) (vars map[string]string, certificate string, err error)
	Log  *slog.Logger
}

// Agent returns the agent of a runtime of a sandbox.
func (h Host) Agent(inst runtime.Instance, sandbox string) Agent { return Of(inst, h.Secret(sandbox)) }

// Answers asks the agent of a runtime whether it is there.
func (h Host) Answers(ctx context.Context, inst runtime.Instance, sandbox string) error {
	return h.Agent(inst, sandbox).call(ctx, http.MethodGet, "/health", nil, nil)
}

// token returns what the agent of a sandbox wants of everybody; empty for nothing.
func (h Host) token(sb store.Sandbox) string {
	if !sb.Config.Secure {
		return ""
	}
	return h.Token(sb.ID)
}

// Init waits for the agent to answer and tells it everything that differs in this
// generation. When it returns, the sandbox can serve.
func (h Host) Init(ctx context.Context, inst runtime.Instance, sb store.Sandbox, t template.Template, generation int64) error {
	token := h.token(sb)
	vars, certificate, err := h.lent(sb.Config)
	if err != nil {
		return err
	}
	return h.Agent(inst, sb.ID).Init(ctx, agentapi.InitRequest{
		EnvVars:        t.Env(vars),
		Authority:      certificate,
		AccessToken:    &token,
		Timestamp:      time.Now().UTC(),
		DefaultUser:    cmp.Or(sb.Config.User, t.DefaultUser()),
		DefaultWorkdir: cmp.Or(sb.Config.Workdir, t.Workdir()),
		SandboxID:      sb.ID,
		TemplateID:     sb.Config.TemplateID(),
		Generation:     &generation,
		Instance:       rand.Text(),
		Copied:         again(sb.Record),
		Services:       append([]service.Service{}, sb.Config.Services...),
	})
}

// again reports whether the sandbox has gone on from its checkpoint before: its
// runtime was lost, and it is back there.
func again(r lifecycle.Record) bool {
	return r.PausedFor == lifecycle.CauseFailure || r.PausedFor == lifecycle.CauseRecovery
}

// lent returns all variables that were asked for, and the certificate.
func (h Host) lent(c store.Config) (map[string]string, string, error) {
	if h.Lent == nil || len(c.Secrets) == 0 {
		return c.Env, "", nil
	}
	lent, certificate, err := h.Lent(c)
	if err != nil {
		return nil, "", err
	}
	vars := maps.Clone(c.Env)
	if vars == nil {
		vars = map[string]string{}
	}
	maps.Copy(vars, lent)
	return vars, certificate, nil
}

// Succeed makes this server the host of an agent that knows another one by secret,
// and gives the sandbox its own name: both are as they were in the source. Whatever
// comes from elsewhere is a copy, and is told so.
func (h Host) Succeed(ctx context.Context, inst runtime.Instance, sandbox, secret string) error {
	if named, ok := inst.(runtime.Named); ok {
		if err := named.SetHostname(ctx, sandbox); err != nil { // its build or its agent is from before they could
			h.Log.Warn("host name stays that of the source", "sandbox", sandbox, "err", err)
		}
	}
	return Of(inst, secret).Init(ctx, agentapi.InitRequest{HostSecret: h.Secret(sandbox), Copied: true})
}

// RunHook runs a command inside, as root, for as long as its budget allows. Then it
// is killed, before the sandbox is frozen or serves.
func (h Host) RunHook(ctx context.Context, inst runtime.Instance, sb store.Sandbox, name string, hook store.Hook) {
	if hook.Command == "" || inst == nil {
		return
	}
	defer trace.Start(ctx, "run the hook "+name)()
	ctx, cancel := context.WithTimeout(ctx, hook.Budget)
	defer cancel()
	began := time.Now()
	err := h.Agent(inst, sb.ID).RunAsRoot(ctx, h.token(sb), hook.Command)
	h.Log.Info("hook "+name, "sandbox", sb.ID, "dur", time.Since(began), "err", err)
}
