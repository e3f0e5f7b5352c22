package replication

import "github.com/drowse-dev/drowse/internal/store"

// Snapshots is a Replicator as it is told of snapshots.
type Snapshots struct{ *Replicator }

// Keep says that this server has a snapshot: it is copied, unless it has its copy. One that a
// fork needs for a moment is not, nor the state before a restore, nor what a step of a build has
// led to, which has no name: whoever builds anew takes the step again.
func (r Snapshots) Keep(snap store.Snapshot) {
	step := snap.Config.Build != "" && snap.Name == ""
	if !step && !snap.Passing && !snap.Undo {
		want(r.Replicator, snap.ID, ofSnapshot, store.CopyOf(snap.Checkpoint))
	}
}

// Describe returns a snapshot of this server with where it is kept.
func (r Snapshots) Describe(snap store.Snapshot) store.Snapshot {
	snap.Durability = ""
	if r.o.Blobs != nil {
		snap.Durability = store.Local
		if r.State(snap.ID, store.CopyOf(snap.Checkpoint)).Complete {
			snap.Durability = store.Replicated
		}
	}
	return snap
}
