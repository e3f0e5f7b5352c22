package egress

import (
	"net/netip"
	"slices"
)

// Zone is how far inside an address is. A server outside must not make this one
// connect further inside than to itself.
type Zone int

// The zones, from the outside in.
const (
	Outside Zone = iota // the internet
	Network             // private networks
	Machine             // this machine
	// Nowhere is where no server of the internet's protocols is: link-local addresses,
	// and those at which providers keep metadata and credentials of their machines.
	Nowhere
)

// ZoneOf returns the zone of an address, whatever form it has.
func ZoneOf(a netip.Addr) Zone {
	a = leadsTo(a.WithZone("").Unmap())
	switch {
	case !a.IsValid() || a.IsMulticast() || contains(metadata, a):
		return Nowhere
	case a.IsLoopback() || a.IsUnspecified(): // to connect to 0.0.0.0 is to connect to 127.0.0.1
		return Machine
	case contains(closed, a) || a.IsPrivate() || contains(closed6, a):
		return Network
	}
	return Outside
}

// metadata is of providers, beside link-local addresses.
var metadata = prefixes(
	"169.254.0.0/16", "fe80::/10",
	"100.100.100.200/32", // Alibaba
	"168.63.129.16/32",   // Azure
	"192.0.0.192/32",     // Oracle
	"fd00:ec2::/32",      // Amazon
	"fd20:ce::/32",       // Google
	"fd00:42::42/128",    // Scaleway
)

// closed6 is what closed would have of IPv6, beside what is private.
var closed6 = prefixes(
	"::/96",          // IPv4 in a form that is not used any more
	"100::/64",       // nowhere
	"64:ff9b:1::/48", // translators of a network of its own
	"fec0::/10",      // private, in a form that is not used any more
)

// translated are the networks of IPv6 in which addresses of IPv4 are, and at which
// byte these begin.
var translated = map[netip.Prefix]int{
	netip.MustParsePrefix("64:ff9b::/96"):    12, // a translator
	netip.MustParsePrefix("::ffff:0:0:0/96"): 12, // likewise
	netip.MustParsePrefix("2002::/16"):       2,  // a tunnel
}

// leadsTo returns the address of IPv4 that one of IPv6 leads to, if it leads to one.
func leadsTo(a netip.Addr) netip.Addr {
	for network, at := range translated {
		if network.Contains(a) {
			inner, _ := netip.AddrFromSlice(slices.Clone(a.AsSlice()[at : at+4]))
			return inner
		}
	}
	return a
}
