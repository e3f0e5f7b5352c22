package netns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// What leaves the guest ends in its namespace, which has no route out. The
// namespace treats every address as local, so unhandled packets are refused at
// once, as by a machine on which nobody listens. Rules of nftables pass TCP
// connections to the addresses of one set to a socket that the server holds
// there. The server judges each and connects on from its own namespace. Where the
// address decides, it does so before the connection is taken (see [syns]). While
// the server is down nothing answers, and the guest sends its SYNs again.

// outletAddr is where connections are handed over. It cannot be reached from the
// guest: loopback addresses do not come in over an interface.
var outletAddr = netip.MustParseAddrPort("127.0.0.1:1")

// namesPort is that of the resolver.
const namesPort = 53

// The names of the rules.
const (
	outletTable = "drowse"
	openSet     = "open"
	holdChain   = "hold" // not in namespaces of older servers
)

// heldMark is in the set beside what is open, where nobody connects to. An older
// server takes it out: it answers no SYNs, so they must not be held back.
var heldMark = egress.Range{First: 1, Last: 1}

// leadOut lets what leaves the guest arrive in this thread's namespace, at no
// address yet.
func leadOut(h *netlink.Handle) error {
	host, err := h.LinkByName(hostLink)
	if err != nil {
		return fmt.Errorf("find %s: %w", hostLink, err)
	}
	guest, err := h.LinkByName(GuestLink)
	if err != nil {
		return fmt.Errorf("find %s: %w", GuestLink, err)
	}
	everywhere := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	for _, route := range []*netlink.Route{
		// For the runtime, which takes it over with the guest's address.
		{LinkIndex: guest.Attrs().Index, Gw: hostAddr.Addr().AsSlice(), Dst: everywhere, Priority: 1},
		// The way back, before the host's end has an address.
		{LinkIndex: host.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: guestAddr.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}},
		// In the main table, where nearer routes come before it. Not by the loopback
		// interface, of which the runtime may take over the routes.
		{LinkIndex: host.Attrs().Index, Scope: netlink.SCOPE_HOST, Dst: everywhere, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_MAIN},
	} {
		if err := h.RouteAdd(route); err != nil {
			return fmt.Errorf("add route %s: %w", route, err)
		}
	}
	if err := addRules(); err != nil {
		return noRules(err)
	}
	return refuseAlways()
}

// refuseAlways has this thread's namespace answer every datagram that nobody
// takes. The kernel would answer one in a second, and the guest wait in vain for
// a resolver that it does not have.
func refuseAlways() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/icmp_ratemask", []byte("0"), 0); err != nil {
		return fmt.Errorf("lift the limit of refusals: %w", err)
	}
	return nil
}

// addRules makes the rules that hand connections over in this thread's
// namespace. The set of addresses is empty.
func addRules() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(theTable())
	set := theSet()
	if err := c.AddSet(set, nil); err != nil {
		return err
	}
	tcp := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: linkName(hostLink)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
	}
	toOpen := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: ipDestinationAt, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
	}
	unmarked := func(mark uint32) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(mark)},
		}
	}
	hold := c.AddChain(&nftables.Chain{
		Name: holdChain, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityMangle - 1),
	})
	held := []expr.Any{
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint32(heldMark.First)},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
	}
	syn := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{tcpSYN | tcpACK}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{tcpSYN}},
	}
	c.AddRule(&nftables.Rule{Table: table, Chain: hold, Exprs: slices.Concat(tcp, held, toOpen, syn,
		unmarked(markAccept), unmarked(markRefuse), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})})
	chain := c.AddChain(&nftables.Chain{
		Name: "out", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
	})
	addr := outletAddr.Addr().As4()
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat(tcp, toOpen, unmarked(markRefuse), []expr.Any{
		&expr.Immediate{Register: 1, Data: addr[:]},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(outletAddr.Port())},
		&expr.TProxy{Family: unix.NFPROTO_IPV4, TableFamily: unix.NFPROTO_IPV4, RegAddr: 1, RegPort: 2},
	})})
	return c.Flush()
}

// noRules says what the kernel lacks that has rejected the rules. It loads
// modules by itself for them, unless they are missing or loading is forbidden.
func noRules(err error) error {
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
		return errdef.New(errdef.Unfit, "no_nftables", "this kernel has no nftables, which sandboxes' networks need (%w)", err).
			WithRemedy("load its module (modprobe nf_tables), or install the package that has it")
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		return errdef.New(errdef.Unfit, "no_nftables", "this kernel's nftables lacks what sandboxes' networks need, such as TPROXY (%w)", err).
			WithRemedy("load the modules (modprobe nft_tproxy nf_tproxy_ipv4), or install the package that has them")
	}
	return fmt.Errorf("add rules of nftables: %w", err)
}

func theTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyIPv4, Name: outletTable}
}

func theSet() *nftables.Set {
	return &nftables.Set{Table: theTable(), Name: openSet, KeyType: nftables.TypeIPAddr, Interval: true}
}

// linkName returns the name of an interface as the kernel compares it.
func linkName(name string) []byte {
	var padded [unix.IFNAMSIZ]byte
	copy(padded[:], name)
	return padded[:]
}

// holds reports whether the rules of a namespace hold back SYNs.
func holds(ns int) (bool, error) {
	c, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		return false, err
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	return slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name == outletTable && c.Name == holdChain }), err
}

// fill replaces what is in the set, in one step.
func fill(ns int, open []egress.Range) error {
	c, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		return err
	}
	set := theSet()
	c.FlushSet(set)
	var elements []nftables.SetElement
	for _, r := range open {
		elements = append(elements, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, r.First)})
		if r.Last < 1<<32-1 {
			elements = append(elements, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, r.Last+1), IntervalEnd: true})
		}
	}
	if err := c.SetAddElements(set, elements); err != nil {
		return err
	}
	return c.Flush()
}

// Outlet is the server's end of what leaves a runtime. It is safe for concurrent
// use.
type Outlet struct {
	ns *Namespace

	mu    sync.Mutex
	ended bool
	conns net.Listener   // nil while nothing may leave
	names net.PacketConn // as conns
	syns  *syns          // as conns, and in namespaces of older servers
	// filled is what is in the set; nil if that is not known.
	filled *[]egress.Range
}

// NewOutlet returns the outlet of a namespace. Nothing leaves yet.
func NewOutlet(ns *Namespace) *Outlet { return &Outlet{ns: ns} }

// Set makes n what the runtime reaches.
func (o *Outlet) Set(n runtime.Network) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return nil
	}
	ns, err := os.Open(o.ns.Path)
	if err != nil {
		return err
	}
	defer ns.Close()
	var open []egress.Range
	if n != nil {
		open = n.Open()
	}
	if len(open) == 0 {
		return errors.Join(o.fillLocked(int(ns.Fd()), nil), o.closeLocked())
	}
	if o.conns == nil {
		if err := o.listenLocked(int(ns.Fd())); err != nil {
			return err
		}
		if o.syns == nil {
			go n.Serve(o.conns, o.names, nil)
		} else {
			go n.Serve(o.conns, o.names, o.syns)
		}
	}
	return o.fillLocked(int(ns.Fd()), append([]egress.Range{heldMark}, open...))
}

// fillLocked replaces what is in the set, unless it is that already: the kernel takes
// milliseconds for a change, and a wake would wait for it.
func (o *Outlet) fillLocked(ns int, open []egress.Range) error {
	if o.filled != nil && slices.Equal(*o.filled, open) {
		return nil
	}
	o.filled = nil
	if err := fill(ns, open); err != nil {
		return err
	}
	o.filled = &open
	return nil
}

func (o *Outlet) listenLocked(ns int) (err error) {
	held, err := holds(ns)
	if err != nil {
		return fmt.Errorf("list rules of nftables: %w", err)
	}
	leave, err := enter(ns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	lc := net.ListenConfig{KeepAlive: keepAlive, Control: transparent}
	lc.SetMultipathTCP(false) // what is handed over is not
	o.conns, err = lc.Listen(context.Background(), "tcp4", outletAddr.String())
	if err != nil {
		return err
	}
	o.names, err = lc.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(hostAddr.Addr(), namesPort).String())
	if err != nil {
		return errors.Join(err, o.closeLocked())
	}
	if held {
		if o.syns, err = listenSYNs(); err != nil {
			return errors.Join(err, o.closeLocked())
		}
	}
	return nil
}

// transparent lets a socket have addresses that are not the machine's.
func transparent(_, _ string, c syscall.RawConn) error {
	var err error
	cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
	return errors.Join(cerr, err)
}

// Close ends what leaves the runtime, for good.
func (o *Outlet) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	return o.closeLocked()
}

// Reset closes the sockets, which are in a namespace that is gone.
func (o *Outlet) Reset() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.filled = nil
	return o.closeLocked()
}

func (o *Outlet) closeLocked() error {
	var errs []error
	if o.conns != nil {
		errs = append(errs, o.conns.Close())
	}
	if o.names != nil {
		errs = append(errs, o.names.Close())
	}
	if o.syns != nil {
		errs = append(errs, o.syns.Close())
	}
	o.conns, o.names, o.syns = nil, nil, nil
	return errors.Join(errs...)
}
