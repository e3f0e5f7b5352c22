package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
)

// spoof sends its mark in every way there is, and prints what each attempt comes
// to.
const spoof = `
import socket, struct, subprocess

mark = b'SPOOFED' + b'-BY-A-GUEST ' # not in this text, which comes over the host's loopback
neighbour = '169.254.77.2'
ours = ['169.254.77.1', '169.254.77.2', '169.254.77.3', '169.254.77.255']
far = ['10.0.0.1', '192.168.0.1', '224.0.0.1', '255.255.255.255', '8.8.8.8']
eth = socket.if_nametoindex('eth0')
broadcast = b'\xff' * 6
someone = bytes.fromhex('026472770009')

def attempt(name, f):
    try:
        f()
        print(name, 'sent')
    except Exception as err:
        print(name, 'failed:', err)

def udp(to, source=None, **options):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    if source:
        s.setsockopt(socket.SOL_IP, 19, 1)  # IP_TRANSPARENT
        s.bind((source, 5000))
    s.sendto(mark + b'datagram', (to, 7))

def ip_header(source, to, protocol, payload):
    return struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0,
                       socket.inet_aton(source), socket.inet_aton(to)) + payload

def raw_ip(source, to):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_HDRINCL, 1)
    s.sendto(ip_header(source, to, 17, struct.pack('!HHHH', 7, 7, 8 + len(mark), 0) + mark), (to, 0))

def icmp(to):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.sendto(b'\x08\x00\x00\x00\x00\x01\x00\x01' + mark, (to, 0))

def frame(destination, kind, payload):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind(('eth0', 0))
    s.send(destination + someone + struct.pack('!H', kind) + payload)

def arp(claims):
    body = struct.pack('!HHBBH6s4s6s4s', 1, 0x800, 6, 4, 2, someone, socket.inet_aton(claims), broadcast, socket.inet_aton(neighbour))
    frame(broadcast, 0x806, body + mark)

def advertise():
    frame(bytes.fromhex('333300000001'), 0x86dd, b'\x60' + b'\0' * 39 + mark)

for to in ours + far:
    attempt('cooked to ' + to, lambda: udp(to))
    for source in ('169.254.77.1', '10.9.9.9', '8.8.4.4'):
        attempt('cooked from %s to %s' % (source, to), lambda: udp(to, source))
        attempt('raw from %s to %s' % (source, to), lambda: raw_ip(source, to))
    attempt('echo to ' + to, lambda: icmp(to))
for claims in ours + ['10.0.0.1']:
    attempt('arp for ' + claims, lambda: arp(claims))
attempt('neighbour advertisement', advertise)
attempt('frame to everybody', lambda: frame(broadcast, 0x800, ip_header('10.9.9.9', neighbour, 17, b'\0\7\0\7\0\x20\0\0' + mark)))
for command in ('ip addr add 10.9.9.9/24 dev eth0', 'ip route add 10.0.0.0/8 dev eth0', 'ip link set dev eth0 address 02:64:72:77:00:09'):
    attempt(command, lambda: subprocess.run(command.split(), check=True, capture_output=True))
attempt('again to 10.0.0.1', lambda: udp('10.0.0.1'))
`

// TestSpoofing has one sandbox send whatever it can, with addresses that are not
// its own, as root, by every kind of socket: no frame of it comes to another
// sandbox or to the host.
func TestSpoofing(t *testing.T) {
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	neighbour := s.startGuest(ctx, client.CreateOptions{Timeout: time.Hour})
	before := neighbour.ask(ctx)
	sb := s.create(ctx, client.CreateOptions{Timeout: time.Hour}).As("root")
	watched := map[string]*sniffer{
		"the neighbour": sniff(t, s.netnsOf(neighbour.sb.ID)),
		"the host":      sniff(t, "/proc/self/ns/net"),
		"itself":        sniff(t, s.netnsOf(sb.ID)),
	}
	exit, out := run(ctx, t, sb, "python3", "-c", spoof)
	if exit.Code != 0 || strings.Count(out, "\n") < 80 {
		t.Fatalf("%s: %s", exit.Status, out)
	}
	t.Logf("%d attempts, of which %d were sent", strings.Count(out, "\n"), strings.Count(out, " sent\n"))
	neighbour.same(before, neighbour.ask(ctx))
	for who, w := range watched {
		marked, all := w.end()
		t.Logf("%s saw %d frames, %d of them the guest's", who, all, marked)
		if (marked > 0) != (who == "itself") {
			t.Errorf("%s saw %d frames of the guest", who, marked)
		}
	}
}

// netnsOf returns the path of a sandbox's network namespace.
func (s *server) netnsOf(id string) string {
	s.t.Helper()
	found := s.glob("run/gv/bundles", id+"*", "netns")
	if len(found) != 1 {
		s.t.Fatalf("network namespaces of %s: %q", id, found)
	}
	return found[0]
}

// sniffer sees every frame on every interface of a network namespace.
type sniffer struct {
	fd   int
	done chan struct{}

	marked, all int
}

func sniff(t *testing.T, netns string) *sniffer {
	t.Helper()
	ns, err := os.Open(netns)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	w := &sniffer{done: make(chan struct{})}
	opened := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // and leave the thread in the namespace, to end with it
		opened <- errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), w.open())
	}()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	go w.run()
	t.Cleanup(func() { w.end() })
	return w
}

const everyProtocol = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in the order of the network

func (w *sniffer) open() (err error) {
	if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, everyProtocol); err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	return unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
}

// run counts frames until none has come for a while and end waits.
func (w *sniffer) run() {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(w.fd, buf, 0)
		switch {
		case err == nil:
			w.all++
			if bytes.Contains(buf[:n], []byte("SPOOFED-BY-A-GUEST")) {
				w.marked++
			}
		case errors.Is(err, unix.EAGAIN):
			select {
			case w.done <- struct{}{}:
				return
			default:
			}
		case errors.Is(err, unix.EINTR):
		default:
			close(w.done)
			return
		}
	}
}

// end returns how many frames came, and how many of them had the mark. A second
// call returns the same.
func (w *sniffer) end() (marked, all int) {
	if w.fd >= 0 {
		<-w.done
		unix.Close(w.fd)
		w.fd = -1
	}
	return w.marked, w.all
}
