package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

const (
	// tunnelHandshake bounds the time from the connection to the answer.
	tunnelHandshake = 5 * time.Second

	// tunnelChunk is the buffer of each direction. Both are there all the
	// time a tunnel is, and in the image of a sandbox that sleeps meanwhile.
	tunnelChunk = 16 << 10

	// acceptPause is how long accepting rests when there are no descriptors.
	acceptPause = 50 * time.Millisecond
)

// tunnels connects the host to servers that listen on loopback; the protocol
// is described at agentapi.TunnelPort.
type tunnels struct {
	host  netip.Addr
	slots chan struct{}
	work  sync.WaitGroup
}

func newTunnels(host netip.Addr) *tunnels {
	return &tunnels{host: host, slots: make(chan struct{}, agentapi.MaxTunnels)}
}

// run serves until ctx is done or the listener fails, and then ends every
// tunnel.
func (t *tunnels) run(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	defer t.work.Wait()
	defer cancel()
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			t.accept(ctx, conn)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ECONNABORTED):
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
		default:
			return err
		}
	}
}

func (t *tunnels) accept(ctx context.Context, conn net.Conn) {
	client, ok := conn.(*net.TCPConn)
	if !ok || !t.fromHost(client) {
		conn.Close()
		return
	}
	select {
	case t.slots <- struct{}{}:
	default:
		conn.Close()
		return
	}
	t.work.Go(func() {
		defer func() { <-t.slots }()
		t.serve(ctx, client)
	})
}

func (t *tunnels) fromHost(conn *net.TCPConn) bool {
	from, ok := conn.RemoteAddr().(*net.TCPAddr)
	return ok && from.AddrPort().Addr().Unmap() == t.host
}

func (t *tunnels) serve(ctx context.Context, client *net.TCPConn) {
	defer client.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	deadline := time.Now().Add(tunnelHandshake)
	_ = client.SetDeadline(deadline)
	var port [2]byte
	if _, err := io.ReadFull(client, port[:]); err != nil {
		return
	}
	server, err := dialLoopback(ctx, int(binary.BigEndian.Uint16(port[:])), deadline)
	if err != nil {
		_, _ = client.Write([]byte{tunnelAnswer(err)})
		return
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if _, err := client.Write([]byte{agentapi.TunnelConnected}); err != nil {
		return
	}
	_ = client.SetDeadline(time.Time{})
	join(client, server)
}

// dialLoopback tries both families: a server may listen on one only.
func dialLoopback(ctx context.Context, port int, deadline time.Time) (*net.TCPConn, error) {
	// The agent trusts who comes from loopback; a tunnel must not be a way.
	if port == agentapi.Port || port == agentapi.TunnelPort {
		return nil, syscall.ECONNREFUSED
	}
	dialer := net.Dialer{Deadline: deadline, KeepAlive: -1}
	conn, err := dialer.DialContext(ctx, "tcp4", "127.0.0.1:"+strconv.Itoa(port))
	if errors.Is(err, syscall.ECONNREFUSED) {
		var second error
		conn, second = dialer.DialContext(ctx, "tcp6", "[::1]:"+strconv.Itoa(port))
		if second == nil {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

func tunnelAnswer(err error) byte {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return agentapi.TunnelRefused
	}
	return agentapi.TunnelFailed
}

// join passes bytes both ways until both ends have ended, or one breaks.
func join(a, b *net.TCPConn) {
	var work sync.WaitGroup
	work.Go(func() { passOn(a, b) })
	work.Go(func() { passOn(b, a) })
	work.Wait()
}

// passOn copies until the end of src, which becomes that of dst. If src
// breaks, both do, so that what is incomplete does not look whole. If dst does
// not take any more, the rest of src is dropped while dst may still answer.
func passOn(dst, src *net.TCPConn) {
	buf := make([]byte, tunnelChunk)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				_ = src.CloseRead()
				return
			}
		}
		if err == io.EOF {
			_ = dst.CloseWrite()
			return
		}
		if err != nil {
			for _, c := range []*net.TCPConn{dst, src} {
				_ = c.SetLinger(0)
				c.Close()
			}
			return
		}
	}
}
