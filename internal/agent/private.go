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
		Now:       now,
		Processes: processes,
		Leases:    leases,
		LastEnd:   later(a.observer.end(), ended),
	})
}

// handleSync makes the sandbox ready for a pause: files are written back, and
// memory the agent does not use is not in the image.
func (a *Agent) handleSync(w http.ResponseWriter, _ *http.Request) {
	debug.FreeOSMemory()
	syscall.Sync()
	a.observer.awake()
	w.WriteHeader(http.StatusNoContent)
}
