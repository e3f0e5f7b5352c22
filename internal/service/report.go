package service

import "time"

// State is how a service is.
type State string

// The states.
const (
	Waiting    State = "waiting"     // for the services that it starts after
	Starting   State = "starting"    // its process runs, and is not ready yet
	IsReady    State = "ready"       // it serves
	BackingOff State = "backing-off" // it has ended, and is started again in a while
	Done       State = "done"        // it has ended with success, and is not started again
	Failed     State = "failed"      // it has ended without, and is not started again
	Stopping   State = "stopping"    // it is being ended
)

// Final reports whether the service gets to no other state by itself.
func (s State) Final() bool { return s == Done || s == Failed }

// Status is what the agent says of a service. Times are by the sandbox's clock;
// those that do not apply are zero.
type Status struct {
	Name      string    `json:"name"`
	State     State     `json:"state"`
	Since     time.Time `json:"since"` // of the state
	PID       int       `json:"pid,omitempty"`
	Starts    int       `json:"starts"`   // of a process, since the sandbox booted
	Failures  int       `json:"failures"` // in a row
	StartedAt time.Time `json:"startedAt,omitzero"`
	ReadyAt   time.Time `json:"readyAt,omitzero"`
	NextAt    time.Time `json:"nextAt,omitzero"`   // of BackingOff: when it is started again
	LastEnd   string    `json:"lastEnd,omitempty"` // of what it ended last
	WaitsFor  string    `json:"waitsFor,omitempty"`
}

// EventType says what happened to a service.
type EventType string

// The types.
const (
	EventStarted    EventType = "started"
	EventReady      EventType = "ready"
	EventCrashed    EventType = "crashed" // it ended, and was not meant to
	EventEnded      EventType = "ended"   // with success, or because it was stopped
	EventBackingOff EventType = "backing_off"
)

// Event is something that happened to a service.
type Event struct {
	Seq     int64     `json:"seq"` // from 1 in the life of an agent
	At      time.Time `json:"at"`
	Service string    `json:"service"`
	Type    EventType `json:"type"`
	Detail  string    `json:"detail,omitempty"`
}

// Report is what the agent says of all services.
type Report struct {
	Now      time.Time `json:"now"`
	Services []Status  `json:"services"`
	Events   []Event   `json:"events"` // those after the one that was asked for, oldest first
	Life     string    `json:"life"`   // of the agent, which numbers events: another one after each boot
}

// Limits of what an agent keeps and says.
const (
	MaxEvents   = 200
	MaxDetail   = 300       // bytes of a text in a report
	MaxLine     = 4 << 10   // bytes of a line of a log; longer ones are parted
	MaxLines    = 1000      // of a log
	MaxLogBytes = 256 << 10 // of a log
)

// Line is a line that a service has written.
type Line struct {
	Seq  int64     `json:"seq"` // from 1 in the life of an agent
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// Lines are the last lines of a service, oldest first.
type Lines struct {
	Lines []Line `json:"lines"`
}
