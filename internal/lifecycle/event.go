package lifecycle

import "time"

// Kind names a kind of event, for the table, logs and documentation.
type Kind string

// Event is something that was asked for or observed.
type Event interface {
	// Kind returns the event's name.
	Kind() Kind
}

// Meta is what every request carries: the id for the operation that it may
// start, and who asks.
type Meta struct {
	Op    string
	Actor string
	Cause Cause
	// Detail says what the cause leaves open, for the event log.
	Detail string
}

// Requests.
type (
	// CreateRequested starts the first runtime of a new record.
	CreateRequested struct {
		Meta
		Settings Settings
		// Checkpoint is what it starts from; nil to boot its template. It is shared
		// with others, and the record's from now on.
		Checkpoint *Checkpoint
	}
	// ImportRequested makes a new record that of a sandbox which was paused
	// elsewhere, and whose checkpoint is here; or of a paused fork of one that is
	// here, whose checkpoint is shared.
	ImportRequested struct {
		Meta
		Settings   Settings
		Checkpoint Checkpoint
		Generation int64 // that served last
		Launches   int64 // whose names are taken, by its layers
		CreatedAt  time.Time
	}
	// AccessRequested asks to reach the sandbox, through any path.
	AccessRequested struct {
		Meta
		Policy WakePolicy
		// Probe says that the access only reads whether the sandbox runs: it
		// neither wakes it nor cancels a pause.
		Probe bool
		// Boots says that the access is worth a boot: it is for a service that starts
		// with the sandbox, or needs none.
		Boots bool
		// Draining says that the barrier of the pause in flight is not up yet.
		Draining bool
	}
	// PauseRequested asks for an explicit pause.
	PauseRequested struct {
		Meta
		Mode    Mode
		Without string // as of its Checkpoint
		// Generation is the one that is meant; 0 for whichever runs. Where another runs,
		// the event is stale.
		Generation int64
	}
	// ConnectRequested asks for a running sandbox with at least Timeout left,
	// which may be NoLimit. Zero leaves the end of one that runs as it is. Change, if
	// not nil, comes with it: both happen, or neither does. Boot has one that sleeps with
	// its memory boot from its files instead; the memory goes when it runs.
	ConnectRequested struct {
		Meta
		Timeout time.Duration
		Change  *Patch
		Boot    bool
	}
	// ResumeRequested asks to resume a paused sandbox, with a change and a boot as above.
	ResumeRequested struct {
		Meta
		Timeout time.Duration
		Change  *Patch
		Boot    bool
	}
	// TimeoutSet replaces the soft timeout of a running sandbox; zero expires
	// it now, NoLimit takes its end away.
	TimeoutSet struct {
		Meta
		Timeout time.Duration
	}
	// ExtendRequested asks for at least Timeout more of a running sandbox, and
	// unlike ConnectRequested never wakes one.
	ExtendRequested struct {
		Meta
		Timeout time.Duration
	}
	// SettingsPatched changes settings of a live or paused sandbox, and the soft
	// timeout of a running one as TimeoutSet does; nil leaves that.
	SettingsPatched struct {
		Meta
		Patch   Patch
		Timeout *time.Duration
	}
	// LeaseRequested asks to count the sandbox as busy, or to prolong that; the
	// lease's id says which.
	LeaseRequested struct {
		Meta
		Lease Lease
	}
	// LeaseReleased ends a lease before its time.
	LeaseReleased struct {
		Meta
		ID string
	}
	// SnapshotRequested asks for a checkpoint that others can start from, without
	// any change to the sandbox. It is refused unless that is Only in a state; empty for
	// any.
	SnapshotRequested struct {
		Meta
		Only State
	}
	// RestoreRequested asks that the sandbox become again what it was when a snapshot
	// was taken. A paused one stays paused. A running one is captured first, if the
	// state before is to be kept, and goes on from the snapshot.
	RestoreRequested struct {
		Meta
		To   Restore
		Only State // as above
	}
	// KillRequested ends the sandbox for good.
	KillRequested struct{ Meta }
)

// Observations.
type (
	// StartSucceeded reports that the runtime started by Op serves.
	StartSucceeded struct {
		Op     string
		Detail string // what is not as one would expect; for the event log
		// Thawed says that it is the runtime of the record's launch, which has stayed
		// frozen, and not one of the launch of Op.
		Thawed bool
	}
	// StartFailed reports that the runtime asked for by Op could not start;
	// nothing of it is left.
	StartFailed struct {
		Op     string
		Detail string
		// With one of these, trying again is of no use.
		Damaged    bool // its checkpoint is not what was written
		Unreadable bool // its memory image is of another version of the runtime, or of other files of the host
	}
	// CaptureReady reports that the checkpoint made by Op is durable and
	// verified. If it applies, the pause is committed.
	CaptureReady struct {
		Op         string
		Checkpoint Checkpoint
		Freed      int64 // bytes of memory that the release gives back; 0 for not known
		// Rests says that the runtime may stay frozen and go on later: the checkpoint has
		// a copy of what it writes to. Then Merged must wait, and nothing is given back yet.
		Rests bool
		// Merged takes the place of layers below the new one, if they are still
		// there. Nil for nothing.
		Merged *LayersMerged
	}
	// CaptureEnded reports that the capture of Op ended without a checkpoint
	// and that the runtime runs on (it was thawed).
	CaptureEnded struct {
		Op     string
		Detail string // why; empty when it was canceled
		// Inside says that it ended for what runs inside, which may see to it every time.
		Inside bool
		// NotCapturable says that something inside cannot be saved with its memory, so
		// that no other try will succeed either.
		NotCapturable bool
	}
	// SnapshotTaken reports that the snapshot of a running sandbox, made by Op, is
	// durable. It is committed together with this.
	SnapshotTaken struct {
		Op     string
		Bytes  int64  // that were written for it
		Detail string // which it is; for the event log
	}
	// SnapshotFailed reports that Op made no snapshot, and that the runtime runs on.
	SnapshotFailed struct {
		Op            string
		Detail        string
		NotCapturable bool // as of CaptureEnded
	}
	// LayersMerged reports that the layer Into, which is durable, shows what the
	// layers Merged show, that lie next to each other in the stack.
	LayersMerged struct {
		Merged []string // bottom first
		Into   string
		Digest string // of the listing of Into
	}
	// ReleaseDone reports that nothing of a killed sandbox is left.
	ReleaseDone struct{ Op string }
	// RuntimeGone reports that the runtime of a generation has exited by
	// itself.
	RuntimeGone struct {
		Generation int64
		Reason     Reason // what it ended of, such as OutOfMemory, where that is known
		Detail     string
	}
	// TimerFired reports that the time returned by NextDeadline has come. Op
	// is the id for the operation that may start.
	TimerFired struct {
		Op       string
		Activity Activity
	}
	// ServerStarted is the first event after a restart of the server; Alive
	// says whether the runtime of Record.Generation was found running.
	ServerStarted struct {
		Op    string
		Alive bool
	}
	// TakenOver reports that this server has the sandbox from now on: the one that had
	// it is gone, and with it what was there, or has offered it.
	TakenOver struct {
		Op         string
		From       string     // the server that had it
		Offered    bool       // by that one
		Checkpoint Checkpoint // the record's, as it was made again here
		Launches   int64      // whose names are taken, by its layers
	}
)

// Kind implements Event.
func (CreateRequested) Kind() Kind   { return "CreateRequested" }
func (ImportRequested) Kind() Kind   { return "ImportRequested" }
func (AccessRequested) Kind() Kind   { return "AccessRequested" }
func (PauseRequested) Kind() Kind    { return "PauseRequested" }
func (ConnectRequested) Kind() Kind  { return "ConnectRequested" }
func (ResumeRequested) Kind() Kind   { return "ResumeRequested" }
func (TimeoutSet) Kind() Kind        { return "TimeoutSet" }
func (ExtendRequested) Kind() Kind   { return "ExtendRequested" }
func (SettingsPatched) Kind() Kind   { return "SettingsPatched" }
func (LeaseRequested) Kind() Kind    { return "LeaseRequested" }
func (LeaseReleased) Kind() Kind     { return "LeaseReleased" }
func (SnapshotRequested) Kind() Kind { return "SnapshotRequested" }
func (RestoreRequested) Kind() Kind  { return "RestoreRequested" }
func (KillRequested) Kind() Kind     { return "KillRequested" }
func (StartSucceeded) Kind() Kind    { return "StartSucceeded" }
func (StartFailed) Kind() Kind       { return "StartFailed" }
func (CaptureReady) Kind() Kind      { return "CaptureReady" }
func (CaptureEnded) Kind() Kind      { return "CaptureEnded" }
func (SnapshotTaken) Kind() Kind     { return "SnapshotTaken" }
func (SnapshotFailed) Kind() Kind    { return "SnapshotFailed" }
func (LayersMerged) Kind() Kind      { return "LayersMerged" }
func (ReleaseDone) Kind() Kind       { return "ReleaseDone" }
func (RuntimeGone) Kind() Kind       { return "RuntimeGone" }
func (TimerFired) Kind() Kind        { return "TimerFired" }
func (ServerStarted) Kind() Kind     { return "ServerStarted" }
func (TakenOver) Kind() Kind         { return "TakenOver" }

// EffectKind names what the world must be made to do.
type EffectKind string

// The effects. All are idempotent.
const (
	StartRuntime    EffectKind = "StartRuntime"    // start Launch, from the checkpoint if there is one; answer StartSucceeded or StartFailed
	CaptureRuntime  EffectKind = "CaptureRuntime"  // freeze and capture Launch; answer CaptureReady or CaptureEnded
	CaptureSnapshot EffectKind = "CaptureSnapshot" // copy what Launch is beside it; answer SnapshotTaken or SnapshotFailed
	AbortCapture    EffectKind = "AbortCapture"    // end the capture of Op soon; the capture answers CaptureEnded or SnapshotFailed
	ShortenDrain    EffectKind = "ShortenDrain"    // the capture of Op is of an explicit pause now: it waits less for requests in flight
	ReleaseRuntime  EffectKind = "ReleaseRuntime"  // destroy the runtime of Launch and what it holds
	RestRuntime     EffectKind = "RestRuntime"     // ReleaseRuntime, now or later: until then a StartRuntime may have Launch go on
	DropCheckpoint  EffectKind = "DropCheckpoint"  // delete a superseded checkpoint
	DropLayers      EffectKind = "DropLayers"      // delete layers that were merged into another
	Forget          EffectKind = "Forget"          // delete the record
	ReleaseAll      EffectKind = "ReleaseAll"      // destroy every runtime, checkpoint and layer; answer ReleaseDone
)

// Effect is one thing to do after the record is persisted.
type Effect struct {
	Kind       EffectKind
	Op         string
	Launch     int64 // names a runtime: launches are never repeated
	Generation int64 // that a launch is to serve as
	Checkpoint *Checkpoint
	Layers     []string
}

// EntryType names an entry of the event log.
type EntryType string

// The entries that this package writes.
const (
	EntryCreated        EntryType = "created"
	EntryRunning        EntryType = "running"
	EntryPausing        EntryType = "pausing"
	EntryPaused         EntryType = "paused"
	EntryPauseFailed    EntryType = "pause_failed"
	EntryPauseCancelled EntryType = "pause_cancelled"
	EntryResuming       EntryType = "resuming"
	EntryResumed        EntryType = "resumed"
	EntryResumeFailed   EntryType = "resume_failed"
	EntryTimeoutSet     EntryType = "timeout_set"
	EntryUpdated        EntryType = "updated"
	EntryHeld           EntryType = "hold.opened"
	EntryReleased       EntryType = "hold.closed"
	EntryStalled        EntryType = "hold.stalled"
	EntryStarved        EntryType = "process.ended" // for want of memory
	EntrySecretUsed     EntryType = "secret.used"
	EntrySecretRefused  EntryType = "secret.refused" // a connection to a host that a secret is for

	// What happens to a sandbox's services, as its agent tells.
	EntryServiceStarted    EntryType = "service.started"
	EntryServiceReady      EntryType = "service.ready"
	EntryServiceCrashed    EntryType = "service.crashed"
	EntryServiceEnded      EntryType = "service.ended"
	EntryServiceBackingOff EntryType = "service.backing_off"

	EntryExpiring       EntryType = "expiring"
	EntryTerminated     EntryType = "terminated"
	EntryRuntimeLost    EntryType = "runtime_lost"
	EntryImported       EntryType = "imported"
	EntryMoved          EntryType = "moved" // to another server, which has it from here on
	EntrySnapshotted    EntryType = "snapshotted"
	EntrySnapshotFailed EntryType = "snapshot_failed"
	EntryForked         EntryType = "forked"
	EntryRestored       EntryType = "restored"       // the state is that of a snapshot from here on
	EntryRestoreFailed  EntryType = "restore_failed" // and nothing has changed
)

// Entry is one line of the event log, written in the transaction of the change
// it describes.
type Entry struct {
	Type       EntryType     `json:"type"`
	At         time.Time     `json:"at"`
	Generation int64         `json:"generation"`
	From       Situation     `json:"from"`
	To         Situation     `json:"to"`
	Op         string        `json:"op,omitempty"`
	Cause      Cause         `json:"cause,omitempty"`
	Actor      string        `json:"actor,omitempty"`
	Duration   time.Duration `json:"duration,omitempty"` // of the operation that ended
	Bytes      int64         `json:"bytes,omitempty"`    // that the operation wrote
	Freed      int64         `json:"freed,omitempty"`    // bytes of memory that it gives back
	StartedAt  time.Time     `json:"startedAt,omitzero"` // when the time awake began that ended with it
	Detail     string        `json:"detail,omitempty"`
	Damaged    bool          `json:"damaged,omitempty"`    // it failed because the checkpoint is not what was written
	Unreadable bool          `json:"unreadable,omitempty"` // it failed because the memory image is of another version of the runtime, or of other files of the host
}
