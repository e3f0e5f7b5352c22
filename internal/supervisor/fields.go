package supervisor

import (
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Bounds of what a caller has kept with a sandbox: it is in memory and in the
// database for as long as the sandbox is, read at every list, and some of it
// for 30 days after its end.
const (
	maxMetadata      = 16 << 10 // bytes of all names and values
	maxMetadataCount = 128
	maxEnv           = 128 << 10 // likewise; a program can be given no more at once
	maxEnvCount      = 1024
	maxTemplateName  = 128
	maxHostMask      = 512
	maxNetwork       = 16 << 10
	maxHTTPSPorts    = 128
	maxHookCommand   = 16 << 10
	maxMounts        = 64
	maxHoldID        = 128
	maxHoldReason    = 1024
)

// checkFields returns an errdef.Invalid with code "field_too_large" for what is
// larger than a sandbox may have it.
func checkFields(c store.Config) error {
	for _, f := range []struct {
		name      string
		has, most int
		of        string
	}{
		{"metadata", mapBytes(c.Metadata), maxMetadata, "bytes of names and values"},
		{"metadata", len(c.Metadata), maxMetadataCount, "entries"},
		{"env", mapBytes(c.Env), maxEnv, "bytes of names and values"},
		{"env", len(c.Env), maxEnvCount, "variables"},
		{"ports", len(c.Ports), store.MaxPortRules, "rules"},
		{"network.maskRequestHost", len(c.HostMask), maxHostMask, "bytes"},
		{"network.httpsPorts", len(c.HTTPSPorts), maxHTTPSPorts, "ports"},
		{"network", len(c.Network), maxNetwork, "bytes"},
		{"hooks.prePause", len(c.Hooks.PrePause.Command), maxHookCommand, "bytes"},
		{"hooks.postResume", len(c.Hooks.PostResume.Command), maxHookCommand, "bytes"},
		{"hooks.preKill", len(c.Hooks.PreKill.Command), maxHookCommand, "bytes"},
		{"volumes", len(c.Volumes), maxMounts, "mounts"},
	} {
		if f.has > f.most {
			return tooLarge(f.name, f.has, f.most, f.of)
		}
	}
	return nil
}

func tooLarge(name string, has, most int, of string) error {
	return errdef.New(errdef.Invalid, "field_too_large", "%s has %d %s, and may have %d", name, has, of, most).
		WithRemedy("keep what is larger in a file of the sandbox").
		With("field", name).With("requested", has).With("allowed", most)
}

func mapBytes(m map[string]string) (n int) {
	for name, value := range m {
		n += len(name) + len(value)
	}
	return n
}

func checkTemplateName(name string) error {
	if len(name) > maxTemplateName {
		return errdef.New(errdef.NotFound, "template_not_found", "there is no template with a name of %d bytes: it has %d at most", len(name), maxTemplateName)
	}
	return nil
}

// remembered returns what is kept of a sandbox that has ended: what tells which
// one it was, and whose.
func remembered(sb store.Sandbox) store.Sandbox {
	c := sb.Config
	c.Env, c.Network, c.Ports, c.Hooks, c.Previews = nil, nil, nil, store.Hooks{}, nil
	c.AllowOut, c.DenyOut, c.HTTPSPorts, c.HostMask = nil, nil, nil, ""
	sb.Config = c
	return sb
}
