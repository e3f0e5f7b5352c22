package netns

import (
	"net/netip"
	"slices"
	"testing"
)

// FuzzParse reads what a guest has sent. What is sent back for it is whole.
func FuzzParse(f *testing.F) {
	syn := (&guest{port: 40000}).packet(netip.MustParseAddrPort("203.0.113.10:80"), tcpSYN, 1, 0, "")
	f.Add(syn)
	f.Add(syn[:ipHeader+tcpHeader-1])
	f.Add(append(slices.Clone(syn), 0, 0))
	f.Fuzz(func(t *testing.T, packet []byte) {
		s, ok := parse(packet)
		if !ok {
			return
		}
		if len(s.Packet) > longestHeaders || len(s.Packet) > len(packet) || !s.From.IsValid() || !s.To.IsValid() {
			t.Errorf("%x is read as %+v", packet, s)
		}
		if again, ok := parse(s.Packet); !ok || !slices.Equal(again.Packet, s.Packet) {
			t.Errorf("%x is read as %+v, and that otherwise", packet, s)
		}
		if p := unreachable(s.Packet); fold(sumOf(0, p[:ipHeader])) != 0 || fold(sumOf(0, p[ipHeader:])) != 0 {
			t.Errorf("the answer %x has wrong checksums", p)
		}
	})
}
