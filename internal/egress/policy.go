package egress

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Everything is the rule for all addresses.
const Everything = "0.0.0.0/0"

// Bounds of the rules of one sandbox: every connection looks through them.
const (
	maxRules = 256
	maxName  = 253
)

// Policy says what one sandbox may reach. The zero Policy reaches nothing.
type Policy struct {
	allow []netip.Prefix // addresses allowed whatever else is said
	names []string       // hosts allowed: "example.com", or "*.example.com" for all below
	deny  []netip.Prefix
	some  bool // something is reached that no rule allows by itself
	open  []Range
	proxy Proxy // through which connections go out
}

// NewPolicy returns the policy of a sandbox that may or may not reach the
// internet, apart from its rules. An allowed address or name always wins over a
// denied address, and having no internet is to have every address denied.
func NewPolicy(internet bool, allowOut, denyOut []string) (Policy, error) {
	if n := len(allowOut) + len(denyOut); n > maxRules {
		return Policy{}, invalid("there are %d rules for what it may reach", n).WithRemedy("use %d at most", maxRules)
	}
	var p Policy
	for _, rule := range allowOut {
		if prefix, ok := parsePrefix(rule); ok {
			p.allow = append(p.allow, prefix)
			continue
		}
		name, ok := parseName(rule)
		if !ok {
			return Policy{}, invalid("allowOut has %q, which is no address, network or name", brief(rule)).
				WithRemedy("use 192.0.2.1, 192.0.2.0/24, example.com or *.example.com, without a port or a scheme")
		}
		p.names = append(p.names, name)
	}
	for _, rule := range denyOut {
		prefix, ok := parsePrefix(rule)
		if !ok {
			return Policy{}, invalid("denyOut has %q, which is no address or network", brief(rule)).
				WithRemedy("names can only be allowed: deny %s, and allow the rest", Everything)
		}
		p.deny = append(p.deny, prefix)
	}
	if !internet {
		p.deny = append(p.deny, everything)
	}
	if len(p.names) > 0 && !slices.Contains(p.deny, everything) {
		return Policy{}, invalid("When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all other traffic.").
			WithRemedy("add %q to denyOut", Everything)
	}
	p.work()
	return p, nil
}

var everything = netip.MustParsePrefix(Everything)

func invalid(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Invalid, "network_invalid", format, args...)
}

// brief bounds what an error repeats of a rule.
func brief(rule string) string {
	const most = 64
	if len(rule) > most {
		return strings.ToValidUTF8(rule[:most], "") + "…"
	}
	return rule
}

// parsePrefix reads an address or a network. One that maps IPv4 is the IPv4 one.
func parsePrefix(text string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return netip.Prefix{}, false
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if addr := prefix.Addr(); addr.Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), true
}

// parseName reads the name of a host, or a wildcard for all hosts below one.
func parseName(text string) (string, bool) {
	name := canonical(text)
	host := strings.TrimPrefix(name, "*.")
	if !IsHost(host) {
		return "", false
	}
	return name, true
}

// canonical returns the one spelling of a name.
func canonical(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// IsHost reports whether a canonical name can be a host's: labels of letters,
// digits, hyphens and underscores, and a last one that is no number, so that no
// notation of an address is taken for a name.
func IsHost(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if !isLabel(label) {
			return false
		}
	}
	last := labels[len(labels)-1]
	return last[0] < '0' || last[0] > '9'
}

func isLabel(label string) bool {
	const most = 63
	outside := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}
	return label != "" && len(label) <= most && !strings.ContainsFunc(label, outside) && label[0] != '-' && label[len(label)-1] != '-'
}

// Verdict is what becomes of a connection.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed"
	ByName  Verdict = "by name" // if the name that it asks for is allowed
	Denied  Verdict = "denied"  // by the sandbox's rules
	Closed  Verdict = "closed"  // to every sandbox
)

// Address returns what becomes of a connection to an address.
func (p Policy) Address(a netip.Addr) Verdict {
	a = a.Unmap()
	switch {
	case !a.Is4() || contains(closed, a):
		return Closed
	case contains(p.allow, a) || !contains(p.deny, a) && p.some:
		return Allowed
	case len(p.names) > 0:
		return ByName
	default:
		return Denied
	}
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Host reports whether a name is among those that are allowed.
func (p Policy) Host(name string) bool {
	name = canonical(name)
	return IsHost(name) && slices.ContainsFunc(p.names, func(rule string) bool {
		below, wild := strings.CutPrefix(rule, "*")
		return name == rule || wild && strings.HasSuffix(name, below)
	})
}

// Resolves reports whether a name may be asked for. Where only what is allowed
// can be reached, no other name is: a question carries data out, too.
func (p Policy) Resolves(name string) bool {
	return p.some && IsHost(canonical(name)) || p.Host(name)
}

// Off reports whether nothing at all can be reached.
func (p Policy) Off() bool { return len(p.open) == 0 }

// Open returns the addresses that are Allowed or can be ByName, in order and
// apart.
func (p Policy) Open() []Range { return p.open }

// work finds out what follows from the rules.
func (p *Policy) work() {
	public := without([]Range{{0, 1<<32 - 1}}, rangesOf(closed))
	undenied := without(public, rangesOf(p.deny))
	p.some = len(undenied) > 0
	if len(p.names) > 0 {
		p.open = public
		return
	}
	// What is neither undenied nor allowed is denied.
	denied := without(without(public, undenied), rangesOf(p.allow))
	p.open = without(public, denied)
}

// closed is what no sandbox reaches, whatever its rules say.
var closed = prefixes(
	"0.0.0.0/8",        // this host
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // shared by providers; 100.100.100.200 has metadata
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // a provider's services for its machines
	"169.254.0.0/16",   // link-local; 169.254.169.254 has metadata
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // protocols; 192.0.0.192 has metadata
	"192.0.2.0/24",     // documentation
	"192.88.99.0/24",   // relays into IPv6
	"192.168.0.0/16",   // private
	"198.18.0.0/15",    // tests between networks; some networks use it as private
	"198.51.100.0/24",  // documentation; some networks have their mirrors in the third one, 203.0.113.0/24
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, and broadcast
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}
