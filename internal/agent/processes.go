package agent

import (
	"slices"
	"sync"
	"time"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
)

// processes finds processes by pid or tag, from their start until retention
// after their end.
type processes struct {
	mu    sync.Mutex
	byPID map[uint32]*process
}

func newProcesses() *processes { return &processes{byPID: map[uint32]*process{}} }

// add replaces a process that has ended and whose pid is in use again.
func (ps *processes) add(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.byPID[p.pid] = p
}

// ended lets go of p once nobody can ask for its end any more.
func (ps *processes) ended(p *process) {
	time.AfterFunc(retention, func() {
		ps.mu.Lock()
		defer ps.mu.Unlock()
		if ps.byPID[p.pid] == p {
			delete(ps.byPID, p.pid)
		}
	})
}

// running lists what is alive, by pid.
func (ps *processes) running() []*process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var list []*process
	for _, p := range ps.byPID {
		if p.alive() {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *process) int { return int(a.pid) - int(b.pid) })
	return list
}

// find returns a process that may have ended. Tags need not be unique: one
// that is alive goes first.
func (ps *processes) find(sel *processpb.ProcessSelector) (*process, error) {
	switch s := sel.GetSelector().(type) {
	case *processpb.ProcessSelector_Pid:
		ps.mu.Lock()
		defer ps.mu.Unlock()
		if p := ps.byPID[s.Pid]; p != nil {
			return p, nil
		}
		return nil, faultf(notFound, "process with pid %d not found", s.Pid)
	case *processpb.ProcessSelector_Tag:
		if p := ps.tagged(s.Tag); p != nil {
			return p, nil
		}
		return nil, faultf(notFound, "process with tag '%s' not found", s.Tag)
	}
	return nil, faultf(invalid, "the process selector names neither a pid nor a tag")
}

// hungUpBy returns the terminal that a word hangs up; nil if there is none.
func (ps *processes) hungUpBy(word string) *process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byPID {
		if p.hangUpWord != "" && equalSecret(p.hangUpWord, word) {
			return p
		}
	}
	return nil
}

func (ps *processes) tagged(tag string) *process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var found *process
	for _, p := range ps.byPID {
		if p.tag != nil && *p.tag == tag && (found == nil || p.alive() && !found.alive()) {
			found = p
		}
	}
	return found
}

// findAlive returns a process that can still be acted on.
func (ps *processes) findAlive(sel *processpb.ProcessSelector) (*process, error) {
	p, err := ps.find(sel)
	if err != nil {
		return nil, err
	}
	if !p.alive() {
		return nil, faultf(notFound, "process %d has ended", p.pid)
	}
	return p, nil
}
