package egress

import (
	"net/netip"
	"testing"
)

// TestZones: an address is where it leads, in every form that it can be written in.
func TestZones(t *testing.T) {
	for zone, all := range map[Zone][]string{
		Outside: {"203.0.113.1", "8.8.8.8", "2001:db8::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"},
		Network: {
			"10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "192.0.0.1", "198.18.0.1", "255.255.255.255",
			"fd12::1", "fec0::1", "64:ff9b:1::a00:1", "::a00:1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "::ffff:0:a00:1",
		},
		Machine: {"127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::ffff:0:7f00:1"},
		Nowhere: {
			"169.254.169.254", "169.254.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "ff02::1",
			"fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::",
		},
	} {
		for _, text := range all {
			if got := ZoneOf(netip.MustParseAddr(text)); got != zone {
				t.Errorf("%s is in zone %d, want %d", text, got, zone)
			}
		}
	}
	if got := ZoneOf(netip.Addr{}); got != Nowhere {
		t.Errorf("no address is in zone %d", got)
	}
}
