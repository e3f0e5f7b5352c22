package edge

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// goneAfter is how long a client's kernel may answer nothing before the client is
// taken for gone, as that of SSH clients. One that is there and reads nothing is not:
// its kernel answers.
const goneAfter = 40 * time.Second

// keepAsking has a quiet connection asked whether its other end is there. What it is
// asked is answered long before it is silent.
func keepAsking(nc net.Conn, goneAfter time.Duration) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	if t, ok := nc.(*net.TCPConn); ok {
		every := max(goneAfter/4, time.Second)
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 3})
	}
}

// tcpOf returns the TCP connection below others; nil if there is none.
func tcpOf(nc net.Conn) syscall.RawConn {
	switch c := nc.(type) {
	case *net.TCPConn:
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	case *tls.Conn:
		return tcpOf(c.NetConn())
	case *handed:
		return tcpOf(c.Conn)
	}
	return nil
}

// silent reports whether the other end has left data without an answer, and has not
// been heard of for so long. Without this the kernel would go on sending for a
// quarter of an hour; its own limit, TCP_USER_TIMEOUT, also ends clients that just do
// not read.
func silent(raw syscall.RawConn, most time.Duration) bool {
	if raw == nil {
		return false
	}
	silent := false
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		silent = err == nil && info.Unacked > 0 && info.Retransmits > 1 && time.Duration(info.Last_ack_recv)*time.Millisecond > most
	})
	return silent
}

// watchSilence closes a connection whose other end is silent for too long, until stop
// is called or the connection is closed.
func watchSilence(nc net.Conn, most time.Duration) (stop func()) {
	raw := tcpOf(nc)
	if raw == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var look func()
	look = func() {
		switch {
		case ctx.Err() != nil:
		case silent(raw, most):
			_ = nc.Close()
		case raw.Control(func(uintptr) {}) != nil: // closed
		default:
			time.AfterFunc(most/8, look)
		}
	}
	time.AfterFunc(most/8, look)
	return cancel
}

// hangUpPatience bounds telling a sandbox's agent that a client has gone.
const hangUpPatience = 5 * time.Second

// hangUp tells the agent that a client has gone, if that has asked for its terminal to
// be hung up then. Its stream alone does not tell the agent: that ends as well when the
// sandbox is put to sleep, or the server ends.
func (v *visit) hangUp(r *request) {
	word := r.header.Get(agentapi.HeaderHangUp)
	if v.p.server != "" { // which sees that the client has gone
		return
	}
	if v.p.port != agentapi.Port || !agentapi.IsHangUpWord(word) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangUpPatience)
	defer cancel()
	conn, err := v.connect(ctx, "http/1.1")
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(hangUpPatience))
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: agent\r\n%s: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		agentapi.PathHangUp, agentapi.HeaderHangUp, word)
	if err == nil {
		_, _ = io.CopyN(io.Discard, conn, maxAnswerHead) // its end says that it is done
	}
}
