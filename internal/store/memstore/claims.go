package memstore

import (
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// admit refuses the commit of a record that what is stored forbids. The caller holds
// the lock, as of all that follows.
func (d *Data) admit(sb, old store.Sandbox) error {
	switch {
	case sb.Rev == 0 && old.Rev > 0:
		return store.ErrSandboxExists(sb.ID)
	case sb.Rev != old.Rev:
		return store.ErrChanged(sb.ID)
	}
	if by := boundBy(sb); sb.Rev == 0 && by.text != "" {
		if id := d.bound[by]; id != "" && d.boxes[id].given.BoundAt().Add(store.IdempotencyLife).After(sb.BoundAt()) {
			return store.ErrMade(id, by.text)
		}
	}
	if most := d.limits(sb.Config.Key); most != (store.KeyLimits{}) {
		if err := most.Fit(sb.Config.Key, d.use(sb.Config.Key), sb.Use().Minus(old.Use())); err != nil {
			return err
		}
	}
	if sb.Rev > 0 {
		return nil
	}
	if id := d.names[named(sb)]; sb.Config.Name != "" && id != "" {
		return store.ErrNameTaken(id, sb.Config.Name)
	}
	return nil
}

func named(sb store.Sandbox) claim { return claim{sb.Config.Key, sb.Config.Name} }

// boundBy returns the idempotency key that has made a sandbox; without text for none.
func boundBy(sb store.Sandbox) claim {
	if sb.Config.Idempotency == nil {
		return claim{}
	}
	return claim{sb.Config.Key, sb.Config.Idempotency.Key}
}

// claim gives a new sandbox what is unique to it, and takes that from one that has
// ended.
func (d *Data) claim(sb store.Sandbox) {
	if by := boundBy(sb); by.text != "" {
		switch {
		case sb.Failed():
			d.release(d.bound, by, sb.ID)
		case sb.Rev == 0:
			d.bound[by] = sb.ID
		}
	}
	switch {
	case sb.Config.Name == "":
	case sb.Record.State == lifecycle.Terminated:
		d.release(d.names, named(sb), sb.ID)
	case sb.Rev == 0:
		d.names[named(sb)] = sb.ID
	}
}

func (d *Data) release(of map[claim]string, what claim, id string) {
	if of[what] == id {
		delete(of, what)
	}
}

// limits returns those of an API key; none of one that is not known.
func (d *Data) limits(key string) store.KeyLimits {
	if i := slices.IndexFunc(d.keys, func(k store.Key) bool { return k.ID == key }); i >= 0 {
		return d.keys[i].Limits
	}
	return store.KeyLimits{}
}

// use returns what an API key uses.
func (d *Data) use(key string) (u store.Use) {
	for _, box := range d.boxes {
		if box.given.Config.Key == key {
			u = u.Plus(box.given.Use())
		}
	}
	for _, snap := range d.snaps {
		if snap.key == key {
			u.DiskMiB += snap.diskMiB
		}
	}
	return u
}

// fitSnapshot refuses a snapshot with which its API key would have more than it may.
// Those that stay beside it are others.
func (d *Data) fitSnapshot(snap store.Snapshot, others []snapshot) error {
	of := func(all []snapshot) (n, mib int) {
		for _, x := range all {
			if x.key == snap.Key {
				n, mib = n+1, mib+x.diskMiB
			}
		}
		return n, mib
	}
	has, hasMiB := of(d.snaps)
	stay, stayMiB := of(others)
	if stay == has {
		if err := store.FitSnapshots(has); err != nil {
			return err
		}
	}
	freed := hasMiB - stayMiB
	return d.limits(snap.Key).FitSnapshot(snap.Key, d.use(snap.Key).DiskMiB, snap.DiskMiB()-freed, snap.Config.Limits)
}
