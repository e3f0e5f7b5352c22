package apitest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/defaults"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// Snapshots are those of a server. There is always one that is called "kept", which
// no list has.
type Snapshots struct {
	// Built has the templates whose names no snapshot gets; nil for none.
	Built interface {
		FreeForSnapshot(ctx context.Context, snap store.Snapshot) error
	}

	fake *Fake
	list []store.Snapshot

	taken int
}

// NewSnapshots returns none.
func NewSnapshots(f *Fake) *Snapshots {
	f.snapshots = &Snapshots{fake: f}
	return f.snapshots
}

// call calls do, once those have gone that go by themselves.
func call[T any](x *Snapshots, do func() (T, error)) (out T, err error) {
	err = x.fake.enter()
	defer x.fake.mu.Unlock()
	if err != nil {
		return out, err
	}
	x.list = slices.DeleteFunc(x.list, func(has store.Snapshot) bool {
		ended := x.fake.Sandboxes[has.Sandbox].Record.State == lifecycle.Terminated
		return has.Undo && ended || !has.ExpiresAt.IsZero() && !has.Pinned && !has.ExpiresAt.After(x.fake.Now)
	})
	return do()
}

// of returns a snapshot of a sandbox as it is.
func (x *Snapshots) of(sb store.Sandbox, req supervisor.SnapshotRequest) store.Snapshot {
	x.taken++
	id := fmt.Sprintf("s%020d", x.taken)
	snap := store.Snapshot{
		ID: id, Name: req.Name, CreatedAt: x.fake.Now.Add(time.Duration(x.taken) * time.Microsecond), Key: req.Key, Passing: req.Passing,
		Sandbox: sb.ID, Generation: sb.Record.Generation, Config: sb.Config, Settings: sb.Record.Settings, Bytes: 1 << 20,
		Checkpoint: lifecycle.Checkpoint{ID: "of " + id, Mode: cmp.Or(req.Mode, lifecycle.Memory)},
		ExpiresAt:  req.ExpiresAt, Pinned: req.Pinned, KeepLast: req.KeepLast,
	}
	c := &snap.Config
	c.Name, c.Previews, c.Idempotency, c.Before, c.Build = "", nil, nil, nil, req.Build
	return snap
}

// TakeSnapshot takes one of a sandbox that has not ended.
func (x *Snapshots) TakeSnapshot(_ context.Context, id string, req supervisor.SnapshotRequest) (store.Snapshot, error) {
	return call(x, func() (store.Snapshot, error) { return x.take(id, req) })
}

func (x *Snapshots) take(id string, req supervisor.SnapshotRequest) (store.Snapshot, error) {
	sb, err := x.fake.find(id)
	if err == nil {
		err = snapshots.CheckName(req.Name)
	}
	if err == nil && x.Built != nil {
		err = x.Built.FreeForSnapshot(context.Background(), store.Snapshot{Key: req.Key, Name: req.Name, Config: store.Config{Build: req.Build}})
	}
	if err != nil {
		return store.Snapshot{}, err
	}
	named := slices.IndexFunc(x.list, func(has store.Snapshot) bool { return req.Name != "" && has.Name == req.Name && has.Key == req.Key })
	if named >= 0 && x.list[named].ID == req.Replace && req.Build == "" {
		if err := snapshots.OfTemplate(x.list[named]); err != nil {
			return store.Snapshot{}, err
		}
	}
	if named >= 0 && x.list[named].ID != req.Replace {
		return store.Snapshot{}, store.ErrSnapshotExists(x.list[named])
	}
	snap := x.of(sb, req)
	m := x.fake.meta(req.Actor)
	m.Detail = snapshots.Describe(snap)
	if err := x.fake.step(&sb, lifecycle.SnapshotRequested{Meta: m, Only: req.Only}); err != nil {
		return store.Snapshot{}, err
	}
	if named >= 0 {
		x.list = slices.Delete(x.list, named, named+1)
	}
	x.list = append(x.list, snap)
	for i, kept := len(x.list)-1, 0; i >= 0 && req.KeepLast > 0; i-- {
		if has := x.list[i]; has.Sandbox != id || has.Key != req.Key || has.Pinned || has.KeepLast == 0 {
			continue
		}
		if kept++; kept > req.KeepLast {
			x.list = slices.Delete(x.list, i, i+1)
		}
	}
	return snap, nil
}

// Snapshots returns those that are shown, newest first.
func (x *Snapshots) Snapshots() ([]store.Snapshot, error) {
	return call(x, func() ([]store.Snapshot, error) {
		all := slices.DeleteFunc(slices.Clone(x.list), func(has store.Snapshot) bool { return has.Config.Build != "" })
		slices.Reverse(all)
		return all, nil
	})
}

// Snapshot returns one by its id, or by its name among those of a key. That of the name
// "kept" is that of every key that asks.
func (x *Snapshots) Snapshot(key, ref string) (store.Snapshot, error) {
	return call(x, func() (store.Snapshot, error) {
		i := slices.IndexFunc(x.list, func(has store.Snapshot) bool { return ref != "" && has.Key == key && has.Name == ref })
		switch {
		case i >= 0:
			return x.list[i], nil
		case ref == "kept":
			return store.Snapshot{ID: "skept", Name: ref, Key: KeyID}, nil
		}
		_, snap, err := x.find(ref)
		return snap, err
	})
}

// find returns a snapshot, and where it is in the list; below zero for "kept", and for
// what "app" of [Builds] was built to.
func (x *Snapshots) find(id string) (int, store.Snapshot, error) {
	i := slices.IndexFunc(x.list, func(has store.Snapshot) bool { return has.ID == id })
	switch {
	case i >= 0:
		return i, x.list[i], nil
	case id == "skept":
		return i, store.Snapshot{ID: "skept", Name: "kept", Key: KeyID}, nil
	case id == "sapp":
		return i, store.Snapshot{ID: "sapp", Name: "app", Key: KeyID, Config: store.Config{Key: KeyID, Build: "b1"}}, nil
	}
	return i, store.Snapshot{}, store.ErrSnapshotNotFound(id)
}

// ChangeSnapshot changes how long one is kept.
func (x *Snapshots) ChangeSnapshot(_ context.Context, ref string, c snapshots.Change) (store.Snapshot, error) {
	return call(x, func() (store.Snapshot, error) {
		i, snap, err := x.find(ref)
		if err == nil {
			err = snapshots.OfTemplate(snap)
		}
		if err != nil || i < 0 {
			return snap, err
		}
		if snap.Undo {
			return snap, errdef.New(errdef.Invalid, "undo_is_kept", "%s keeps what sandbox %s was", snap.ID, snap.Sandbox)
		}
		if c.Pinned != nil {
			snap.Pinned = *c.Pinned
		}
		if c.ExpiresAt != nil {
			snap.ExpiresAt = c.ExpiresAt.UTC().Truncate(time.Microsecond)
		}
		x.list[i] = snap
		return snap, nil
	})
}

// RemoveSnapshot removes one.
func (x *Snapshots) RemoveSnapshot(_ context.Context, ref, actor string) error {
	_, err := call(x, func() (store.Snapshot, error) {
		i, snap, err := x.find(ref)
		if err == nil {
			err = snapshots.OfTemplate(snap)
		}
		if err == nil && i >= 0 {
			x.fake.Actors = append(x.fake.Actors, actor)
			x.list = slices.Delete(x.list, i, i+1)
		}
		return snap, err
	})
	return err
}

// Restore takes a sandbox back to one of its own.
func (x *Snapshots) Restore(_ context.Context, id string, req supervisor.RestoreRequest) (sb store.Sandbox, undo string, err error) {
	sb, err = call(x, func() (store.Sandbox, error) {
		sb, err := x.fake.find(id)
		if err != nil {
			return sb, err
		}
		before := slices.IndexFunc(x.list, func(has store.Snapshot) bool { return has.Undo && has.Sandbox == id })
		to, err := x.aim(id, req, before)
		if err != nil {
			return sb, err
		}
		was := x.of(sb, supervisor.SnapshotRequest{Key: sb.Config.Key})
		if was.Undo = true; !req.Discard {
			to.Undo = was.ID
		}
		if err := x.fake.step(&sb, lifecycle.RestoreRequested{Meta: x.fake.meta(req.Actor), To: to, Only: req.Only}); err != nil || req.Discard {
			return sb, err
		}
		if undo = to.Undo; before >= 0 {
			x.list = slices.Delete(x.list, before, before+1)
		}
		x.list = append(x.list, was)
		return sb, nil
	})
	return sb, undo, err
}

// aim returns what a sandbox goes back to. What it was before the last time is in the
// list at before.
func (x *Snapshots) aim(id string, req supervisor.RestoreRequest, before int) (lifecycle.Restore, error) {
	var snap store.Snapshot
	var err error
	switch {
	case req.Snapshot != "":
		_, snap, err = x.find(req.Snapshot)
	case before < 0:
		err = errdef.New(errdef.NotFound, "undo_not_found", "sandbox %s did not go back before", id)
	default:
		snap = x.list[before]
	}
	to := lifecycle.Restore{Checkpoint: snap.Checkpoint, Snapshot: snap.ID}
	switch {
	case err != nil:
	case snap.Sandbox != id:
		err = errdef.New(errdef.Invalid, "snapshot_of_other", "snapshot %s was taken of another sandbox", req.Snapshot)
	case req.Mode == lifecycle.Memory && snap.Checkpoint.Mode != lifecycle.Memory:
		err = errdef.New(errdef.Invalid, "snapshot_without_memory", "snapshot %s has files only", req.Snapshot)
	case req.Mode == lifecycle.Filesystem:
		to.Checkpoint = to.Checkpoint.Files()
	}
	return to, err
}

// Fork starts children, of which the fourth and on find no room.
func (x *Snapshots) Fork(_ context.Context, id string, req supervisor.ForkRequest) ([]supervisor.Forked, error) {
	return call(x, func() (children []supervisor.Forked, err error) {
		sb, err := x.fake.find(id)
		if err == nil {
			err = snapshots.CheckForks(req.Count)
		}
		if err == nil && req.Timeout != nil {
			err = x.fake.granted(defaults.OrUnlimited(*req.Timeout))
		}
		if err != nil {
			return nil, err
		}
		snap, err := x.take(id, supervisor.SnapshotRequest{Key: req.Key, Only: req.Only, Actor: req.Actor, Passing: true})
		if err != nil {
			return nil, err
		}
		x.list = x.list[:len(x.list)-1]
		for i := range req.Count {
			c := supervisor.Forked{Err: errdef.New(errdef.Exhausted, "too_many_sandboxes", "no room")}
			if i < 3 {
				c.Sandbox, c.Err = x.child(snap, req)
			}
			children = append(children, c)
		}
		if err := req.Settle(children, func(id string) { _, _ = x.fake.change(id, lifecycle.KillRequested{Meta: x.fake.meta(req.Actor)}) }); err != nil {
			return nil, err
		}
		e, at := snapshots.ForkEntry(x.fake.Now, req.Actor, children), sb.Record.Situation()
		e.Generation, e.From, e.To = sb.Record.Generation, at, at
		x.fake.commit(x.fake.Sandboxes[id], []lifecycle.Entry{e})
		return children, nil
	})
}

// child starts a sandbox that goes on from the snapshot of a fork.
func (x *Snapshots) child(snap store.Snapshot, req supervisor.ForkRequest) (store.Sandbox, error) {
	config := snapshots.Inherit(snap, req.Key)
	config.Name, config.Idempotency = req.Name, req.Once
	config, err := snapshots.Configure(snap, config)
	if err != nil {
		return store.Sandbox{}, err
	}
	made := supervisor.CreateRequest{Snapshot: snap.ID, Settings: req.Settings(snap.Settings), Config: config, Actor: req.Actor}
	return begin(x.fake, made, config, func(m lifecycle.Meta) lifecycle.Event {
		if req.Asleep {
			return lifecycle.ImportRequested{Meta: m, Settings: made.Settings, Checkpoint: snap.Checkpoint, Generation: 1, CreatedAt: x.fake.Now}
		}
		return lifecycle.CreateRequested{Meta: m, Settings: made.Settings, Checkpoint: &snap.Checkpoint}
	})
}
