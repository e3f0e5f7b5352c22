// Package failpoint marks the steps of an operation at which something is
// written down, or changes outside of the server. A server built with the tag
// failpoint can be made to crash there, to fail, to find the disk full, or to
// stop and wait, which is how test/e2e shows that nothing is lost. In any other
// build the marks compile to nothing.
//
// Tests and server meet in a directory that [EnvDir] names. The server adds a
// line to the file [ReachedFile] for each point that it passes. Faults are armed
// by putting a file [ArmedFile] there, one [Armed] a line; those that strike are
// added to [StruckFile].
package failpoint

import "fmt"

// EnvDir is the environment variable with the directory; without it no fault
// strikes.
const EnvDir = "DROWSE_FAILPOINTS"

// The files in that directory.
const (
	ArmedFile   = "armed"
	StruckFile  = "struck"
	ReachedFile = "reached"
)

// Fault is what happens at a point.
type Fault string

// The faults.
const (
	Crash    Fault = "crash" // SIGKILL
	Error    Fault = "error"
	DiskFull Fault = "full" // ENOSPC, at each pass from then on
	Hold     Fault = "hold" // waits there until it is no longer armed
)

// Armed is a fault that is to strike at the nth pass of a point, counted from
// when it is armed. Serial tells it from an equal one before it.
type Armed struct {
	Point  Point
	Fault  Fault
	Nth    int
	Serial int
}

const armedFormat = "%s %s %d %d\n"

// String returns the line of [ArmedFile].
func (a Armed) String() string { return fmt.Sprintf(armedFormat, a.Point, a.Fault, a.Nth, a.Serial) }
