package fields

import (
	"reflect"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
)

// Patch changes a live or paused sandbox; nil leaves a thing as it is.
type Patch struct {
	Settings lifecycle.Patch
	// Timeout makes the soft timeout of a sandbox that runs end so long from now;
	// defaults.Unlimited takes the end from it. One that sleeps is refused.
	Timeout  *time.Duration
	Metadata map[string]string // replaces all
	Ports    store.Ports       // replaces all

	Services  []service.Service  // replaces all
	Entrances []service.Entrance // replaces all

	AllowInternet *bool
	AllowOut      []string     // replaces all
	DenyOut       []string     // replaces all
	Proxy         *store.Proxy // one without an address is none
}

// ChangesNetwork reports whether the patch changes what the sandbox may reach.
func (p Patch) ChangesNetwork() bool {
	return p.AllowInternet != nil || p.AllowOut != nil || p.DenyOut != nil || p.Proxy != nil
}

// On returns what a sandbox is after the patch, apart from the settings of its
// lifecycle.
func (p Patch) On(c store.Config) store.Config {
	return c.Changed(store.Changeable{
		Metadata: p.Metadata, Ports: p.Ports, AllowInternet: p.AllowInternet, AllowOut: p.AllowOut, DenyOut: p.DenyOut, FromServer: p.without(c.FromServer), Services: p.Services, Entrances: p.Entrances, Proxy: p.Proxy,
	})
}

// Empty reports whether the patch changes nothing.
func (p Patch) Empty() bool { return reflect.DeepEqual(p, Patch{}) }

// without returns the names of settings that the defaults gave and that a patch
// leaves to them.
func (p Patch) without(given []string) []string {
	said := map[string]bool{
		"onTimeout": p.Settings.OnTimeout != nil, "onIdle": p.Settings.OnIdle != nil,
		"idleTimeoutSeconds": p.Settings.IdleTimeout != nil, "maxLifetimeSeconds": p.Settings.MaxLifetime != nil,
		"pausedRetentionSeconds": p.Settings.PausedRetention != nil, "stallAfterSeconds": p.Settings.StallAfter != nil,
		"checkpointEverySeconds": p.Settings.CheckpointEvery != nil, "filesystemFallback": p.Settings.FilesystemFallback != nil,
		"refreshOnActivity": p.Settings.RefreshOnActivity != nil, "autoResume": p.Settings.AutoResume != nil,
	}
	return slices.DeleteFunc(slices.Clone(given), func(name string) bool { return said[name] })
}
