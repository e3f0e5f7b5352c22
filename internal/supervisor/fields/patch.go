package fields

import (
	"reflect"
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Patch changes a live or paused sandbox; nil leaves a thing as it is.
type Patch struct {
	Settings lifecycle.Patch
	Metadata map[string]string // replaces all
	Ports    store.Ports       // replaces all

	AllowInternet *bool
	AllowOut      []string // replaces all
	DenyOut       []string // replaces all
}

// ChangesNetwork reports whether the patch changes what the sandbox may reach.
func (p Patch) ChangesNetwork() bool {
	return p.AllowInternet != nil || p.AllowOut != nil || p.DenyOut != nil
}

// On returns what a sandbox is after the patch, apart from the settings of its
// lifecycle.
func (p Patch) On(c store.Config) store.Config {
	return c.Changed(store.Changeable{
		Metadata: p.Metadata, Ports: p.Ports, AllowInternet: p.AllowInternet, AllowOut: p.AllowOut, DenyOut: p.DenyOut, FromServer: p.without(c.FromServer),
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
