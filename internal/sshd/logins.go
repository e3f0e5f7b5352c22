package sshd

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxLogins is how many clients may be logging in at once, from anywhere, and
	// maxLoginsOfOne from one address.
	maxLogins, maxLoginsOfOne = 100, 20
	// loginGrace is how long one that speaks may take, where there are too many: a
	// user may be typing a passphrase.
	loginGrace = 5 * time.Second
)

// logins are the clients that are logging in. Where there are too many, those that say
// nothing give way, oldest first, and then those that take long: who opens connections
// and leaves them keeps nobody else out.
type logins struct {
	mu  sync.Mutex
	all []*loginConn // oldest first
}

// loginConn is the connection of a client that is logging in.
type loginConn struct {
	net.Conn
	addr  netip.Addr
	since time.Time
	spoke atomic.Bool
}

// Read implements net.Conn.
func (l *loginConn) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n > 0 {
		l.spoke.Store(true)
	}
	return n, err
}

// enter lets a client log in; nil if it may not.
func (ls *logins) enter(c net.Conn, now time.Time) *loginConn {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := &loginConn{Conn: c, addr: addrOf(c), since: now}
	ofOne := func(l2 *loginConn) bool { return l2.addr == l.addr }
	if !ls.makeRoom(maxLoginsOfOne, ofOne, now) || !ls.makeRoom(maxLogins, func(*loginConn) bool { return true }, now) {
		return nil
	}
	ls.all = append(ls.all, l)
	return l
}

// makeRoom has there be fewer than most of some, and reports whether it could. The
// caller holds the lock.
func (ls *logins) makeRoom(most int, of func(*loginConn) bool, now time.Time) bool {
	n := 0
	var silent, slow *loginConn
	for _, l := range ls.all {
		if !of(l) {
			continue
		}
		n++
		if silent == nil && !l.spoke.Load() {
			silent = l
		}
		if slow == nil && now.Sub(l.since) > loginGrace {
			slow = l
		}
	}
	if n < most {
		return true
	}
	if silent == nil {
		silent = slow
	}
	if silent == nil {
		return false
	}
	silent.Close()
	ls.all = slices.DeleteFunc(ls.all, func(l *loginConn) bool { return l == silent })
	return true
}

// leave forgets a client that has logged in, or will not.
func (ls *logins) leave(l *loginConn) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.all = slices.DeleteFunc(ls.all, func(l2 *loginConn) bool { return l2 == l })
}
