package mcp

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
)

// Bounds of sessions. A client that comes back without its session begins another,
// so that one of a key which nobody has used for long makes room.
const (
	maxSessions    = 512
	maxKeySessions = 32
)

// bounded returns a handler of requests whose key is known. Each counts for the key
// while it lasts, as a stream does, and so does its body, which is read here.
func (s *Server) bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := held.From(r, userOf(r))
		leave, err := s.room.Session(held.Who{Key: who.Key}) // the connection counts for the address
		if err != nil {
			http.Error(w, err.Error(), statusOf(err))
			return
		}
		defer leave()
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Time{})
		if r.ContentLength != 0 {
			share := s.room.Passing(who)
			defer share.Free()
			data, err := held.ReadBody(w, r, share, maxRequest, s.patience)
			if err != nil {
				w.Header().Set("Connection", "close")
				http.Error(w, err.Error(), statusOf(err))
				return
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
		}
		h.ServeHTTP(w, r)
	})
}

// userOf is the user of a request, which stands for its key.
func userOf(r *http.Request) string { return auth.TokenInfoFromContext(r.Context()).UserID }

func statusOf(err error) int {
	switch e, _ := errors.AsType[*errdef.Error](err); {
	case e == nil:
		return http.StatusInternalServerError
	case e.Code == "body_too_large":
		return http.StatusRequestEntityTooLarge
	case e.Code == "body_timed_out":
		return http.StatusRequestTimeout
	case e.Class == errdef.Exhausted:
		return http.StatusTooManyRequests
	}
	return http.StatusBadRequest
}

// sessions are those of all clients.
type sessions struct {
	sdk *mcp.Server

	mu     sync.Mutex
	of     map[string]*session // by id
	coming int                 // that have no id yet
}

type session struct {
	user string
	used time.Time
}

// serve has h answer a request, if it is of a session or there is room for a new one.
func (ss *sessions) serve(h http.Handler, w http.ResponseWriter, r *http.Request) {
	const header = "Mcp-Session-Id"
	if id := r.Header.Get(header); id != "" || r.Method != http.MethodPost {
		ss.use(id)
		h.ServeHTTP(w, r)
		return
	}
	user := userOf(r)
	if !ss.enter(user) {
		http.Error(w, "this server has as many sessions as it may: end some, then try again", http.StatusServiceUnavailable)
		return
	}
	defer func() { ss.note(w.Header().Get(header), user) }()
	h.ServeHTTP(w, r)
}

func (ss *sessions) use(id string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s := ss.of[id]; s != nil {
		s.used = time.Now()
	}
}

// enter makes room for a session of a user, and reports whether there is any. The one
// of the user's that was used longest ago ends where there are too many.
func (ss *sessions) enter(user string) bool {
	open := map[string]*mcp.ServerSession{}
	for s := range ss.sdk.Sessions() {
		open[s.ID()] = s
	}
	ss.mu.Lock()
	users, oldest := 0, ""
	for id, s := range ss.of {
		if open[id] == nil {
			delete(ss.of, id)
			continue
		}
		if s.user == user {
			users++
			if oldest == "" || s.used.Before(ss.of[oldest].used) {
				oldest = id
			}
		}
	}
	if users < maxKeySessions {
		oldest = ""
	}
	delete(ss.of, oldest)
	ok := len(ss.of)+ss.coming < maxSessions
	if ok {
		ss.coming++
	}
	ss.mu.Unlock()
	if oldest != "" {
		_ = open[oldest].Close()
	}
	return ok
}

// note writes down the session that a request has begun; "" for none.
func (ss *sessions) note(id, user string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.coming--
	if id != "" {
		ss.of[id] = &session{user, time.Now()}
	}
}
