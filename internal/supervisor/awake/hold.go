package awake

import (
	"time"
)

// HoldKind says what kind of work a hold is evidence of.
type HoldKind string

// The kinds of holds.
const (
	HoldRequest HoldKind = "request" // a request is being answered
	HoldStream  HoldKind = "stream"  // a stream is open
	HoldProcess HoldKind = "process" // a process started through the API, or a descendant, is alive
	HoldLease   HoldKind = "lease"   // somebody asked
)

// HoldKinds returns every kind of hold.
func HoldKinds() []HoldKind {
	return []HoldKind{HoldRequest, HoldStream, HoldProcess, HoldLease}
}

// Hold is evidence of work in progress.
type Hold struct {
	ID           string    `json:"id"`
	Kind         HoldKind  `json:"kind"`
	Detail       string    `json:"detail"` // port, command or reason
	Since        time.Time `json:"since"`
	LastProgress time.Time `json:"lastProgress"`
	Until        time.Time `json:"until,omitzero"` // when it ends or stalls if nothing happens; zero for never
	Counts       bool      `json:"counts"`         // false once stalled, of a port whose traffic is ignored, and of a process where only requests count
}

// Blindness says that a sandbox does not tell what goes on inside, and what
// follows from that.
type Blindness struct {
	Since time.Time // zero: it tells
	// Defers says that the idle timeout is held back for it, until Until at the
	// latest; a zero Until is for as long as it lasts, because the idle timeout
	// would end the sandbox.
	Defers bool
	Until  time.Time
}
