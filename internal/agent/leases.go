package agent

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// leases are what programs inside ask for: the sandbox is busy until a time.
// They end by the sandbox's clock, also while it sleeps.
type leases struct {
	mu      sync.Mutex
	byID    map[string]agentapi.HeldWork
	lastEnd time.Time
}

func newLeases() *leases { return &leases{byID: map[string]agentapi.HeldWork{}} }

// take makes a lease, or renews the one that has the id.
func (ls *leases) take(req agentapi.HoldRequest, now time.Time) (agentapi.HeldWork, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.expire(now)
	lease, known := ls.byID[req.ID]
	if !known {
		if len(ls.byID) >= agentapi.MaxLeases {
			return lease, faultf(exhausted, "there are %d holds already: release one, or renew one by its id", len(ls.byID))
		}
		lease = agentapi.HeldWork{ID: cmp.Or(req.ID, newLeaseID()), Since: now}
	}
	lease.Reason = req.Reason
	lease.Until = now.Add(time.Duration(req.Seconds * float64(time.Second)))
	ls.byID[lease.ID] = lease
	return lease, nil
}

func newLeaseID() string { return "hold-" + strings.ToLower(rand.Text()[:10]) }

// release reports false if there is no such lease.
func (ls *leases) release(id string, now time.Time) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.expire(now)
	if _, ok := ls.byID[id]; !ok {
		return false
	}
	delete(ls.byID, id)
	ls.lastEnd = now
	return true
}

// list returns the leases, oldest first, and when one last ended.
func (ls *leases) list(now time.Time) ([]agentapi.HeldWork, time.Time) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.expire(now)
	list := make([]agentapi.HeldWork, 0, len(ls.byID))
	for _, l := range ls.byID {
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b agentapi.HeldWork) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
	return list, ls.lastEnd
}

// expire is called with mu held.
func (ls *leases) expire(now time.Time) {
	for id, l := range ls.byID {
		if !now.Before(l.Until) {
			delete(ls.byID, id)
			ls.lastEnd = later(ls.lastEnd, l.Until)
		}
	}
}

// fromInside wraps a handler that needs no credential but is for programs in
// the sandbox alone: the host's connections come from another address.
func fromInside(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			writeStatus(w, http.StatusForbidden, "holds are taken from inside the sandbox, through localhost")
			return
		}
		handler(w, r)
	}
}

// maxHoldBody bounds the body of a request for a lease.
const maxHoldBody = 16 << 10

func (a *Agent) handleTakeHold(w http.ResponseWriter, r *http.Request) {
	var req agentapi.HoldRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxHoldBody)).Decode(&req); err != nil {
		writeError(w, faultf(invalid, "the body is no hold request: %w", err))
		return
	}
	err := checkHold(req)
	var lease agentapi.HeldWork
	if err == nil {
		lease, err = a.leases.take(req, wallNow())
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusCreated, lease)
}

func checkHold(req agentapi.HoldRequest) error {
	switch {
	case req.ID != "" && !validLeaseID(req.ID):
		return faultf(invalid, "id must be up to %d letters, digits, dots, dashes and underscores", maxLeaseID)
	case req.Reason == "":
		return faultf(invalid, "reason is required: say what the sandbox is busy with")
	case len(req.Reason) > agentapi.MaxReason:
		return faultf(invalid, "reason has %d bytes: at most %d", len(req.Reason), agentapi.MaxReason)
	case !utf8.ValidString(req.Reason) || strings.ContainsFunc(req.Reason, func(r rune) bool { return !unicode.IsPrint(r) }):
		return faultf(invalid, "reason must be printable")
	case !(req.Seconds > 0 && req.Seconds <= agentapi.MaxLeaseSeconds):
		return faultf(invalid, "seconds is %g: it must be more than 0 and at most %d", req.Seconds, agentapi.MaxLeaseSeconds)
	}
	return nil
}

const maxLeaseID = 64

func validLeaseID(id string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	return len(id) <= maxLeaseID && strings.Trim(id, allowed) == "" && strings.Trim(id, ".") != ""
}

func (a *Agent) handleListHolds(w http.ResponseWriter, _ *http.Request) {
	list, _ := a.leases.list(wallNow())
	writeJSON(w, http.StatusOK, list)
}

func (a *Agent) handleReleaseHold(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimPrefix(r.URL.Path, agentapi.PathHolds+"/")
	if !a.leases.release(id, wallNow()) {
		writeStatus(w, http.StatusNotFound, "there is no hold '"+wireText(id)+"': it was released or has run out")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
