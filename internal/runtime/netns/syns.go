package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/egress"
)

// A connection that the guest begins is to succeed only if there is something to
// connect it to. So the rules drop the SYNs of the guest, and the server, which
// has a copy of each, sends it again once it is known what becomes of it. It goes
// over the pair as before, with a mark that says so, and which the guest cannot
// set. The rest is the kernel's: it answers as one that has a listener, or none.

// The marks of a SYN that is sent again.
const (
	markAccept = 0x64720001 // to the server's listener
	markRefuse = 0x64720002 // past it, to where nobody listens
)

// Where things are in the headers, and what they are.
const (
	ipHeader, tcpHeader = 20, 20 // the least
	longestHeaders      = 60 + 60
	ipFlagsAt           = 6
	ipProtocolAt        = 9
	ipChecksumAt        = 10
	ipSourceAt          = 12
	ipDestinationAt     = 16
	tcpFlagsAt          = 13
	tcpChecksumAt       = 16
	tcpSYN, tcpACK      = 0x02, 0x10
	moreOrOffset        = 0x3fff // of a fragment
)

// syns is a packet socket at the host's end of the pair. It has the SYNs that
// come out of the guest, and sends on both ends.
type syns struct {
	file        *os.File
	raw         syscall.RawConn
	host, guest int // the ends
	buf         [longestHeaders + 1]byte

	mu sync.Mutex // held to send
}

// listenSYNs makes it in this thread's namespace.
func listenSYNs() (*syns, error) {
	host, err := net.InterfaceByName(hostLink)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", hostLink, err)
	}
	guest, err := net.InterfaceByName(GuestLink)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", GuestLink, err)
	}
	filter, err := onlySYNs()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // nothing comes in before it is bound
	if err != nil {
		return nil, fmt.Errorf("make packet socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
		// What is sent at the guest's end must not come in there.
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protoIP, Ifindex: host.Index}),
	)
	s := &syns{file: os.NewFile(uintptr(fd), "SYNs"), host: host.Index, guest: guest.Index}
	if err == nil {
		s.raw, err = s.file.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up packet socket: %w", err), s.file.Close())
	}
	return s, nil
}

// protoIP is IPv4, in the order of bytes in which the kernel wants it.
var protoIP = binary.NativeEndian.Uint16([]byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff})

// onlySYNs is the filter of packets: whole ones that begin a connection of the
// guest and have not been sent again.
func onlySYNs() ([]unix.SockFilter, error) {
	guest := binary.BigEndian.Uint32(guestAddr.Addr().AsSlice())
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtMark},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 11},
		bpf.LoadAbsolute{Off: ipProtocolAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 9},
		bpf.LoadAbsolute{Off: ipSourceAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: guest, SkipTrue: 7},
		bpf.LoadAbsolute{Off: ipFlagsAt, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: moreOrOffset, SkipTrue: 5},
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: tcpFlagsAt, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: tcpSYN | tcpACK},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: tcpSYN, SkipTrue: 1},
		bpf.RetConstant{Val: longestHeaders + 1},
		bpf.RetConstant{Val: 0},
	})
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, err
}

// Next implements [egress.SYNs].
func (s *syns) Next() (egress.SYN, error) {
	for {
		n, err := s.file.Read(s.buf[:])
		if errors.Is(err, os.ErrClosed) {
			return egress.SYN{}, net.ErrClosed
		}
		if err != nil {
			return egress.SYN{}, err
		}
		if syn, ok := parse(s.buf[:n]); ok {
			return syn, nil
		}
	}
}

// parse reads an IPv4 packet that is a SYN without data.
func parse(packet []byte) (egress.SYN, bool) {
	if len(packet) < ipHeader+tcpHeader || packet[0]>>4 != 4 {
		return egress.SYN{}, false
	}
	header, total := headerLen(packet), int(binary.BigEndian.Uint16(packet[2:]))
	if header < ipHeader || total > len(packet) || total < header+tcpHeader || int(packet[header+12]>>4)*4 != total-header {
		return egress.SYN{}, false
	}
	packet = slices.Clone(packet[:total])
	segment := packet[header:]
	// A sender may leave the checksum to hardware.
	sum := sumOf(unix.IPPROTO_TCP+uint32(len(segment)), packet[ipSourceAt:ipDestinationAt+4])
	binary.BigEndian.PutUint16(segment[tcpChecksumAt:], 0)
	binary.BigEndian.PutUint16(segment[tcpChecksumAt:], fold(sumOf(sum, segment)))
	port := func(addr, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr)), binary.BigEndian.Uint16(port))
	}
	return egress.SYN{From: port(packet[ipSourceAt:ipDestinationAt], segment), To: port(packet[ipDestinationAt:ipDestinationAt+4], segment[2:]), Packet: packet}, true
}

func headerLen(packet []byte) int { return int(packet[0]&0xf) * 4 }

// sumOf adds 16 bits at a time, fold makes the checksum of the internet of a sum.
func sumOf(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Answer implements [egress.SYNs]. The guest sends again what is lost.
func (s *syns) Answer(syn egress.SYN, a egress.Answer) {
	switch a {
	case egress.Accept:
		s.send(syn.Packet, s.guest, hostMAC, markAccept)
	case egress.Refuse:
		s.send(syn.Packet, s.guest, hostMAC, markRefuse)
	case egress.Unreachable:
		s.send(unreachable(syn.Packet), s.host, guestMAC, 0)
	}
}

// send sends a packet on one end of the pair to the other.
func (s *syns) send(packet []byte, link int, to net.HardwareAddr, mark int) {
	dst := &unix.SockaddrLinklayer{Protocol: protoIP, Ifindex: link, Halen: uint8(len(to))}
	copy(dst.Addr[:], to)
	s.mu.Lock() // the mark is the socket's
	defer s.mu.Unlock()
	_ = s.raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) == nil {
			_ = unix.Sendto(int(fd), packet, unix.MSG_DONTWAIT, dst)
		}
	})
}

// unreachable returns the word of the host's end that the host is unreachable to
// which a packet was to go.
func unreachable(packet []byte) []byte {
	const icmpHeader, icmpUnreachable, icmpHost, precedence, hops = 8, 3, 1, 0xc0, 64
	quoted := packet[:headerLen(packet)+8]
	p := make([]byte, ipHeader+icmpHeader, ipHeader+icmpHeader+len(quoted))
	p[0], p[1], p[8], p[ipProtocolAt] = 0x45, precedence, hops, unix.IPPROTO_ICMP
	binary.BigEndian.PutUint16(p[2:], uint16(cap(p)))
	copy(p[ipSourceAt:], hostAddr.Addr().AsSlice())
	copy(p[ipDestinationAt:], guestAddr.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[ipChecksumAt:], fold(sumOf(0, p[:ipHeader])))
	p[ipHeader], p[ipHeader+1] = icmpUnreachable, icmpHost
	p = append(p, quoted...)
	binary.BigEndian.PutUint16(p[ipHeader+2:], fold(sumOf(0, p[ipHeader:])))
	return p
}

// Close ends it.
func (s *syns) Close() error { return s.file.Close() }
