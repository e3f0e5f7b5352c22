package netns

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// outside is an Internet of one server that echoes. It listens at every address,
// but for those of nowhere, and at every port but closedPort.
type outside struct {
	server net.Listener
	dials  atomic.Int32
}

const closedPort = 81

var (
	somewhere = netip.MustParseAddr("203.0.113.10")
	nowhere   = netip.MustParseAddr("203.0.113.99")
)

func (o *outside) Own() ([]netip.Addr, error)                           { return nil, nil }
func (o *outside) Lookup(context.Context, string) ([]netip.Addr, error) { return nil, nil }

func (o *outside) Dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	o.dials.Add(1)
	if to.Port() == closedPort {
		return nil, os.NewSyscallError("connect", unix.ECONNREFUSED)
	}
	if to.Addr() == nowhere {
		return nil, context.DeadlineExceeded
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp4", o.server.Addr().String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// guest is a guest that makes its packets by hand.
type guest struct {
	t    *testing.T
	file *os.File
	port uint16 // the one that it used last
}

func newGuest(t *testing.T, ns int) *guest {
	t.Helper()
	leave, err := enter(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := leave(); err != nil {
			t.Fatal(err)
		}
	}()
	h, err := netlink.NewHandle()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName(GuestLink)
	if err != nil {
		t.Fatal(err)
	}
	// It has the address, and not the namespace.
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: guestAddr.Addr().AsSlice(), Mask: net.CIDRMask(guestAddr.Bits(), 32)}}
	if err := h.AddrDel(link, addr); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "guest")
	t.Cleanup(func() { file.Close() })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protoIP, Ifindex: link.Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	return &guest{t: t, file: file, port: 1 << 15}
}

// packet returns one of a connection from the guest's port, with the checksum left
// to hardware that is not there.
func (g *guest) packet(to netip.AddrPort, flags byte, seq, ack uint32, data string) []byte {
	p := make([]byte, ipHeader+tcpHeader, ipHeader+tcpHeader+len(data))
	p[0], p[8], p[ipProtocolAt] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(p[2:], uint16(cap(p)))
	copy(p[ipSourceAt:], guestAddr.Addr().AsSlice())
	copy(p[ipDestinationAt:], to.Addr().AsSlice())
	s := p[ipHeader:]
	binary.BigEndian.PutUint16(s, g.port)
	binary.BigEndian.PutUint16(s[2:], to.Port())
	binary.BigEndian.PutUint32(s[4:], seq)
	binary.BigEndian.PutUint32(s[8:], ack)
	s[12], s[tcpFlagsAt] = tcpHeader/4<<4, flags
	binary.BigEndian.PutUint16(s[14:], 1<<15) // window
	return append(p, data...)
}

// send sends a packet that has the checksum of its IP header right, and of its TCP
// header if it says so.
func (g *guest) send(p []byte, sum bool) {
	g.t.Helper()
	p[ipChecksumAt], p[ipChecksumAt+1] = 0, 0
	binary.BigEndian.PutUint16(p[ipChecksumAt:], fold(sumOf(0, p[:ipHeader])))
	if sum {
		s := p[ipHeader:]
		padded := append(slices.Clone(s), 0)
		binary.BigEndian.PutUint16(s[tcpChecksumAt:], fold(sumOf(sumOf(unix.IPPROTO_TCP+uint32(len(s)), p[ipSourceAt:ipHeader]), padded)))
	}
	raw, err := g.file.SyscallConn()
	if err != nil {
		g.t.Fatal(err)
	}
	eth := &unix.SockaddrLinklayer{Protocol: protoIP, Halen: 6}
	copy(eth.Addr[:], hostMAC)
	err = raw.Control(func(fd uintptr) {
		var at unix.Sockaddr
		at, err = unix.Getsockname(int(fd))
		if err == nil {
			eth.Ifindex = at.(*unix.SockaddrLinklayer).Ifindex
			err = unix.Sendto(int(fd), p, 0, eth)
		}
	})
	if err != nil {
		g.t.Fatal(err)
	}
}

const (
	tcpRST  = 0x04
	tcpPush = 0x08
)

// get waits for a packet to the guest's port that is wanted. ICMP is, always.
func (g *guest) get(wanted func(flags byte, data []byte) bool) []byte {
	g.t.Helper()
	_ = g.file.SetReadDeadline(time.Now().Add(testmode.Patience()))
	for {
		p := make([]byte, 2048)
		n, err := g.file.Read(p)
		if err != nil {
			g.t.Fatalf("port %d: no answer: %v", g.port, err)
		}
		p = p[:n]
		s := p[headerLen(p):]
		if p[ipProtocolAt] == unix.IPPROTO_ICMP {
			if quoted := s[8:]; binary.BigEndian.Uint16(quoted[headerLen(quoted):]) == g.port {
				return p
			}
			continue
		}
		if p[ipProtocolAt] == unix.IPPROTO_TCP && binary.BigEndian.Uint16(s[2:]) == g.port && wanted(s[tcpFlagsAt], s[int(s[12]>>4)*4:]) {
			return p
		}
	}
}

// connect sends one SYN from a new port, and says what it gets for it.
func (g *guest) connect(to netip.AddrPort, sum bool) (answer string, packet []byte) {
	g.t.Helper()
	g.port++
	g.send(g.packet(to, tcpSYN, 1000, 0, ""), sum)
	p := g.get(func(byte, []byte) bool { return true })
	if s := p[headerLen(p):]; p[ipProtocolAt] == unix.IPPROTO_ICMP {
		if s[0] == 3 && s[1] == 1 && fold(sumOf(0, s)) == 0 && fold(sumOf(0, p[:ipHeader])) == 0 {
			return "unreachable", p
		}
	} else if s[tcpFlagsAt]&tcpRST != 0 {
		return "refused", p
	} else if s[tcpFlagsAt] == tcpSYN|tcpACK {
		return "connected", p
	}
	return "nonsense", p
}

// echoed completes a connection, and reports whether bytes come back by it.
func (g *guest) echoed(to netip.AddrPort, synAck []byte) bool {
	g.t.Helper()
	ack := binary.BigEndian.Uint32(synAck[headerLen(synAck)+4:]) + 1
	g.send(g.packet(to, tcpACK|tcpPush, 1001, ack, "hello"), true)
	p := g.get(func(flags byte, data []byte) bool { return len(data) > 0 || flags&tcpRST != 0 })
	s := p[headerLen(p):]
	return string(s[int(s[12]>>4)*4:]) == "hello"
}

// TestConnect begins connections in a namespace. Each SYN is sent once: what it
// gets shows what became of the connection outside.
func TestConnect(t *testing.T) {
	n := &Namespace{Path: filepath.Join(t.TempDir(), "netns")}
	if err := n.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Remove() })
	pin, err := os.Open(n.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Close()
	g := newGuest(t, int(pin.Fd()))
	if err := n.Attach(); err != nil {
		t.Fatal(err)
	}
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	internet := &outside{server: server}
	gate := egress.NewGate(internet, egress.NewRoom(), "key", func(egress.Reason) {})
	policy, err := egress.NewPolicy(true, nil, []string{"203.0.113.66"})
	if err != nil {
		t.Fatal(err)
	}
	gate.Set(policy)
	o := NewOutlet(n)
	if err := o.Set(gate); err != nil {
		t.Fatal(err)
	}
	defer o.Close()

	to := netip.AddrPortFrom(somewhere, 80)
	expect := func(at netip.AddrPort, want string, dials int32) []byte {
		t.Helper()
		before := internet.dials.Load()
		got, packet := g.connect(at, dials == 0) // the kernel wants the checksum; the server adds it
		if got != want || internet.dials.Load() != before+dials {
			t.Errorf("%s: %s after %d dials, want %s after %d", at, got, internet.dials.Load()-before, want, dials)
		}
		return packet
	}
	synAck := expect(to, "connected", 1)
	if !g.echoed(to, synAck) || internet.dials.Load() != 1 {
		t.Errorf("nothing comes through, or after %d dials", internet.dials.Load())
	}
	expect(netip.AddrPortFrom(somewhere, closedPort), "refused", 1)
	expect(netip.AddrPortFrom(nowhere, 80), "unreachable", 1)
	expect(netip.MustParseAddrPort("203.0.113.66:80"), "refused", 0)
	expect(netip.MustParseAddrPort("10.0.0.1:80"), "refused", 0)
	expect(netip.AddrPortFrom(hostAddr.Addr(), 80), "refused", 0)

	before := internet.dials.Load()
	for name, spoil := range map[string]func([]byte) []byte{
		"of another":         func(p []byte) []byte { p[ipSourceAt] = 8; return p },
		"first fragment":     func(p []byte) []byte { p[ipFlagsAt] = 0x20; return p },
		"later fragment":     func(p []byte) []byte { p[ipFlagsAt+1] = 1; return p },
		"shorter than it is": func(p []byte) []byte { return p[:ipHeader+tcpFlagsAt+1] },
		"with data": func(p []byte) []byte {
			binary.BigEndian.PutUint16(p[2:], uint16(len(p)+4))
			return append(p, "data"...)
		},
		"header too small":     func(p []byte) []byte { p[0] = 0x44; return p },
		"header too large":     func(p []byte) []byte { p[0] = 0x4f; return p },
		"TCP header too small": func(p []byte) []byte { p[ipHeader+12] = 4 << 4; return p },
		"TCP header too large": func(p []byte) []byte { p[ipHeader+12] = 15 << 4; return p },
		"of nothing":           func(p []byte) []byte { return p[:ipHeader] },
	} {
		t.Log(name)
		g.port++
		g.send(spoil(g.packet(to, tcpSYN, 1000, 0, "")), false)
	}
	expect(to, "connected", 1) // after all of these
	if dials := internet.dials.Load() - before; dials != 1 {
		t.Errorf("%d were dialed for", dials-1)
	}

	// An older server in this namespace.
	if err := o.syns.Close(); err != nil {
		t.Error(err)
	}
	o.syns = nil
	if err := fill(int(pin.Fd()), gate.Open()); err != nil {
		t.Fatal(err)
	}
	if synAck = expect(to, "connected", 0); !g.echoed(to, synAck) {
		t.Error("nothing comes through to an older server")
	}

	// A namespace of an older server.
	if err := o.Set(open{}); err != nil {
		t.Fatal(err)
	}
	c, err := nftables.New(nftables.WithNetNSFd(int(pin.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	hold := &nftables.Chain{Table: theTable(), Name: holdChain}
	c.FlushChain(hold)
	c.DelChain(hold)
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := o.Set(gate); err != nil {
		t.Fatal(err)
	}
	if synAck = expect(to, "connected", 0); !g.echoed(to, synAck) {
		t.Error("nothing comes through without the rule")
	}
}
