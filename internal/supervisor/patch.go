package supervisor

import (
	"cmp"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// patch applies a patch as a whole, or returns what tells the end of the operation in flight.
func (b *box) patch(p Patch, actor string) (store.Sandbox, <-chan calls.Ending, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	res, err := b.applyPatchLocked(p, lifecycle.SettingsPatched{Meta: calls.By("", actor), Patch: p.Settings, Timeout: p.Timeout}, actor)
	if err != nil {
		return store.Sandbox{}, nil, err
	}
	if res.Verdict != lifecycle.Applies {
		return store.Sandbox{}, b.awaitLocked(), nil
	}
	return b.viewLocked(), nil, nil
}

// applyPatchLocked lets an event happen that changes the settings of p. What else p changes is
// changed in the same commit, or not at all. If that commit begins a resume, the sandbox remembers
// how it was before: a resume that fails leaves nothing of the change.
func (b *box) applyPatchLocked(p Patch, ev lifecycle.Event, actor string) (lifecycle.Result, error) {
	if err := b.settleLocked(); err != nil {
		return lifecycle.Result{}, err
	}
	config, asleep := b.sb.Config, b.sb.Record.State == lifecycle.Paused
	changed, err := b.s.outside.Changed(p.On(config))
	if err != nil {
		return lifecycle.Result{}, err
	}
	if was := config.Changeable(); asleep && ev.Kind() != (lifecycle.SettingsPatched{}).Kind() {
		changed.Before = &was
	}
	b.sb.Config = changed
	res, err := b.applyLocked(ev)
	if err == nil && res.Verdict == lifecycle.Applies && !res.Changed { // only what is beside the record
		err = b.logEntry(lifecycle.Entry{Type: lifecycle.EntryUpdated, At: ids.Now(), Actor: actor})
	}
	if err != nil || res.Verdict != lifecycle.Applies && !res.Changed {
		b.sb.Config = config
		return res, err
	}
	b.setGate()
	return res, nil
}

// configure changes what the sandbox is apart from its lifecycle, and logs it with
// detail. It waits for nothing: no operation in flight depends on that.
func (b *box) configure(actor, detail string, change func(*store.Config) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := cmp.Or(b.settleLocked(), outcome.Alive(&b.sb)); err != nil {
		return err
	}
	before := b.sb.Config
	if err := change(&b.sb.Config); err != nil {
		return err
	}
	err := b.logEntry(lifecycle.Entry{Type: lifecycle.EntryUpdated, At: ids.Now(), Actor: actor, Detail: detail})
	if err != nil {
		b.sb.Config = before
	}
	return err
}
