package egress

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Range is a row of IPv4 addresses, both ends among them, as numbers.
type Range struct{ First, Last uint32 }

// rangesOf returns what IPv4 networks cover, in order and apart.
func rangesOf(list []netip.Prefix) []Range {
	var all []Range
	for _, p := range list {
		if !p.Addr().Is4() {
			continue
		}
		octets := p.Addr().As4()
		first := binary.BigEndian.Uint32(octets[:])
		all = append(all, Range{first, first | uint32(uint64(1)<<(32-p.Bits())-1)})
	}
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var apart []Range
	for _, r := range all {
		if n := len(apart); n > 0 && uint64(r.First) <= uint64(apart[n-1].Last)+1 {
			apart[n-1].Last = max(apart[n-1].Last, r.Last)
			continue
		}
		apart = append(apart, r)
	}
	return apart
}

// without returns what is in a and not in b. Both are in order and apart.
func without(a, b []Range) []Range {
	var left []Range
	for _, r := range a {
		from := uint64(r.First)
		for _, cut := range b {
			if cut.Last < r.First || cut.First > r.Last {
				continue
			}
			if uint64(cut.First) > from {
				left = append(left, Range{uint32(from), cut.First - 1})
			}
			from = uint64(cut.Last) + 1
		}
		if from <= uint64(r.Last) {
			left = append(left, Range{uint32(from), r.Last})
		}
	}
	return left
}
