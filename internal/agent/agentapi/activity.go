package agentapi

import (
	"strings"
	"time"
)

// Paths of the agent that only the host or the sandbox itself may use; the
// edge does not forward anything below PathPrivate.
const (
	PathPrivate  = "/drowse/"
	PathActivity = "/drowse/activity" // GET, with HeaderInit: Activity
	PathSync     = "/drowse/sync"     // POST, with HeaderInit: flush files, give memory back
	PathLog      = "/drowse/log"      // GET, with HeaderInit: Log
	PathRelieve  = "/drowse/relieve"  // POST, with HeaderInit: end the largest processes: Relief
	PathHangUp   = "/drowse/hangup"   // POST, with HeaderHangUp, which is all it takes: the client of a terminal has gone
	PathHolds    = "/drowse/holds"    // GET, POST, DELETE, from inside without a credential: leases

	// With HeaderInit: GET is a service.Report, and POST makes a list of services
	// all that runs. Below it: the log of one (GET: service.Lines), waiting until it
	// is ready (GET: service.Status), and starting it again (POST).
	PathServices       = "/drowse/services"
	PathServiceLog     = "/drowse/services/log"
	PathServiceReady   = "/drowse/services/ready"
	PathServiceRestart = "/drowse/services/restart"
)

// ParamIgnored is the query parameter of PathActivity with the number of bytes
// that traffic which is not to count has moved since the last answer. I/O up
// to that is no progress.
const ParamIgnored = "ignored"

// ParamBytes is the query parameter of PathRelieve with how much memory is to
// come back.
const ParamBytes = "bytes"

// ParamService is the query parameter with the name of a service, and ParamLines
// that of PathServiceLog with how many lines are wanted at most.
const (
	ParamService = "service"
	ParamLines   = "lines"
)

// ParamAfter is the query parameter of PathLog, PathServices and PathServiceLog with
// the Seq of the last line or event that the host has.
const ParamAfter = "after"

// Limits of leases asked for inside.
const (
	MaxLeases       = 100
	MaxLeaseSeconds = 24 * 60 * 60
	MaxReason       = 200 // bytes
)

// Limits of the word in HeaderHangUp.
const (
	MinHangUpWord = 16
	MaxHangUpWord = 64
)

// IsHangUpWord reports whether a text can be in HeaderHangUp.
func IsHangUpWord(word string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return len(word) >= MinHangUpWord && len(word) <= MaxHangUpWord && strings.Trim(word, allowed) == ""
}

// Limits of what an agent says of the processes inside.
const (
	MaxTerminals = 1000
	MaxProcesses = 1000
	MaxCommand   = 200 // bytes of a command line
)

// Limits of what an agent keeps of its log.
const (
	MaxLogLines   = 500
	MaxLogMessage = 1024 // bytes
)

// Log is what happened in the sandbox through the API, oldest first.
type Log struct {
	Lines []LogLine `json:"lines"`
}

// LogLine is one line of it.
type LogLine struct {
	Seq     int64             `json:"seq"` // from 1 in the life of an agent
	At      time.Time         `json:"at"`
	Level   string            `json:"level"`
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields,omitempty"`
}

// Activity is what the agent knows of work in the sandbox. Times are by the
// sandbox's clock, which Now relates to the host's.
type Activity struct {
	Now       time.Time  `json:"now"`
	Processes []Process  `json:"processes"`
	Leases    []HeldWork `json:"leases"`
	// LastEnd is when a process or lease last ended; zero if none has.
	LastEnd time.Time `json:"lastEnd,omitzero"`
	// LastRelease is when a lease last ended; zero if none has, or the agent is older.
	LastRelease time.Time `json:"lastRelease,omitzero"`
}

// Process is one that was started through the API, or a descendant of one.
type Process struct {
	PID     int       `json:"pid"`
	Root    int       `json:"root"` // the pid that was started through the API; 0 when not known any more
	Command string    `json:"command"`
	Since   time.Time `json:"since"`
	// LastProgress is when it or a descendant was last seen to work: to use
	// more CPU than idling takes, to do I/O, to start or lose a child. Time
	// asleep is not counted: it moves on by that at every wake.
	LastProgress time.Time `json:"lastProgress"`
}

// MaxRelieved is how many processes the agent ends when asked once for memory.
const MaxRelieved = 100

// Relief is what the agent ended to get memory back, the largest first.
type Relief struct {
	Ended []EndedProcess `json:"ended"`
}

// EndedProcess is one of them.
type EndedProcess struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Bytes   int64  `json:"bytes"` // of memory that it held
}

// HeldWork is a lease that a program inside the sandbox asked for: it is busy
// until a time at the latest.
type HeldWork struct {
	ID     string    `json:"id"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
}

// HoldRequest is the body of POST PathHolds. A known id renews that lease, a
// new one names it; without one the agent chooses.
type HoldRequest struct {
	ID      string  `json:"id,omitempty"`
	Reason  string  `json:"reason"`
	Seconds float64 `json:"seconds"`
}
