package supervisor

import (
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Patch changes settings, metadata, wake policies or the like of a live or paused
// sandbox.
func (s *Supervisor) Patch(ctx context.Context, id string, p Patch, actor string) (store.Sandbox, error) {
	if err := checkFields(store.Config{Metadata: p.Metadata, Ports: p.Ports}); err != nil {
		return store.Sandbox{}, err
	}
	b, err := s.box(id)
	if err != nil {
		return store.Sandbox{}, err
	}
	for {
		sb, ended, err := b.patch(p, actor)
		if err == nil && ended == nil && p.changesNetwork() {
			b.openNetwork(b.serving())
		}
		if err != nil || ended == nil {
			return sb, err
		}
		if _, err := b.wait(ctx, ended); err != nil {
			return store.Sandbox{}, err
		}
	}
}

func (p Patch) changesNetwork() bool {
	return p.AllowInternet != nil || p.AllowOut != nil || p.DenyOut != nil
}

// patch applies a patch as a whole, or returns what tells the end of the
// operation in flight.
func (b *box) patch(p Patch, actor string) (store.Sandbox, <-chan ending, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	config := b.sb.Config
	changed := b.sb.Config
	if p.Metadata != nil {
		changed.Metadata = p.Metadata
	}
	if p.Ports != nil {
		changed.Ports = p.Ports
	}
	if p.AllowInternet != nil {
		changed.AllowInternet = p.AllowInternet
	}
	if p.AllowOut != nil {
		changed.AllowOut = p.AllowOut
	}
	if p.DenyOut != nil {
		changed.DenyOut = p.DenyOut
	}
	changed.FromServer = p.without(changed.FromServer)
	if _, err := policyOf(changed); err != nil {
		return store.Sandbox{}, nil, err
	}
	b.sb.Config = changed
	res, err := b.applyLocked(lifecycle.SettingsPatched{Meta: call("", actor), Patch: p.Settings})
	if err == nil && res.Verdict == lifecycle.Applies && !res.Changed { // only what is beside the record
		err = b.logEntry(lifecycle.Entry{Type: lifecycle.EntryUpdated, At: now(), Actor: actor})
	}
	if err != nil || res.Verdict != lifecycle.Applies {
		b.sb.Config = config
	}
	if err != nil {
		return store.Sandbox{}, nil, err
	}
	if res.Verdict != lifecycle.Applies {
		return store.Sandbox{}, b.awaitLocked(), nil
	}
	b.setGate()
	return b.viewLocked(), nil, nil
}

// Configure changes what a sandbox is apart from its lifecycle, and logs it with
// detail.
func (s *Supervisor) Configure(id, actor, detail string, change func(*store.Config) error) error {
	b, err := s.box(id)
	if err != nil {
		return err
	}
	return b.configure(actor, detail, change)
}

// configure carries out Configure. It waits for
// nothing: no operation in flight depends on that.
func (b *box) configure(actor, detail string, change func(*store.Config) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := alive(b.sb); err != nil {
		return err
	}
	before := b.sb.Config
	if err := change(&b.sb.Config); err != nil {
		return err
	}
	err := b.logEntry(lifecycle.Entry{Type: lifecycle.EntryUpdated, At: now(), Actor: actor, Detail: detail})
	if err != nil {
		b.sb.Config = before
	}
	return err
}

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
