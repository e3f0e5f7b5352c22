package edge

import (
	"encoding/binary"
	"sync"
	"time"
)

// share is what one connection has of a room. Once ended it has nothing, and gets
// nothing more. It is safe for concurrent use.
type share struct {
	room *room

	mu    sync.Mutex
	has   int
	ended bool
}

// to makes the share that large. False if there is no room, or it has ended; then
// it stays as it was.
func (s *share) to(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change(n - s.has)
}

// add makes the share larger, like to.
func (s *share) add(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change(n)
}

func (s *share) change(n int) bool {
	if s.ended || n > 0 && !s.room.take(n) {
		return false
	}
	if n < 0 {
		s.room.give(-n)
	}
	s.has += n
	return true
}

func (s *share) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(-s.has)
	s.ended = true
}

// maxUnread is how much of the bodies of one HTTP/2 connection may have come and
// not have been read: the window of the connection. Stated here, because net/http
// is told the same.
const maxUnread = 512 << 10

// initialWindow is the window that every connection begins with (RFC 9113 §6.9.2).
const initialWindow = 1<<16 - 1

// unread counts what has come of the bodies of an HTTP/2 connection and is in
// buffers of net/http. What is read from these, or thrown away, net/http gives the
// client back as room in the connection's window. So what it has not given back,
// it holds.
type unread struct {
	share

	mu     sync.Mutex
	came   int // bytes of DATA frames
	window int // how many may have come so far

	// The frames that go out.
	refused func() // told of each request that net/http gives to no handler, because there are too many
	header  [9]byte
	have    int // bytes of header
	left    int // bytes of the frame that are to come after it
	update  [4]byte
}

// arrive counts bytes that are coming.
func (u *unread) arrive(n int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.came += n
	return u.settle()
}

// fits tries again to find room for all that has come.
func (u *unread) fits() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.settle()
}

// settle gives the share its size; u.mu is held. A little is in no account, as
// for every connection.
func (u *unread) settle() bool {
	open := u.window - u.came
	held := min(maxUnread-open, u.came)
	return u.to(max(held-readSize, 0))
}

// sent looks at frames that have been written.
func (u *unread) sent(p []byte) {
	const (
		rstStream, windowUpdate = 3, 8
		refusedStream           = 7
	)
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(p) > 0 {
		if u.have < len(u.header) {
			n := copy(u.header[u.have:], p)
			u.have += n
			p = p[n:]
			if u.have == len(u.header) {
				u.left = int(binary.BigEndian.Uint32(u.header[:4]) >> 8)
			}
		} else {
			n := min(u.left, len(p))
			if u.left <= len(u.update) {
				copy(u.update[len(u.update)-u.left:], p[:n])
			}
			u.left -= n
			p = p[n:]
		}
		if u.have < len(u.header) || u.left > 0 {
			continue
		}
		u.have = 0
		if stream := binary.BigEndian.Uint32(u.header[5:]); u.header[3] == windowUpdate && stream == 0 {
			u.window += int(binary.BigEndian.Uint32(u.update[:]))
			u.settle()
		} else if u.header[3] == rstStream && binary.BigEndian.Uint32(u.update[:]) == refusedStream {
			u.refused()
		}
	}
}

// requestRoom is what a request by HTTP/2 takes for as long as it is under way, besides
// what is long of it: some of what net/http has for each.
const requestRoom = 16 << 10

// underway counts the requests of an HTTP/2 connection from their heads on, before
// net/http has made anything of them. A request that comes to no handler is not known
// to have ended; there are never more than maxStreams.
type underway struct {
	share

	mu sync.Mutex
	n  int
}

// more counts so many more, or fewer. False if there is no room; then it stays as it
// was.
func (u *underway) more(n int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	n = min(max(u.n+n, 0), maxStreams)
	if !u.to(n * requestRoom) {
		return false
	}
	u.n = n
	return true
}

// roomEvery is how often a connection that waits for room looks for some.
const roomEvery = 20 * time.Millisecond

// await waits until something fits, for that long at most. Meanwhile nothing is read
// from the client, which slows it down.
func await(fits func() bool, most time.Duration, gone <-chan struct{}) bool {
	if fits() {
		return true
	}
	late, again := time.NewTimer(most), time.NewTicker(roomEvery)
	defer late.Stop()
	defer again.Stop()
	for !fits() {
		select {
		case <-gone:
			return false
		case <-late.C:
			return false
		case <-again.C:
		}
	}
	return true
}
