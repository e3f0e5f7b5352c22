package sshd

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// TestLogins: who is logging in gives way where there are too many: who says nothing
// first, then who takes long, and nobody who has just come and speaks.
func TestLogins(t *testing.T) {
	var ls logins
	now := time.Now()
	enter := func() *loginConn {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		return ls.enter(ours, now)
	}
	closed := func(l *loginConn) bool {
		_ = l.SetWriteDeadline(time.Now()) // nobody reads
		_, err := l.Write([]byte("x"))
		return errors.Is(err, io.ErrClosedPipe)
	}
	var all []*loginConn
	for range maxLoginsOfOne {
		all = append(all, enter())
	}
	all[0].spoke.Store(true)
	if enter() == nil || closed(all[0]) || !closed(all[1]) {
		t.Error("the oldest that says nothing did not give way")
	}
	for _, l := range ls.all {
		l.spoke.Store(true)
	}
	if enter() != nil {
		t.Error("one of many that speak gave way")
	}
	now = now.Add(loginGrace + time.Second)
	if enter() == nil || !closed(all[0]) || closed(all[2]) {
		t.Error("the oldest of many that take long did not give way")
	}
	ls.leave(all[3])
	if enter() == nil || closed(all[2]) {
		t.Error("there was no place after one had left")
	}
	if len(ls.all) != maxLoginsOfOne {
		t.Errorf("%d are logging in", len(ls.all))
	}
}
