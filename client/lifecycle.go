package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// HoldKind says what kind of work a hold is evidence of.
type HoldKind string

// The kinds.
const (
	HoldRequest HoldKind = "request" // a request is being answered
	HoldStream  HoldKind = "stream"  // a stream is open
	HoldProcess HoldKind = "process" // a command, or what it started, is alive
	HoldLease   HoldKind = "lease"   // somebody asked
)

// Hold is evidence of work in progress. While one counts, the sandbox is not
// idle.
type Hold struct {
	ID           string    `json:"id"`
	Kind         HoldKind  `json:"kind"`
	Detail       string    `json:"detail"` // the port, command or reason
	Since        time.Time `json:"since"`
	LastProgress time.Time `json:"lastProgress,omitzero"`
	Until        time.Time `json:"until,omitzero"` // when it stops counting if nothing happens; zero for never
	Counts       bool      `json:"counts"`         // false once it has stalled, for traffic that is ignored, and for processes where only requests count
}

// HoldOptions says why a sandbox is busy, and for how long.
type HoldOptions struct {
	ID     string        // to prolong a hold, or to name one; made if empty
	Reason string        // shown to whoever asks why it is awake
	For    time.Duration // how long at most, from now
}

// Hold counts a running sandbox as busy until it is released or its time has
// passed. With the id of a hold that exists, it begins anew. ErrNotRunning: it
// sleeps.
func (c *Client) Hold(ctx context.Context, id string, o HoldOptions) (Hold, error) {
	in := struct {
		ID      string  `json:"id,omitempty"`
		Reason  string  `json:"reason"`
		Seconds seconds `json:"seconds"`
	}{o.ID, o.Reason, seconds(o.For)}
	var h Hold
	if err := c.on(ctx, http.MethodPost, id, "/holds", in, &h); err != nil {
		return Hold{}, fmt.Errorf("hold sandbox %s: %w", id, err)
	}
	return h, nil
}

// ReleaseHold ends a hold before its time. ErrNotFound: there is none of that
// id, or it has run out.
func (c *Client) ReleaseHold(ctx context.Context, id, hold string) error {
	if err := c.on(ctx, http.MethodDelete, id, "/holds/"+url.PathEscape(hold), nil, nil); err != nil {
		return fmt.Errorf("release hold %s of sandbox %s: %w", hold, id, err)
	}
	return nil
}

// Holds returns what keeps a sandbox awake, those that count first.
func (c *Client) Holds(ctx context.Context, id string) ([]Hold, error) {
	var out struct {
		Holds []Hold `json:"holds"`
	}
	if err := c.on(ctx, http.MethodGet, id, "/holds", nil, &out); err != nil {
		return nil, fmt.Errorf("list the holds of sandbox %s: %w", id, err)
	}
	return out.Holds, nil
}

// Explanation says why a sandbox is as it is and what happens next.
type Explanation struct {
	Sandbox       string        `json:"sandbox"`
	State         State         `json:"state"`
	Sleep         Sleep         `json:"sleep"` // while State is Paused
	Phase         Phase         `json:"phase"`
	Generation    int64         `json:"generation"`
	Operation     *Operation    `json:"operation"` // the one in flight
	Busy          bool          `json:"busy"`      // a hold counts
	Holds         []Hold        `json:"holds"`
	Telemetry     Telemetry     `json:"telemetry"`
	Clocks        []Clock       `json:"clocks"` // in order of precedence
	Next          Next          `json:"next"`
	PauseFailures int           `json:"pauseFailures"` // automatic pauses, in a row
	PauseRetryAt  time.Time     `json:"pauseRetryAt"`
	LastError     string        `json:"lastError"`
	Checkpoint    *Checkpoint   `json:"checkpoint"` // what a resume restores
	Lineage       []Ancestor    `json:"lineage"`    // what it started from, and what that was of, nearest first
	Restored      *Moment       `json:"restored"`   // what it went back to last; nil if it never did
	Refusals      []Refusal     `json:"refusals"`   // the last things outside that it did not get through to, newest first
	Services      []ServiceInfo `json:"services"`
	Transitions   []Event       `json:"transitions"` // the last ones, newest first
	Tombstone     *Tombstone    `json:"tombstone"`

	// Raw is the answer as it came.
	Raw json.RawMessage `json:"-"`
}

// Ancestor is a moment of a sandbox, which another goes on from.
type Ancestor struct {
	Sandbox    string    `json:"sandbox"`
	Generation int64     `json:"generation"`
	At         time.Time `json:"at"`
	Snapshot   string    `json:"snapshot"` // the id of the snapshot; empty for a fork
	Name       string    `json:"name"`     // that the snapshot had then
}

// Moment is a snapshot that a sandbox went back to, and when.
type Moment struct {
	Snapshot string    `json:"snapshot"`
	At       time.Time `json:"at"`
}

// Refusal is something outside that a sandbox did not get through to.
type Refusal struct {
	At     time.Time `json:"at"`
	Target string    `json:"target"`
	Reason string    `json:"reason"`
}

// Operation is the one change in flight of a sandbox.
type Operation struct {
	ID         string    `json:"id"`
	Phase      Phase     `json:"phase"`
	Attempt    int       `json:"attempt"` // from 1
	Cause      string    `json:"cause"`
	Actor      string    `json:"actor"`
	StartedAt  time.Time `json:"startedAt"`
	Deadline   time.Time `json:"deadline"`
	Mode       Mode      `json:"mode"`       // of a pause
	Cancelable bool      `json:"cancelable"` // access may cancel this pause
}

// ClockName names a clock.
type ClockName string

// The clocks, in order of precedence where several are due.
const (
	ClockLifetime  ClockName = "maxLifetime"
	ClockRetention ClockName = "pausedRetention"
	ClockTimeout   ClockName = "timeout"
	ClockIdle      ClockName = "idleTimeout"

	// ClockCheckpoint pauses and ends nothing: what runs is checkpointed and
	// runs on.
	ClockCheckpoint ClockName = "checkpointEvery"
)

// ClockStatus says how a clock stands.
type ClockStatus string

// The ways.
const (
	ClockOff     ClockStatus = "off"     // no limit was set
	ClockRunning ClockStatus = "running" // its deadline is known
	ClockHeld    ClockStatus = "held"    // it begins when the last hold ends
	ClockStopped ClockStatus = "stopped" // it does not run in this state
)

// Clock is a limit with what its end does.
type Clock struct {
	Name     ClockName     `json:"clock"`
	Status   ClockStatus   `json:"status"`
	Limit    time.Duration `json:"-"`
	Deadline time.Time     `json:"deadline,omitzero"`
	Action   Action        `json:"action"` // Pause, Kill, or for ClockCheckpoint "checkpoint"
	Reason   Reason        `json:"reason"` // that a sandbox ended by it has
}

// Telemetry says whether a sandbox tells what goes on inside, and what follows
// if it does not.
type Telemetry struct {
	MissingSince  time.Time `json:"missingSince,omitzero"`  // zero: it tells
	DefersIdle    bool      `json:"defersIdle"`             // the idle timeout is held back because of that
	DeferredUntil time.Time `json:"deferredUntil,omitzero"` // at the latest; zero for as long as it lasts
}

// Next is what happens to a sandbox by itself.
type Next struct {
	Text   string    `json:"text"`             // for people
	Action string    `json:"action,omitempty"` // pause, kill, finish (the operation in flight) or forget (the record); empty for nothing
	Clock  ClockName `json:"clock,omitempty"`
	At     time.Time `json:"at,omitzero"`
	// WaitsFor is what else has to happen first: the end of a hold of that kind
	// or "telemetry", for the idle timeout to begin; "traffic" or "resume", for
	// it to wake; empty for nothing.
	WaitsFor string `json:"waitsFor,omitempty"`
}

// Explain says why a sandbox is as it is and what happens next, also for one
// that sleeps or has ended. It is no activity.
func (c *Client) Explain(ctx context.Context, id string) (*Explanation, error) {
	x := &Explanation{}
	err := c.on(ctx, http.MethodGet, id, "/lifecycle", nil, &x.Raw)
	if err == nil {
		err = json.Unmarshal(x.Raw, x)
	}
	if err != nil {
		return nil, fmt.Errorf("explain sandbox %s: %w", id, err)
	}
	return x, nil
}
