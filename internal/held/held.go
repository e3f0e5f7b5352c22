// Package held counts what clients and guests have a server hold for them: bytes
// that wait to be passed on or to come to their end, what is kept for clients who
// ask later, and sessions. All doors of a server share one [Room], so that a key
// cannot have at each door what it may have in all.
//
// Everything counts for an API key, for a client's address where there is one, and
// in all. What is taken is taken before the memory is. All methods are safe for
// concurrent use.
package held

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/ration"
)

// The bounds. A server that holds all of it stays below 300 MiB but for what is
// kept: the garbage collector lets memory grow to twice of what is in use.
const (
	// Bytes that wait. Each of the largest bodies fits, which are those of MCP.
	MaxWaiting        = 64 << 20
	MaxKeyWaiting     = 24 << 20
	MaxAddressWaiting = 32 << 20
	// Bytes that are kept for clients who ask later, such as a command's output.
	maxKept    = 128 << 20
	maxKeyKept = 32 << 20
	// Sessions: connections that last, and programs that they run. Each takes some
	// 100 KiB for goroutines, streams and their buffers.
	maxSessions        = 2048
	maxKeySessions     = 512
	maxAddressSessions = 1024
	// Those of them that follow events.
	maxFollowers    = 512
	MaxKeyFollowers = 32
)

// waitingBounds says how many bytes may wait.
var waitingBounds = fmt.Sprintf("%d MiB in all, %d MiB at one address, %d MiB of one API key", MaxWaiting>>20, MaxAddressWaiting>>20, MaxKeyWaiting>>20)

// Room is what a server holds. Use New.
type Room struct {
	waiting, kept, sessions *ration.Ration
	makers                  *ration.Turns // those who make answers
}

// New returns the room of one server.
func New() *Room {
	return &Room{
		waiting: ration.New(MaxWaiting), kept: ration.New(maxKept), sessions: ration.New(maxSessions),
		makers: ration.NewTurns(runtime.GOMAXPROCS(0)),
	}
}

// Who is for whom something is held.
type Who struct {
	Key     string // the id of an API key, or what else proves who asks, with a colon in it
	Address string // of the client; "" for none
}

// From is the client of a request with a key.
func From(r *http.Request, key string) Who {
	return Who{Key: key, Address: AddressOf(r.RemoteAddr)}
}

// AddressOf is an address without its port.
func AddressOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}

// Holdings is what is held for a key.
type Holdings struct{ Waiting, Kept, Sessions int }

// Of returns what is held for a key.
func (r *Room) Of(key string) Holdings {
	name := keyHolder(key)
	return Holdings{r.waiting.Of(name), r.kept.Of(name), r.sessions.Of(name)}
}

// Keys returns the API keys for which something is held.
func (r *Room) Keys() []string {
	var keys []string
	for _, of := range []*ration.Ration{r.waiting, r.kept, r.sessions} {
		for _, name := range of.Holders() {
			if key, ok := strings.CutPrefix(name, keyHolder("")); ok && !strings.Contains(key, ":") {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// All returns what is held in all.
func (r *Room) All() Holdings {
	return Holdings{r.waiting.Taken(), r.kept.Taken(), r.sessions.Taken()}
}

func keyHolder(key string) string { return "key:" + key }

// Passing is a share of the bytes that wait, for what ends by a deadline of its own.
func (r *Room) Passing(who Who) *Share {
	return newShare(r.waiting, who, MaxKeyWaiting, MaxAddressWaiting)
}

// Lasting is a share of the bytes that wait, for what may wait as long as it likes.
// All of it together has at most half of each bound, so that the other half goes
// round: see Passing.
func (r *Room) Lasting(who Who) *Share {
	return newShare(r.waiting, who, MaxKeyWaiting, MaxAddressWaiting).within("lasting ", 1, 2)
}

// Output is a share of what is kept, for output. All of it together has at most
// three quarters of each bound: see Record.
func (r *Room) Output(key string) *Share {
	return newShare(r.kept, Who{Key: key}, maxKeyKept, 0).within("output ", 3, 4)
}

// Record is a share of what is kept, for what a client has said about something
// that is there. Output leaves room for it.
func (r *Room) Record(key string) *Share { return newShare(r.kept, Who{Key: key}, maxKeyKept, 0) }

// Session takes room for one session, which leave gives back; to call it again does
// nothing. The error of one for which there is none is an *errdef.Error.
func (r *Room) Session(who Who) (leave func(), err error) {
	s := newShare(r.sessions, who, maxKeySessions, maxAddressSessions)
	if !s.Grow(1) {
		return nil, errdef.New(errdef.Exhausted, "too_many_sessions", "this API key, its address or all together have as many sessions and connections as they may").
			WithRemedy("close some, then try again")
	}
	return s.Free, nil
}

// Follower is Session for a stream of events. Of these there are fewer: each is told of
// every change.
func (r *Room) Follower(who Who) (leave func(), err error) {
	s := newShare(r.sessions, who, maxKeySessions, maxAddressSessions)
	s.holders = append(s.holders, ration.Holder{Name: "followers", Most: maxFollowers}, ration.Holder{Name: "followers of " + who.Key, Most: MaxKeyFollowers})
	if !s.Grow(1) {
		return nil, errdef.New(errdef.Exhausted, "too_many_event_streams", "the API key follows events %d times, all keys together %d times, or there are as many sessions and connections as there may be: no more are served at once", MaxKeyFollowers, maxFollowers).
			WithRemedy("end some of these streams, or ask for events without follow")
	}
	return s.Free, nil
}

// Share is what one connection, request or record has of a Room.
type Share struct {
	of      *ration.Ration
	holders []ration.Holder

	mu    sync.Mutex
	taken int
	freed bool
}

func newShare(of *ration.Ration, who Who, ofKey, ofAddress int) *Share {
	s := &Share{of: of}
	if who.Key != "" {
		s.holders = append(s.holders, ration.Holder{Name: keyHolder(who.Key), Most: ofKey})
	}
	if who.Address != "" && ofAddress > 0 {
		s.holders = append(s.holders, ration.Holder{Name: "address:" + who.Address, Most: ofAddress})
	}
	return s
}

// within holds a share also to a part of each bound, that all shares of the class have
// together.
func (s *Share) within(class string, part, of int) *Share {
	whole := []ration.Holder{{Name: class, Most: s.of.Most() * part / of}}
	for _, h := range s.holders {
		whole = append(whole, ration.Holder{Name: class + h.Name, Most: h.Most * part / of})
	}
	s.holders = append(s.holders, whole...)
	return s
}

// Grow takes n more, and reports whether there was room. A share that was freed has
// none.
func (s *Share) Grow(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed || !s.of.Take(n, s.holders...) {
		return false
	}
	s.taken += n
	return true
}

// Await is Grow that waits for room until ctx ends.
func (s *Share) Await(ctx context.Context, n int) bool {
	for {
		given := s.of.Given()
		if s.Grow(n) {
			return true
		}
		select {
		case <-given:
		case <-ctx.Done():
			return false
		}
	}
}

// Shrink gives back n, or all that there is.
func (s *Share) Shrink(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, s.taken)
	if n > 0 {
		s.taken -= n
		s.of.Give(n, s.holders...)
	}
}

// Has returns how much the share has.
func (s *Share) Has() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// Free gives back all, for good.
func (s *Share) Free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken > 0 {
		s.of.Give(s.taken, s.holders...)
	}
	s.taken, s.freed = 0, true
}
