package egress

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
)

func mustPolicy(t testing.TB, internet bool, allow, deny []string) Policy {
	t.Helper()
	p, err := NewPolicy(internet, allow, deny)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAddress(t *testing.T) {
	all := []string{Everything}
	for name, tt := range map[string]struct {
		internet    bool
		allow, deny []string
		want        map[string]Verdict
	}{
		"no rules":          {true, nil, nil, map[string]Verdict{"1.1.1.1": Allowed, "203.0.113.7": Allowed}},
		"no internet":       {false, nil, nil, map[string]Verdict{"1.1.1.1": Denied, "255.1.1.1": Closed}},
		"one denied":        {true, nil, []string{"1.1.1.1"}, map[string]Verdict{"1.1.1.1": Denied, "1.1.1.2": Allowed}},
		"a network denied":  {true, nil, []string{"1.1.1.0/24"}, map[string]Verdict{"1.1.1.9": Denied, "1.1.2.0": Allowed}},
		"denied as mapped":  {true, nil, []string{"::ffff:1.1.1.1"}, map[string]Verdict{"1.1.1.1": Denied}},
		"allow over deny":   {true, []string{"1.1.1.1"}, []string{"1.1.0.0/16"}, map[string]Verdict{"1.1.1.1": Allowed, "1.1.1.2": Denied, "2.2.2.2": Allowed}},
		"allow over all":    {true, []string{"1.1.1.0/24"}, all, map[string]Verdict{"1.1.1.1": Allowed, "2.2.2.2": Denied}},
		"allow without net": {false, []string{"1.1.1.0/24"}, nil, map[string]Verdict{"1.1.1.1": Allowed, "2.2.2.2": Denied}},
		"deny in halves":    {true, nil, []string{"0.0.0.0/1", "128.0.0.0/1"}, map[string]Verdict{"1.1.1.1": Denied, "200.0.0.1": Denied}},
		"names":             {true, []string{"example.com", "1.1.1.1"}, all, map[string]Verdict{"2.2.2.2": ByName, "1.1.1.1": Allowed}},
		"names, no net":     {false, []string{"example.com"}, nil, map[string]Verdict{"2.2.2.2": ByName}},
		"IPv6 rules":        {true, []string{"2001:db8::/32"}, []string{"::/0"}, map[string]Verdict{"1.1.1.1": Allowed, "2001:db8::1": Closed}},
		"closed is closed": {true, []string{Everything, "169.254.169.254", "10.0.0.0/8"}, nil, map[string]Verdict{
			"169.254.169.254": Closed, "10.1.1.1": Closed,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustPolicy(t, tt.internet, tt.allow, tt.deny)
			for addr, want := range tt.want {
				if got := p.Address(netip.MustParseAddr(addr)); got != want {
					t.Errorf("%s: got %s, want %s", addr, got, want)
				}
			}
		})
	}
}

// TestClosed has every address that must be out of reach, in every notation
// that an address has.
func TestClosed(t *testing.T) {
	p := mustPolicy(t, true, []string{Everything, "::/0"}, nil)
	for _, addr := range []string{
		"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.255", "10.0.0.0", "10.255.255.255", "172.16.0.1", "172.31.255.255",
		"192.168.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "169.254.0.1", "169.254.169.254", "169.254.169.253",
		"169.254.77.1", "169.254.77.2", "192.0.0.192", "192.0.0.1", "168.63.129.16", "192.88.99.1", "224.0.0.1", "239.255.255.255",
		"240.0.0.1", "255.255.255.255", "192.0.2.0", "192.0.2.255", "198.51.100.1", "198.18.0.1", "198.19.255.255",
		"::", "::1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::1.1.1.1",
		"64:ff9b:1::7f00:1", "2002:a9fe:a9fe::1", "2002:7f00:1::", "fd00:ec2::254", "fe80::1", "fc00::1", "ff02::1", "2606:4700:4700::1111",
	} {
		if got := p.Address(netip.MustParseAddr(addr)); got != Closed {
			t.Errorf("%s: got %s, want %s", addr, got, Closed)
		}
	}
	for _, addr := range []string{"1.1.1.1", "::ffff:1.1.1.1", "9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0", "203.0.113.1", "198.17.255.255", "198.20.0.0", "192.0.1.255", "192.0.3.0"} {
		if got := p.Address(netip.MustParseAddr(addr)); got != Allowed {
			t.Errorf("%s: got %s, want %s", addr, got, Allowed)
		}
	}
}

func TestHost(t *testing.T) {
	p := mustPolicy(t, true, []string{"Example.com.", "*.wild.test", "a_b.test"}, []string{Everything})
	for name, want := range map[string]bool{
		"example.com": true, "EXAMPLE.COM": true, "example.com.": true, "a_b.test": true,
		"www.example.com": false, "notexample.com": false, "example.com.evil.test": false, "": false, ".": false,
		"x.wild.test": true, "x.y.wild.test": true, "wild.test": false, ".wild.test": false, "evilwild.test": false, "*.wild.test": false,
		"x..wild.test": false, "example.com\x00.evil.test": false,
	} {
		if got := p.Host(name); got != want {
			t.Errorf("Host(%q) = %t", name, got)
		}
		if got := p.Resolves(name); got != want {
			t.Errorf("Resolves(%q) = %t", name, got)
		}
	}
}

func TestResolves(t *testing.T) {
	for name, tt := range map[string]struct {
		p    Policy
		want bool
	}{
		"no rules":            {mustPolicy(t, true, nil, nil), true},
		"some denied":         {mustPolicy(t, true, nil, []string{"1.0.0.0/8"}), true},
		"no internet":         {mustPolicy(t, false, nil, nil), false},
		"all denied":          {mustPolicy(t, true, []string{"1.1.1.1"}, []string{Everything}), false},
		"all denied in parts": {mustPolicy(t, true, nil, []string{"0.0.0.0/1", "128.0.0.0/1"}), false},
		"zero":                {Policy{}, false},
	} {
		if got := tt.p.Resolves("example.com"); got != tt.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestOff(t *testing.T) {
	for name, tt := range map[string]struct {
		p    Policy
		want bool
	}{
		"no rules":              {mustPolicy(t, true, nil, nil), false},
		"no internet":           {mustPolicy(t, false, nil, nil), true},
		"all denied":            {mustPolicy(t, true, nil, []string{Everything}), true},
		"only closed allowed":   {mustPolicy(t, false, []string{"10.0.0.0/8", "169.254.169.254"}, nil), true},
		"one allowed":           {mustPolicy(t, false, []string{"1.1.1.1"}, nil), false},
		"a name allowed":        {mustPolicy(t, false, []string{"example.com"}, nil), false},
		"IPv6 allowed, no more": {mustPolicy(t, false, []string{"2001:db8::1"}, nil), true},
		"zero":                  {Policy{}, true},
	} {
		if got := tt.p.Off(); got != tt.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestInvalidRules(t *testing.T) {
	for name, rules := range map[string][2][]string{
		"a name denied":           {nil, {"example.com"}},
		"a name without deny":     {{"example.com"}, nil},
		"a name, others open":     {{"example.com"}, {"1.0.0.0/8"}},
		"a URL":                   {{"https://example.com"}, {Everything}},
		"a port":                  {{"example.com:443"}, {Everything}},
		"a wildcard inside":       {{"a.*.com"}, {Everything}},
		"a wildcard alone":        {{"*"}, {Everything}},
		"two wildcards":           {{"*.*.com"}, {Everything}},
		"octal":                   {{"0177.0.0.1"}, {Everything}},
		"hexadecimal":             {{"0x7f000001"}, {Everything}},
		"decimal":                 {{"2130706433"}, {Everything}},
		"short":                   {{"127.1"}, {Everything}},
		"a zone":                  {{"fe80::1%eth0"}, nil},
		"empty":                   {{""}, nil},
		"blank":                   {nil, {" 1.1.1.1"}},
		"too long a name":         {{strings.Repeat("a.", 127) + "com"}, {Everything}},
		"too many":                {make([]string, maxRules+1), nil},
		"an impossible network":   {nil, {"1.1.1.1/33"}},
		"a label that is too big": {{strings.Repeat("a", 64) + ".com"}, {Everything}},
	} {
		if _, err := NewPolicy(true, rules[0], rules[1]); !errdef.Is(err, errdef.Invalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestOpenAgrees holds the ranges against the verdict on single addresses, at
// random and at every end of a range.
func TestOpenAgrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	prefix := func() string {
		var octets [4]byte
		binary.BigEndian.PutUint32(octets[:], rng.Uint32())
		return netip.PrefixFrom(netip.AddrFrom4(octets), rng.IntN(33)).String()
	}
	for range 300 {
		var allow, deny []string
		for range rng.IntN(6) {
			allow = append(allow, prefix())
		}
		for range rng.IntN(6) {
			deny = append(deny, prefix())
		}
		if rng.IntN(4) == 0 {
			allow, deny = append(allow, "example.com"), append(deny, Everything)
		}
		p := mustPolicy(t, rng.IntN(4) > 0, allow, deny)
		probes := []uint32{0, 1<<32 - 1}
		for _, r := range append(p.Open(), rangesOf(append(p.allow, append(p.deny, closed...)...))...) {
			probes = append(probes, r.First-1, r.First, r.Last, r.Last+1)
		}
		for range 50 {
			probes = append(probes, rng.Uint32())
		}
		for _, n := range probes {
			var octets [4]byte
			binary.BigEndian.PutUint32(octets[:], n)
			verdict := p.Address(netip.AddrFrom4(octets))
			if got, want := within(p.Open(), n), verdict == Allowed || verdict == ByName; got != want {
				t.Fatalf("allow %q, deny %q: %s is open: %t, verdict %s", allow, deny, netip.AddrFrom4(octets), got, verdict)
			}
		}
	}
}

func within(list []Range, n uint32) bool {
	for _, r := range list {
		if r.First <= n && n <= r.Last {
			return true
		}
	}
	return false
}

func FuzzPolicy(f *testing.F) {
	f.Add("example.com", Everything, "www.example.com", uint32(0x7f000001))
	f.Add("*.example.com", "1.0.0.0/8", "x.example.com", uint32(0xa9fea9fe))
	f.Add("::ffff:1.2.3.4/100", "::/0", "127.0.0.1", uint32(1))
	f.Fuzz(func(t *testing.T, allow, deny, host string, n uint32) {
		p, err := NewPolicy(true, []string{allow}, []string{deny})
		if err != nil {
			return
		}
		var octets [4]byte
		binary.BigEndian.PutUint32(octets[:], n)
		addr := netip.AddrFrom4(octets)
		verdict := p.Address(addr)
		if contains(closed, addr) && verdict != Closed {
			t.Errorf("allow %q: %s is %s", allow, addr, verdict)
		}
		if within(p.Open(), n) != (verdict == Allowed || verdict == ByName) {
			t.Errorf("allow %q, deny %q: %s is %s and not so among the open", allow, deny, addr, verdict)
		}
		if p.Host(host) && !p.Resolves(host) {
			t.Errorf("%q is allowed and not resolved", host)
		}
		if _, err := netip.ParseAddr(host); err == nil && p.Resolves(host) {
			t.Errorf("the address %q is taken for a name", host)
		}
	})
}
