package e2e

import (
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// faultySnapshot is what the snapshot is called that faults strike.
const faultySnapshot = "tried"

func (f *faults) takeSnapshot(id string) error {
	_, err := client.NewSnapshots(f.s.client).Create(f.ctx, id, client.SnapshotOptions{Name: faultySnapshot})
	return err
}

func (f *faults) deleteSnapshot(string) error {
	return client.NewSnapshots(f.s.client).Delete(f.ctx, faultySnapshot)
}

// fromSnapshot starts a sandbox in which the counting program goes on.
func (f *faults) fromSnapshot(string) error {
	sb, err := f.s.client.Create(f.ctx, client.CreateOptions{Timeout: time.Hour, Snapshot: faultySnapshot})
	if err != nil {
		return err
	}
	g := &guest{s: f.s, sb: sb, first: f.counting.first}
	now, err := g.report(f.ctx)
	if err == nil {
		g.same(f.last, now)
	}
	return err
}

func (f *faults) restore(id string) error {
	return f.goBack(id, client.RestoreOptions{Snapshot: faultySnapshot})
}

func (f *faults) restoreAlone(id string) error {
	return f.goBack(id, client.RestoreOptions{Snapshot: faultySnapshot, Discard: true})
}

// goBack takes a sandbox back. One that did not wake from the snapshot the last time
// is woken when it is there again.
func (f *faults) goBack(id string, o client.RestoreOptions) error {
	stuck := f.records()[id].LastError != ""
	done, err := client.NewSnapshots(f.s.client).Restore(f.ctx, id, o)
	if err == nil && stuck && done.Info.State == client.Paused {
		err = f.resume(id)
	}
	return err
}

// dropSnapshots deletes what the operation has made. A sandbox that started from
// it, and the one it is of, must not need it.
func (f *faults) dropSnapshots() {
	f.t.Helper()
	if f.t.Failed() {
		return
	}
	all, err := f.db.Snapshots(f.ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, snap := range all {
		if err := client.NewSnapshots(f.s.client).Delete(f.ctx, snap.ID); err != nil {
			f.t.Errorf("clean up: %v", err)
		}
	}
	if len(all) == 0 {
		return
	}
	f.settle("nothing", "", operation{})
	for id, rec := range f.records() {
		if id == f.counting.sb.ID && rec.State == lifecycle.Running {
			f.counting.same(f.last, f.counting.ask(f.ctx))
		}
	}
}
