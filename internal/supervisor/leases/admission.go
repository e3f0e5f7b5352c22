package leases

import (
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
)

// Admission is what of a sandbox decides whether a request is let in, and how the port
// is spoken to that it is for. Each request asks for one, so it has little to copy.
type Admission struct {
	ID     string
	Key    string // API key that it belongs to
	Asleep bool   // it sleeps, or is about to

	AutoResume bool // see lifecycle.Settings
	// See store.Config.
	Secure, PrivatePorts bool
	HostMask             string
	HTTPSPorts           []int
	Entrances            []service.Entrance
}

// AdmissionTo returns that of a sandbox.
func AdmissionTo(sb *store.Sandbox) Admission {
	return Admission{
		ID: sb.ID, Key: sb.Config.Key,
		Asleep:     sb.Record.State == lifecycle.Paused || sb.Record.Phase() == lifecycle.Pausing,
		AutoResume: sb.Record.Settings.AutoResume, Secure: sb.Config.Secure, PrivatePorts: sb.Config.PrivatePorts,
		HostMask: sb.Config.HostMask, HTTPSPorts: sb.Config.HTTPSPorts, Entrances: sb.Config.Entrances,
	}
}
