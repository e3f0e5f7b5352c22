package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// newTunnel returns the address of tunnels that take connections from host.
func newTunnel(t *testing.T, host string, slots int) (string, context.CancelFunc) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tunnels := newTunnels(netip.MustParseAddr(host))
	tunnels.slots = make(chan struct{}, slots)
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- tunnels.run(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return listener.Addr().String(), stop
}

func dialTunnel(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testmode.Patience()))
	return conn.(*net.TCPConn)
}

// through asks for a port and returns the answer; -1 is none.
func through(t *testing.T, address string, port int) (*net.TCPConn, int) {
	t.Helper()
	conn := dialTunnel(t, address)
	if _, err := conn.Write([]byte{byte(port >> 8), byte(port)}); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return conn, -1
	}
	return conn, int(answer[0])
}

// loopbackServer serves each connection on its own, and returns the port.
func loopbackServer(t *testing.T, address string, serve func(*net.TCPConn)) int {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); serve(conn.(*net.TCPConn)) }()
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

func echo(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) }

// Each end reaches the other side while the other direction goes on.
func TestTunnelHalfClose(t *testing.T) {
	address, _ := newTunnel(t, "127.0.0.1", 8)
	for _, family := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run("the client ends "+family, func(t *testing.T) {
			data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
			port := loopbackServer(t, family, func(conn *net.TCPConn) {
				// Only after the end of the request is there a response.
				request, _ := io.ReadAll(conn)
				_, _ = conn.Write(request)
			})
			conn, answer := through(t, address, port)
			if answer != int(agentapi.TunnelConnected) {
				t.Fatalf("answer %d", answer)
			}
			if _, err := conn.Write(data); err != nil {
				t.Fatal(err)
			}
			_ = conn.CloseWrite()
			if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
		})
	}
	t.Run("the server ends", func(t *testing.T) {
		got := make(chan string, 1)
		port := loopbackServer(t, "127.0.0.1:0", func(conn *net.TCPConn) {
			_, _ = io.WriteString(conn, "hello")
			_ = conn.CloseWrite()
			request, _ := io.ReadAll(conn)
			got <- string(request)
		})
		conn, _ := through(t, address, port)
		if text, err := io.ReadAll(conn); err != nil || string(text) != "hello" {
			t.Errorf("got %q, %v", text, err)
		}
		_, _ = io.WriteString(conn, "bye")
		_ = conn.CloseWrite()
		if text := <-got; text != "bye" {
			t.Errorf("the server got %q", text)
		}
	})
}

// What breaks on one side breaks on the other: it must not look complete.
func TestTunnelReset(t *testing.T) {
	address, _ := newTunnel(t, "127.0.0.1", 8)
	port := loopbackServer(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "part")
		_, _ = io.ReadFull(conn, make([]byte, 1))
		_ = conn.SetLinger(0)
	})
	conn, _ := through(t, address, port)
	if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte("x"))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestTunnelRefused(t *testing.T) {
	address, _ := newTunnel(t, "127.0.0.1", 8)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	for _, port := range []int{unused, agentapi.Port, agentapi.TunnelPort} {
		conn, answer := through(t, address, port)
		if answer != int(agentapi.TunnelRefused) {
			t.Errorf("port %d: answer %d", port, answer)
		}
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("port %d: after the answer %v", port, err)
		}
	}
}

// Only the host is served: who is inside cannot come from its address.
func TestTunnelOthers(t *testing.T) {
	address, _ := newTunnel(t, agentapi.HostAddr, 8)
	port := loopbackServer(t, "127.0.0.1:0", echo)
	conn := dialTunnel(t, address)
	_, _ = conn.Write([]byte{byte(port >> 8), byte(port)})
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("got %d bytes, %v", n, err)
	}
}

func TestTunnelHandshakeIsBounded(t *testing.T) {
	address, _ := newTunnel(t, "127.0.0.1", 8)
	conn := dialTunnel(t, address)
	_, _ = conn.Write([]byte{0})
	began := time.Now()
	if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %d bytes, %v", n, err)
	}
	if took := time.Since(began); took > tunnelHandshake+5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestTunnelLimit(t *testing.T) {
	address, stop := newTunnel(t, "127.0.0.1", 2)
	port := loopbackServer(t, "127.0.0.1:0", echo)
	first, answer := through(t, address, port)
	second, again := through(t, address, port)
	if answer != 0 || again != 0 {
		t.Fatalf("answers %d, %d", answer, again)
	}
	if _, answer := through(t, address, port); answer != -1 {
		t.Errorf("one too many: answer %d", answer)
	}
	first.Close()
	for deadline := time.Now().Add(testmode.Patience()); ; {
		if _, answer := through(t, address, port); answer == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the place is not free again")
		}
	}
	// Stopping ends what is open.
	stop()
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Error("a tunnel is open after the stop")
	}
}

func TestTunnelOfAgent(t *testing.T) {
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() {
		ran <- New(Options{Listener: api, TunnelListener: tunnel, HostAddr: "127.0.0.1"}).Run(ctx)
	}()
	conn, answer := through(t, tunnel.Addr().String(), loopbackServer(t, "127.0.0.1:0", echo))
	if answer != 0 {
		t.Fatalf("answer %d", answer)
	}
	_, _ = io.WriteString(conn, "hello")
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ran; err != nil {
		t.Errorf("Run: %v", err)
	}
}
