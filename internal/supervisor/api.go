package supervisor

import (
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// CreateRequest is what a new sandbox is asked to be.
type CreateRequest struct {
	Template string // id or alias, or the id of a snapshot
	Snapshot string // id; empty to start from Template
	Settings lifecycle.Settings
	Said     []string     // the settings that count as they are; the others get the server's defaults where they are zero
	Config   store.Config // Template and Alias are filled in by Create, and Limits where it says nothing
	Actor    string
	inherit  bool // it is a fork: Settings and Config are those of its source
	asleep   bool // it is not started: it is paused with what the snapshot has
}

// SnapshotRef returns what snapshot the sandbox starts from; empty for none.
func (r CreateRequest) SnapshotRef() string {
	if r.Snapshot == "" && snapshots.IsID(r.Template) {
		return r.Template
	}
	return r.Snapshot
}

// What the parts below define, as callers know it.
type (
	PauseRequest   = calls.PauseRequest       // how a sandbox is to be paused
	WakeRequest    = calls.WakeRequest        // how it is to be woken
	Connected      = calls.Connected          // the answer to Connect
	Patch          = fields.Patch             // changes a live or paused sandbox; nil leaves a thing as it is
	RestoreRequest = snapshots.RestoreRequest // what a sandbox is to go back to
	Access         = leases.Access            // a request for a way into a sandbox
	Lease          = leases.Lease             // what it gets
	Explanation    = awake.Explanation        // why a sandbox is in the state it is in, and what happens next
)
