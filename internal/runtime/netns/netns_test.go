package netns

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// open is a network to which some addresses are open.
type open struct {
	ranges []egress.Range
	served chan error // what ended each Serve
}

func (o open) Open() []egress.Range { return o.ranges }

func (o open) Serve(conns net.Listener, _ net.PacketConn, _ egress.SYNs) {
	_, err := conns.Accept()
	o.served <- err
}

// TestNamespace makes a network without any runtime, reaches what listens inside,
// opens what leaves it and closes that again, and leaves nothing.
func TestNamespace(t *testing.T) {
	n := &Namespace{Path: filepath.Join(t.TempDir(), "netns")}
	if err := n.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := n.Create(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made again: %v", err)
	}
	pin, err := os.Open(n.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Close()
	if err := n.Attach(); err != nil {
		t.Fatal(err)
	}
	dialed(t, int(pin.Fd()))

	o := NewOutlet(n)
	out := open{ranges: []egress.Range{{First: 0x01000000, Last: 0x01ffffff}}, served: make(chan error, 1)}
	for range 2 { // the second changes nothing
		if err := o.Set(out); err != nil {
			t.Fatal(err)
		}
	}
	fillsOnChange(t, o, int(pin.Fd()), out)
	if err := o.Set(open{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-out.served:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("what leaves ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("what leaves was not closed")
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if err := o.Set(out); err != nil || o.conns != nil {
		t.Errorf("set after its end: %v", err)
	}
	if err := n.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(n.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pin is left: %v", err)
	}
}

// fillsOnChange holds that an outlet that is set to out leaves the kernel's set alone while
// nothing else is open.
func fillsOnChange(t *testing.T, o *Outlet, ns int, out open) {
	t.Helper()
	set := func(n open, want int) {
		t.Helper()
		if err := o.Set(n); err != nil {
			t.Fatal(err)
		}
		c, err := nftables.New(nftables.WithNetNSFd(ns))
		if err != nil {
			t.Fatal(err)
		}
		if in, err := c.GetSetElements(theSet()); err != nil || len(in) != want {
			t.Errorf("the set has %d ends of ranges (%v), want %d", len(in), err, want)
		}
	}
	set(out, 4)
	if err := fill(ns, nil); err != nil { // so that it shows whether it is filled
		t.Fatal(err)
	}
	set(out, 0)
	more := open{ranges: append([]egress.Range{{First: 0x03000000, Last: 0x03ffffff}}, out.ranges...), served: out.served}
	set(more, 6)
	set(out, 4)
}

// dialed holds that what listens at the guest's address is reached, and what is
// there stays apart from the host.
func dialed(t *testing.T, ns int) {
	t.Helper()
	leave, err := enter(ns)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", netip.AddrPortFrom(guestAddr.Addr(), 8000).String())
	if lerr := leave(); err != nil || lerr != nil {
		t.Fatal(err, lerr)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := Dial(ctx, ns, 8000)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if conn, err := Dial(ctx, ns, 8001); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port where nobody listens: %v, %v", conn, err)
	}
	if again, err := net.Listen("tcp4", l.Addr().String()); err == nil {
		again.Close()
		t.Error("the guest's address is one of the host's")
	}
}

func TestNoRules(t *testing.T) {
	for errno, remedy := range map[unix.Errno]string{unix.ENOENT: "nft_tproxy", unix.EOPNOTSUPP: "nf_tables"} {
		e, ok := errors.AsType[*errdef.Error](noRules(errno))
		if !ok || e.Code != "no_nftables" || !strings.Contains(e.Remedy, remedy) || !errors.Is(e, errno) {
			t.Errorf("%v: %v", errno, e)
		}
	}
	if err := noRules(unix.EPERM); !errors.Is(err, unix.EPERM) || errdef.Is(err, errdef.Unfit) {
		t.Errorf("what the kernel forbids: %v", err)
	}
}
