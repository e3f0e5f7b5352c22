// Package netns makes the network namespaces of sandboxes, for whatever runs them,
// and lets the server in: it dials what listens inside, and takes over what leaves.
//
// The network of every sandbox looks the same from inside: one interface with
// the same address, in every sandbox and after every restore, because
// listeners can go deaf when it changes. Both ends of the pair are in the
// sandbox's own namespace, so that nothing of it shows on the host and nothing
// on the host can be reached from it; the server goes into the namespace to
// make sockets: to connect, and to take what leaves the guest (see [Outlet]).
//
// What runs the guest takes the guest's interface over, with its address, its
// neighbour and its routes. The host's end has no address until [Namespace.Attach]:
// a runtime that takes every address that it finds must not find that one.
package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/ownthread"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// GuestLink is what the interface is called that the guest has, hostLink the other
// end of the pair.
const (
	GuestLink = "eth0"
	hostLink  = "host0"
)

var (
	guestAddr = netip.MustParsePrefix("169.254.77.2/30")
	hostAddr  = netip.PrefixFrom(netip.MustParseAddr(runtime.Resolver), 30)
	// Fixed as well, and known to the other side from the start: a question
	// for them that is lost would be asked again a second later, and a restored
	// guest remembers them.
	guestMAC = net.HardwareAddr{0x02, 0x64, 0x72, 0x77, 0x00, 0x02}
	hostMAC  = net.HardwareAddr{0x02, 0x64, 0x72, 0x77, 0x00, 0x01}
)

// Namespace is a network namespace that is pinned at a path.
type Namespace struct{ Path string }

// Create makes and pins the namespace with the guest's interface up and
// addressed, which is what the runtime takes over when it starts.
func (n *Namespace) Create() error { return ownthread.Run(n.createHere) }

func (n *Namespace) createHere() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	pin, err := os.OpenFile(n.Path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o400)
	if err != nil {
		return err
	}
	pin.Close()
	if err := unix.Mount("/proc/thread-self/ns/net", n.Path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	h, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer h.Close()
	// The loopback interface first: it is to have its IPv6 address, the pair is
	// not.
	if err := setUp(h, "lo", netip.Prefix{}); err != nil {
		return err
	}
	if err := disableIPv6ForNew(); err != nil {
		return err
	}
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: GuestLink, HardwareAddr: guestMAC},
		PeerName:  hostLink, PeerHardwareAddr: hostMAC,
	}
	if err := h.LinkAdd(pair); err != nil {
		return fmt.Errorf("add veth: %w", err)
	}
	// Up now, although without an address: an interface gets its carrier from
	// its peer, some milliseconds late, and loses packets until then. A lost
	// one costs a wake a second.
	if err := setUp(h, hostLink, netip.Prefix{}); err != nil {
		return err
	}
	if err := setUp(h, GuestLink, guestAddr); err != nil {
		return err
	}
	if err := setNeighbour(h, GuestLink, hostAddr.Addr(), hostMAC); err != nil { // the runtime copies it
		return err
	}
	if err := setNeighbour(h, hostLink, guestAddr.Addr(), guestMAC); err != nil {
		return err
	}
	return leadOut(h)
}

// setNeighbour says which interface has an address on the other side.
func setNeighbour(h *netlink.Handle, name string, addr netip.Addr, mac net.HardwareAddr) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	err = h.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT,
	})
	if err != nil {
		return fmt.Errorf("set neighbour of %s: %w", name, err)
	}
	return nil
}

// disableIPv6ForNew keeps interfaces made from now on in this namespace from
// giving themselves addresses.
func disableIPv6ForNew() error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
		return fmt.Errorf("disable IPv6: %w", err)
	}
	return nil
}

// Attach gives the host's end its address, once the guest runs.
func (n *Namespace) Attach() error {
	ns, err := os.Open(n.Path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ownthread.Run(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		return setUp(h, hostLink, hostAddr)
	})
}

func setUp(h *netlink.Handle, name string, addr netip.Prefix) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if addr.IsValid() {
		ip := &net.IPNet{IP: addr.Addr().AsSlice(), Mask: net.CIDRMask(addr.Bits(), 32)}
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: ip}); err != nil {
			return fmt.Errorf("address %s: %w", name, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// Remove unpins the namespace; the kernel ends it with its last process.
func (n *Namespace) Remove() error {
	if err := unix.Unmount(n.Path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unpin network namespace: %w", err)
	}
	if err := os.Remove(n.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin network namespace: %w", err)
	}
	return nil
}

// keepAlive is generous: the peer is on the same machine.
const keepAlive = 60 * time.Second

// enter moves this thread into a network namespace, where the sockets that it
// makes stay. The function returned, which can be called twice, moves it back;
// a thread that cannot be moved back ends with its goroutine.
func enter(ns int) (leave func() error, err error) {
	goruntime.LockOSThread()
	back, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		goruntime.UnlockOSThread()
		return nil, err
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		goruntime.UnlockOSThread()
		back.Close()
		return nil, fmt.Errorf("enter network namespace: %w", err)
	}
	return sync.OnceValue(func() error {
		defer back.Close()
		if err := unix.Setns(int(back.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("leave network namespace: %w", err)
		}
		goruntime.UnlockOSThread()
		return nil
	}), nil
}

// Dial connects to the guest from inside the namespace that ns refers to.
func Dial(ctx context.Context, ns int, port int) (net.Conn, error) {
	leave, err := enter(ns)
	if err != nil {
		return nil, err
	}
	// Back as soon as the socket exists, not when it is connected.
	d := net.Dialer{KeepAlive: keepAlive, Control: func(_, _ string, _ syscall.RawConn) error { return leave() }}
	conn, err := d.DialContext(ctx, "tcp4", netip.AddrPortFrom(guestAddr.Addr(), uint16(port)).String())
	if lerr := leave(); lerr != nil && err == nil {
		conn.Close()
		return nil, lerr
	}
	return conn, err
}
