// Package fields bounds what callers have kept with a sandbox: it is in memory and
// in the database for as long as the sandbox is, read at every list, and some of
// it for 30 days after its end.
package fields

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/names"
)

// The bounds.
const (
	MaxMetadata      = 16 << 10 // bytes of all names and values
	MaxMetadataCount = 128
	MaxEnv           = 128 << 10 // likewise; a program can be given no more at once
	MaxEnvCount      = 1024
	MaxTemplateName  = 128
	MaxHostMask      = 512
	MaxNetwork       = 16 << 10
	MaxHTTPSPorts    = 128
	MaxHookCommand   = 16 << 10
	MaxHookBudget    = 30 * time.Second
	MaxMounts        = 64
	MaxHoldID        = 128
	MaxHoldReason    = 1024
)

// Check returns an errdef.Invalid for what no sandbox may have, with code
// "field_too_large" for what is larger than it may have it.
func Check(c store.Config) error {
	if err := names.Check(c.Name); c.Name != "" && err != nil {
		return err
	}
	for _, f := range []struct {
		name      string
		has, most int
		of        string
	}{
		{"metadata", mapBytes(c.Metadata), MaxMetadata, "bytes of names and values"},
		{"metadata", len(c.Metadata), MaxMetadataCount, "entries"},
		{"env", mapBytes(c.Env), MaxEnv, "bytes of names and values"},
		{"env", len(c.Env), MaxEnvCount, "variables"},
		{"ports", len(c.Ports), store.MaxPortRules, "rules"},
		{"network.maskRequestHost", len(c.HostMask), MaxHostMask, "bytes"},
		{"network.httpsPorts", len(c.HTTPSPorts), MaxHTTPSPorts, "ports"},
		{"network", len(c.Network), MaxNetwork, "bytes"},
		{"hooks.prePause", len(c.Hooks.PrePause.Command), MaxHookCommand, "bytes"},
		{"hooks.postResume", len(c.Hooks.PostResume.Command), MaxHookCommand, "bytes"},
		{"hooks.preKill", len(c.Hooks.PreKill.Command), MaxHookCommand, "bytes"},
		{"volumes", len(c.Volumes), MaxMounts, "mounts"},
	} {
		if f.has > f.most {
			return tooLarge(f.name, f.has, f.most, f.of)
		}
	}
	if bad := agentapi.BadVariable(c.Env); bad != "" {
		return invalid("env", "has "+bad)
	}
	if c.PrivatePorts && !c.Secure {
		return invalid("allowPublicTraffic", `may be false only with "secure": true`).
			WithRemedy("make the sandbox secure: who may talk to its agent reaches its ports anyway")
	}
	if err := checkHooks(c.Hooks); err != nil {
		return err
	}
	if err := CheckServices(c.Services); err != nil {
		return err
	}
	return CheckEntrances(c.Entrances)
}

func checkHooks(h store.Hooks) error {
	for _, x := range []struct {
		name string
		hook store.Hook
	}{{"hooks.prePause", h.PrePause}, {"hooks.postResume", h.PostResume}, {"hooks.preKill", h.PreKill}} {
		switch {
		case x.hook == (store.Hook{}):
		case strings.TrimSpace(x.hook.Command) == "" || strings.Contains(x.hook.Command, "\x00"):
			return invalid(x.name+".command", "must be a command")
		case x.hook.Budget > MaxHookBudget:
			return errdef.New(errdef.Invalid, "timeout_too_large", "%q may take %s at most (requested %s)", x.name, MaxHookBudget, x.hook.Budget).
				WithRemedy("do less in the hook").With("field", x.name+".timeoutSeconds").
				With("requestedSeconds", x.hook.Budget.Seconds()).With("allowedSeconds", MaxHookBudget.Seconds())
		}
	}
	return nil
}

func invalid(field, why string) *errdef.Error {
	return errdef.New(errdef.Invalid, "invalid_request", "%q %s", field, why).With("field", field)
}

// CheckEntrances judges the entrances of a sandbox together.
func CheckEntrances(list []service.Entrance) error {
	return service.CheckEntrances(list, agentapi.Port, agentapi.TunnelPort, agentapi.CodePort)
}

// CheckServices judges the services of a sandbox together.
func CheckServices(list []service.Service) error {
	return service.CheckAll(list, agentapi.Port, agentapi.TunnelPort, agentapi.CodePort)
}

// CheckHold does the same for a hold that somebody asks for.
func CheckHold(l lifecycle.Lease) error {
	if len(l.ID) > MaxHoldID {
		return tooLarge("id of the hold", len(l.ID), MaxHoldID, "bytes")
	}
	if len(l.Reason) > MaxHoldReason {
		return tooLarge("reason", len(l.Reason), MaxHoldReason, "bytes")
	}
	return nil
}

func tooLarge(name string, has, most int, of string) error {
	return errdef.New(errdef.Invalid, "field_too_large", "%s has %d %s, and may have %d", name, has, of, most).
		WithRemedy("use %d %s at most; a file of the sandbox can keep data that is larger", most, of).
		With("field", name).With("requested", has).With("allowed", most)
}

func mapBytes(m map[string]string) (n int) {
	for name, value := range m {
		n += len(name) + len(value)
	}
	return n
}

// CheckTemplateName returns an errdef.NotFound for a name that no template can have.
func CheckTemplateName(name string) error {
	if len(name) > MaxTemplateName {
		return errdef.New(errdef.NotFound, "template_not_found", "there is no template with a name of %d bytes: it has %d at most", len(name), MaxTemplateName)
	}
	return nil
}

// Remembered returns what is kept of a sandbox that has ended: what tells which
// one it was, and whose.
func Remembered(sb store.Sandbox) store.Sandbox {
	c := sb.Config
	c.Env, c.Network, c.Ports, c.Hooks, c.Previews = nil, nil, nil, store.Hooks{}, nil
	c.AllowOut, c.DenyOut, c.HTTPSPorts, c.HostMask = nil, nil, nil, ""
	c.Secrets, c.Authority = nil, ""
	c.Services, c.Entrances, c.Proxy, c.Volumes = nil, nil, nil, nil
	sb.Config = c
	return sb
}

// Bytes returns how many bytes a sandbox takes in the database, and about as many in
// memory.
func Bytes(sb store.Sandbox) int {
	data, err := json.Marshal(sb)
	if err != nil {
		panic(fmt.Sprintf("internal error: sandbox %s cannot be written: %v", sb.ID, err))
	}
	return len(data)
}
