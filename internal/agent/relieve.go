package agent

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// relief ends the largest processes, so that the sandbox does not end.
type relief struct {
	processes *processes
	journal   *journal
}

func (r relief) handle(w http.ResponseWriter, req *http.Request) {
	want, err := strconv.ParseInt(req.URL.Query().Get(agentapi.ParamBytes), 10, 64)
	if err != nil || want <= 0 {
		writeError(w, faultf(invalid, "the parameter %s is no number of bytes", agentapi.ParamBytes))
		return
	}
	ended, err := r.end(want)
	if err != nil {
		writeError(w, faultf(internal, "look at the processes: %w", err))
		return
	}
	writeJSON(w, http.StatusOK, agentapi.Relief{Ended: ended})
}

// end ends processes that descend from the agent, the largest first, until
// those that it ended held want bytes. Memory that processes share counts for
// each: whoever asked looks whether enough came back.
func (r relief) end(want int64) ([]agentapi.EndedProcess, error) {
	var proc procReader
	if err := proc.open(); err != nil {
		return nil, err
	}
	defer proc.close()
	pids, err := proc.pids()
	if err != nil {
		return nil, err
	}
	all := make(map[int]procStat, len(pids))
	for _, pid := range pids {
		if stat, ok := proc.stat(pid); ok {
			all[pid] = stat
		}
	}
	ended := []agentapi.EndedProcess{}
	for _, p := range largest(all, os.Getpid()) {
		if want <= 0 || len(ended) == agentapi.MaxRelieved {
			break
		}
		command, _ := proc.commandLine(p.pid, p.name)
		// A pid is given out again only when all others were: until it is looked
		// at again, it cannot mean another process, but that one may have ended.
		if now, ok := proc.stat(p.pid); !ok || now.start != p.start || now.gone() {
			continue
		}
		e := agentapi.EndedProcess{PID: p.pid, Command: command, Bytes: p.memory}
		r.tellStarved(all, e)
		if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
			continue
		}
		r.journal.add("error", "out of memory: "+starved(e), map[string]string{"pid": strconv.Itoa(p.pid)})
		ended = append(ended, e)
		want -= p.memory
	}
	return ended, nil
}

// largest lists the processes that descend from one of them and hold memory, the
// largest first.
func largest(all map[int]procStat, ancestor int) []procStat {
	var list []procStat
	for _, p := range all {
		if p.memory > 0 && !p.gone() && descends(all, p, ancestor) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(p, q procStat) int {
		if p.memory != q.memory {
			return int(min(max(q.memory-p.memory, -1), 1))
		}
		return p.pid - q.pid
	})
	return list
}

// descends reports whether a process has an ancestor. What was read while
// processes came and went may go round in a circle.
func descends(all map[int]procStat, p procStat, ancestor int) bool {
	for range len(all) {
		if p.parent == ancestor {
			return true
		}
		next, ok := all[p.parent]
		if !ok {
			return false
		}
		p = next
	}
	return false
}

// tellStarved notes with the process that was started through the API what is
// about to be ended.
func (r relief) tellStarved(all map[int]procStat, e agentapi.EndedProcess) {
	started := map[int]*process{}
	for _, p := range r.processes.running() {
		started[int(p.pid)] = p
	}
	pid := e.PID
	for range len(all) {
		if p := started[pid]; p != nil {
			text := "out of memory: " + starved(e)
			p.starved.Store(&text)
			return
		}
		stat, ok := all[pid]
		if !ok {
			return
		}
		pid = stat.parent
	}
}

// starved says what was ended.
func starved(e agentapi.EndedProcess) string {
	return fmt.Sprintf("process %d (%s) was ended; it held %d MiB", e.PID, e.Command, e.Bytes>>20)
}
