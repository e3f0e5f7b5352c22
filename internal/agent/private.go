package agent

import (
	"net/http"
	"runtime/debug"
	"strconv"
	"syscall"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// fromHost wraps a handler that is for the host alone.
func (a *Agent) fromHost(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !a.host.knows(r.Header.Get(agentapi.HeaderInit)) {
			writeStatus(w, http.StatusUnauthorized, "the "+agentapi.HeaderInit+" header is missing or wrong")
			return
		}
		handler(w, r)
	}
}

// handleActivity tells what work there is.
func (a *Agent) handleActivity(w http.ResponseWriter, r *http.Request) {
	// What is no number is none.
	ignored, _ := strconv.ParseUint(r.URL.Query().Get(agentapi.ParamIgnored), 10, 63)
	processes, err := a.observer.look(ignored)
	if err != nil {
		writeError(w, faultf(internal, "look at the processes: %w", err))
		return
	}
	// Who has ended and was not seen any more has an end that is known.
	a.reaper.reap()
	now := wallNow()
	leases, ended := a.leases.list(now)
	writeJSON(w, http.StatusOK, agentapi.Activity{
		Now:         now,
		Processes:   processes,
		Leases:      leases,
		LastEnd:     later(a.observer.end(), ended),
		LastRelease: ended,
	})
}

// handleHangUp is told that the client which started a terminal has gone, and does not
// want it to stay. Another client that is connected to it keeps it. The streams of
// clients also end for a sleep or a restart of the server, so that alone says nothing.
func (a *Agent) handleHangUp(w http.ResponseWriter, r *http.Request) {
	p := a.processes.hungUpBy(r.Header.Get(agentapi.HeaderHangUp))
	if p == nil {
		writeStatus(w, http.StatusUnauthorized, "no terminal is to be hung up by what the "+agentapi.HeaderHangUp+" header has")
		return
	}
	p.out.unsubscribe(p.starter)
	if !p.out.watched() {
		p.hangUp()
	}
	w.WriteHeader(http.StatusNoContent)
}

// handleSync makes the sandbox ready for a pause: files are written back, and
// memory the agent does not use is not in the image.
func (a *Agent) handleSync(w http.ResponseWriter, _ *http.Request) {
	debug.FreeOSMemory()
	syscall.Sync()
	a.observer.awake()
	w.WriteHeader(http.StatusNoContent)
}
