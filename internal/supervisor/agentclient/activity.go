package agentclient

import (
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/human"
)

// activityAnswer is agentapi.Activity as a hostile agent may send it: with no
// more in it than a true one has, however much there was. An array takes what
// it has room for; a slice would take a hundred times the answer's length.
type activityAnswer struct {
	Now       time.Time                                `json:"now"`
	Processes [agentapi.MaxProcesses]*agentapi.Process `json:"processes"`
	Leases    [agentapi.MaxLeases]*agentapi.HeldWork   `json:"leases"`
	LastEnd   time.Time                                `json:"lastEnd"`
	Released  time.Time                                `json:"lastRelease"`
}

// activity returns what was said, fit to be kept and shown.
func (a *activityAnswer) activity() agentapi.Activity {
	seen := agentapi.Activity{Now: a.Now, LastEnd: a.LastEnd, LastRelease: a.Released}
	for _, p := range a.Processes {
		if p != nil {
			p.Command = human.Line(p.Command, agentapi.MaxCommand)
			seen.Processes = append(seen.Processes, *p)
		}
	}
	for _, l := range a.Leases {
		if l != nil {
			l.ID = human.Line(l.ID, agentapi.MaxReason)
			l.Reason = human.Line(l.Reason, agentapi.MaxReason)
			seen.Leases = append(seen.Leases, *l)
		}
	}
	return seen
}

// reliefAnswer is agentapi.Relief as a hostile agent may send it.
type reliefAnswer struct {
	Ended [agentapi.MaxRelieved]*agentapi.EndedProcess `json:"ended"`
}

// ended returns what was said, fit to be kept and shown.
func (a *reliefAnswer) ended() []agentapi.EndedProcess {
	var list []agentapi.EndedProcess
	for _, e := range a.Ended {
		if e != nil {
			e.Command, e.Bytes = human.Line(e.Command, agentapi.MaxCommand), max(e.Bytes, 0)
			list = append(list, *e)
		}
	}
	return list
}

// ToHostClock moves the times of seen to the host's clock.
func ToHostClock(seen agentapi.Activity, now time.Time) agentapi.Activity {
	skew := now.Sub(seen.Now)
	move := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(skew).UTC()
		}
	}
	// The guest is hostile: it made no progress in the future.
	past := func(t *time.Time) {
		move(t)
		if t.After(now) {
			*t = now
		}
	}
	for i := range seen.Processes {
		past(&seen.Processes[i].Since)
		past(&seen.Processes[i].LastProgress)
	}
	for i := range seen.Leases {
		past(&seen.Leases[i].Since)
		move(&seen.Leases[i].Until)
	}
	past(&seen.LastEnd)
	past(&seen.LastRelease)
	return seen
}
