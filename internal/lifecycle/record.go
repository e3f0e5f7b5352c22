package lifecycle

import (
	"slices"
	"strings"
	"time"
)

// State is the committed state of a sandbox.
type State string

// The committed states. A pending sandbox was asked for and has never run.
const (
	Pending    State = "pending"
	Running    State = "running"
	Paused     State = "paused"
	Terminated State = "terminated"
)

// Phase names the operation in flight; the empty phase means none.
type Phase string

// The phases.
const (
	None         Phase = ""
	Creating     Phase = "creating"
	Pausing      Phase = "pausing"
	Resuming     Phase = "resuming"
	Snapshotting Phase = "snapshotting"
	Killing      Phase = "killing"
)

// Action is what expiry of a clock does.
type Action string

// The actions.
const (
	Kill  Action = "kill"
	Pause Action = "pause"

	// TakeCheckpoint is what ClockCheckpoint does; no owner can ask for it of
	// another clock.
	TakeCheckpoint Action = "checkpoint"
)

// Mode is what a pause keeps.
type Mode string

// The modes. Memory keeps processes, memory and disk; Filesystem keeps the disk
// alone, and a resume boots afresh.
const (
	Memory     Mode = "memory"
	Filesystem Mode = "filesystem"
)

// Cause says what set an operation off.
type Cause string

// The causes.
const (
	CauseCall     Cause = "call"     // somebody asked through an API
	CauseTimeout  Cause = "timeout"  // the soft timeout passed
	CauseIdle     Cause = "idle"     // nothing happened for the idle timeout
	CauseAccess   Cause = "access"   // traffic reached a paused sandbox
	CauseFailure  Cause = "failure"  // something broke
	CauseRecovery Cause = "recovery" // the server found it so at start-up
	// CauseCheckpoint is of a pause that goes over into a resume: only the
	// checkpoint was wanted.
	CauseCheckpoint Cause = "checkpoint"
	CauseRestore    Cause = "restore"  // the sandbox goes back to a snapshot
	CauseShutdown   Cause = "shutdown" // the server stops, and was told to pause everything
	CauseDisk       Cause = "disk"     // its files take more than they may
	CauseMove       Cause = "move"     // it goes to another server, and runs on there
)

// GoesOn reports whether a pause for this cause goes over into a resume.
func (c Cause) GoesOn() bool { return c == CauseCheckpoint || c == CauseRestore }

// Reason says why a sandbox ended.
type Reason string

// The reasons.
const (
	Killed              Reason = "Killed"
	TimeoutExpired      Reason = "TimeoutExpired"
	IdleTimeout         Reason = "IdleTimeout"
	MaxLifetimeExceeded Reason = "MaxLifetimeExceeded"
	PausedExpired       Reason = "PausedExpired"
	OutOfMemory         Reason = "OutOfMemory"
	OutOfDisk           Reason = "OutOfDisk"
	OutOfProcesses      Reason = "OutOfProcesses"
	RuntimeExited       Reason = "RuntimeExited"
	RuntimeLost         Reason = "RuntimeLost"
	CreateFailed        Reason = "CreateFailed"
)

// with returns what the event log says of an end: the reason, and what is known
// besides.
func (r Reason) with(detail string) string {
	if detail == "" {
		return string(r)
	}
	return string(r) + ": " + detail
}

// ReasonOf returns the reason that the detail of an entry of the event log
// begins with.
func ReasonOf(detail string) Reason {
	reason, _, _ := strings.Cut(detail, ":")
	return Reason(reason)
}

// Operation is the one change in flight.
type Operation struct {
	ID         string        `json:"id"`
	Phase      Phase         `json:"phase"`
	Attempt    int           `json:"attempt"` // from 1
	Cause      Cause         `json:"cause"`
	Actor      string        `json:"actor,omitempty"`
	StartedAt  time.Time     `json:"startedAt"`
	Deadline   time.Time     `json:"deadline"`             // when it ends in the safer neighbour
	Generation int64         `json:"generation"`           // the generation it starts or ends
	Launch     int64         `json:"launch,omitempty"`     // the launch it waits for
	Timeout    time.Duration `json:"timeout,omitempty"`    // the soft timeout that a start begins; 0 for none
	Mode       Mode          `json:"mode,omitempty"`       // of a pause
	Without    string        `json:"without,omitempty"`    // of a pause: as of its Checkpoint
	Cancelable bool          `json:"cancelable,omitempty"` // access may cancel this pause
	Canceling  bool          `json:"canceling,omitempty"`  // the pause is to be undone, not committed
	Carry      *Carry        `json:"carry,omitempty"`      // of a resume that ends a checkpoint, a restore or a move
	Restore    *Restore      `json:"restore,omitempty"`    // what follows the capture, if the sandbox goes back to a snapshot
	Boot       bool          `json:"boot,omitempty"`       // of a resume: from the files of a checkpoint with memory, which goes once it runs
	Before     *Settings     `json:"before,omitempty"`     // what a resume that fails goes back to; nil if it changed none
}

// MayRest reports whether the runtime that a pause captures may stay, frozen: a sandbox
// that has too many files is not to have them twice.
func (op *Operation) MayRest() bool {
	return op != nil && op.Mode == Memory && op.Restore == nil && op.Cause != CauseShutdown && op.Cause != CauseDisk
}

// Restore is what a sandbox goes back to.
type Restore struct {
	Checkpoint Checkpoint `json:"checkpoint"`
	Snapshot   string     `json:"snapshot"`       // whose checkpoint that is
	Undo       string     `json:"undo,omitempty"` // the id of the snapshot that is to keep the state before; empty for none
}

// Restored says to what a sandbox went back, and when.
type Restored struct {
	Snapshot string    `json:"snapshot"`
	At       time.Time `json:"at"`
}

// Carry is what a sandbox goes on with that was only checkpointed, went back to a
// snapshot, or moved.
type Carry struct {
	EndAt     time.Time `json:"endAt"`
	EndIsLive bool      `json:"endIsLive,omitempty"`
	Leases    []Lease   `json:"leases,omitempty"`
}

// Checkpoint names the verified checkpoint that a paused sandbox resumes from.
type Checkpoint struct {
	ID     string   `json:"id"`
	Mode   Mode     `json:"mode"`
	Stack  []string `json:"stack"`  // layer ids, bottom first
	Digest string   `json:"digest"` // SHA-256 of the image's manifest, hex
	// Layers has the SHA-256, in hex, of the listing of each layer of the stack.
	// Those that an older version froze have none.
	Layers map[string]string `json:"layers,omitempty"`
	Bytes  int64             `json:"bytes"` // what the pause wrote
	// Without says why there is no memory, where there was to be: what runs inside
	// kept it from being captured. Empty otherwise.
	Without string `json:"without,omitempty"`
	// Copy is the topmost layer of the stack, where that is a copy of what the runtime
	// writes to that was captured; empty where it is that itself, or nothing was written.
	Copy string `json:"copy,omitempty"`
	// AgentToken is the secret by which the agent in an imported image knows
	// its host; empty where that is this server's own.
	AgentToken string `json:"agentToken,omitempty"`
}

// Files returns the checkpoint without its memory image.
func (cp Checkpoint) Files() Checkpoint {
	cp.Mode, cp.Digest, cp.AgentToken = Filesystem, "", ""
	return cp
}

// Parts returns the ids of the layers and of the memory image that it is made of.
func (cp Checkpoint) Parts() []string {
	all := slices.Clone(cp.Stack)
	if cp.Mode == Memory {
		all = append(all, cp.ID)
	}
	return all
}

// Lowers returns the frozen layers that a runtime which serves writes over, with the
// digests of their listings. Both are the caller's.
func (r Record) Lowers() (stack []string, digests map[string]string) {
	digests = map[string]string{}
	if r.Checkpoint == nil {
		return nil, digests
	}
	for _, id := range r.Checkpoint.Stack {
		if r.Thawed && id == r.Checkpoint.Copy {
			continue
		}
		stack = append(stack, id)
		if digest, known := r.Checkpoint.Layers[id]; known {
			digests[id] = digest
		}
	}
	return stack, digests
}

// Tombstone is what remains of a terminated sandbox.
type Tombstone struct {
	Reason Reason    `json:"reason"`
	Detail string    `json:"detail,omitempty"`
	Actor  string    `json:"actor,omitempty"`
	At     time.Time `json:"at"`
}

// Record is the durable lifecycle of one sandbox. Times are UTC.
type Record struct {
	Settings   Settings    `json:"settings"`
	State      State       `json:"state"`
	Generation int64       `json:"generation"`       // of the runtime that serves or last served; 0 before the first
	Launch     int64       `json:"launch"`           // which launch of a runtime that was
	Launches   int64       `json:"launches"`         // how many were begun, failed ones included
	Thawed     bool        `json:"thawed,omitempty"` // that launch was captured as the checkpoint, stayed frozen, and went on
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
	Op         *Operation  `json:"op,omitempty"`

	CreatedAt time.Time `json:"createdAt"`
	StartedAt time.Time `json:"startedAt"`           // last start or resume
	EndAt     time.Time `json:"endAt"`               // soft timeout while running; zero for none
	EndSetAt  time.Time `json:"endSetAt"`            // when EndAt was given: activity before does not move it
	EndIsLive bool      `json:"endIsLive,omitempty"` // EndAt was set by TimeoutSet: idle does not fire before it
	Announced time.Time `json:"announced"`           // the EndAt that was announced as near
	PausedAt  time.Time `json:"pausedAt"`            // when it last became paused: by a pause, or by the loss of its runtime
	PausedFor Cause     `json:"pausedFor,omitempty"` // what set that off; empty in records of older versions
	Moves     *Carry    `json:"moves,omitempty"`     // what it goes on with that was paused to be moved, until it does

	PauseFailures int       `json:"pauseFailures,omitempty"` // in a row
	PauseRetryAt  time.Time `json:"pauseRetryAt"`            // no automatic pause before this
	LastError     string    `json:"lastError,omitempty"`     // why the last operation failed
	Hindered      Hindered  `json:"hindered,omitzero"`

	Restored *Restored `json:"restored,omitempty"` // what it went back to last; nil if it never did

	Leases       []Lease   `json:"leases,omitempty"` // holds that somebody asked for
	LeaseEndedAt time.Time `json:"leaseEndedAt"`     // when one last ended that was released

	Tombstone *Tombstone `json:"tombstone,omitempty"`
}

// Hindered is what is known of automatic pauses, in a row, that failed for what runs
// inside.
type Hindered struct {
	Times int    `json:"times"`
	By    string `json:"by"` // the last of them
}

// Lease is a hold that somebody asked for: the sandbox is busy, for a reason,
// until a time at the latest.
type Lease struct {
	ID     string    `json:"id"`
	Reason string    `json:"reason"`
	Actor  string    `json:"actor,omitempty"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
}

// EndedAt returns when the sandbox ended; zero if it has not.
func (r Record) EndedAt() (at time.Time) {
	if t := r.Tombstone; t != nil {
		at = t.At
	}
	return at
}

// Phase returns the operation in flight.
func (r Record) Phase() Phase {
	if r.Op == nil {
		return None
	}
	return r.Op.Phase
}

// Starts reports whether the operation in flight starts a runtime.
func (r Record) Starts() bool { return r.Phase() == Creating || r.Phase() == Resuming }

// Checkpointing reports whether the operation in flight checkpoints the sandbox or
// takes it back to a snapshot: it runs before and after.
func (r Record) Checkpointing() bool { return r.Op != nil && r.Op.Cause.GoesOn() }

// Situation returns the row of the table that the record is in: the phase
// while an operation is in flight, else the state.
func (r Record) Situation() Situation {
	if r.Op != nil {
		return Situation(r.Op.Phase)
	}
	return Situation(r.State)
}
