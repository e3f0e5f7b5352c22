package secret

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/egress/inject"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/store"
)

// The bounds.
const (
	maxUses    = 32 // in a sandbox
	maxValue   = 64 << 10
	maxHosts   = 32
	maxInserts = 16   // headers, and parameters
	maxName    = 128  // of a header or a parameter
	maxText    = 2048 // of either
)

// The ports of a host that says none: the second is where a request would go in
// the clear.
const (
	tlsPort   = 443
	plainPort = 80
)

var (
	nameForm = lazyregexp.New(`^[A-Za-z0-9_-]{1,128}$`)
	envForm  = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

func invalid(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Invalid, "secret_invalid", format, args...)
}

// check judges what is asked of a secret, and fills in the rest.
func check(name string, r store.SecretRule) (store.SecretRule, error) {
	if !nameForm.MatchString(name) || strings.HasPrefix(strings.ToLower(name), "sec_") {
		return r, invalid("%.128q is no name of a secret", name).
			WithRemedy("use 1 to 128 letters, digits, - and _; sec_ begins ids").With("field", "name")
	}
	if r.Env == "" {
		r.Env = strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	}
	if err := checkEnv(r.Env); err != nil {
		return r, err
	}
	if n := len(r.Hosts); n == 0 || n > maxHosts {
		return r, invalid("a secret is for 1 to %d hosts, and this one for %d", maxHosts, n).With("field", "hosts").With("allowed", maxHosts)
	}
	hosts := make([]string, len(r.Hosts))
	for i, text := range r.Hosts {
		host, port, ok := parseHost(text)
		if !ok {
			return r, invalid("%.260q is no host that a secret can be for", text).
				WithRemedy("use api.example.com or *.example.com, either with a port: no address, scheme or path, and no wildcard for a whole top-level domain").With("field", "hosts")
		}
		if hosts[i] = host; port != 0 {
			hosts[i] += ":" + strconv.Itoa(port)
		}
	}
	r.Hosts = slices.Compact(slices.Sorted(slices.Values(hosts)))
	if err := checkInserts("headers", r.Headers, checkHeader); err != nil {
		return r, err
	}
	return r, checkInserts("query", r.Query, func(i store.Insert) error {
		if !utf8.ValidString(i.Name+i.Text) || strings.ContainsFunc(i.Name+i.Text, isControl) {
			return invalid("query: %.128q has characters that a parameter cannot have", i.Name).With("field", "query")
		}
		return nil
	})
}

// ours are variables that the agent sets, or that a program cannot run without.
var ours = append([]string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD"}, agentapi.TrustVariables()...)

func checkEnv(name string) error {
	if !envForm.MatchString(name) || slices.Contains(ours, name) {
		return invalid("%.128q cannot be the variable with the placeholder", name).
			WithRemedy("choose another with env: letters, digits and _, at most 128, and none that the sandbox sets itself").With("field", "env")
	}
	return nil
}

// parseHost reads a host, which may be a wildcard and have a port.
func parseHost(text string) (host string, port int, ok bool) {
	host = text
	if name, digits, found := strings.Cut(text, ":"); found {
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || n == 0 {
			return "", 0, false
		}
		host, port = name, int(n)
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	below, wild := strings.CutPrefix(host, "*.")
	if _, err := netip.ParseAddr(below); err == nil || wild && !strings.Contains(below, ".") {
		return "", 0, false
	}
	return host, port, egress.IsHost(below)
}

// matches reports whether a pattern of a rule fits a host and port.
func matches(pattern, host string, to uint16) bool {
	name, port, ok := parseHost(pattern)
	if !ok || !slices.Contains(portsOf(port), to) {
		return false
	}
	below, wild := strings.CutPrefix(name, "*")
	return host == name || wild && strings.HasSuffix(host, below)
}

func portsOf(port int) []uint16 {
	if port == 0 {
		return []uint16{tlsPort, plainPort}
	}
	return []uint16{uint16(port)}
}

func checkInserts(field string, list []store.Insert, check func(store.Insert) error) error {
	if n := len(list); n > maxInserts {
		return invalid("%s has %d entries; %d are allowed", field, n, maxInserts).With("field", field).With("allowed", maxInserts)
	}
	seen := map[string]bool{}
	for _, i := range list {
		same := i.Name
		if field == "headers" {
			same = strings.ToLower(same)
		}
		switch {
		case i.Name == "" || len(i.Name) > maxName:
			return invalid("%s has a name of %d bytes; 1 to %d are allowed", field, len(i.Name), maxName).With("field", field).With("allowed", maxName)
		case len(i.Text) > maxText:
			return invalid("%s: %.128q has %d bytes; %d are allowed", field, i.Name, len(i.Text), maxText).With("field", field).With("allowed", maxText)
		case strings.Count(i.Text, inject.Mark) != 1:
			return invalid("%s: %.128q must have %s once, for the value", field, i.Name, inject.Mark).With("field", field)
		case seen[same]:
			return invalid("%s has %.128q twice", field, i.Name).With("field", field)
		}
		seen[same] = true
		if err := check(i); err != nil {
			return err
		}
	}
	return nil
}

// framing are headers that say where a request goes, or where it ends.
var framing = []string{
	"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "keep-alive", "proxy-connection",
}

func checkHeader(i store.Insert) error {
	name := strings.ToLower(i.Name)
	if !httpguts.ValidHeaderFieldName(i.Name) || !httpguts.ValidHeaderFieldValue(i.Text) || slices.Contains(framing, name) || strings.HasPrefix(name, "sec-websocket-") {
		return invalid("headers: %.128q cannot be set for a secret", i.Name).
			WithRemedy(`use a header that says who asks, such as "Authorization: Bearer {}"`).With("field", "headers")
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// checkValue judges a value, and repeats nothing of it.
func checkValue(value string) error {
	switch {
	case value == "":
		return invalid("the value is empty").With("field", "value")
	case len(value) > maxValue:
		return invalid("the value has %d bytes; %d are allowed", len(value), maxValue).With("field", "value").With("allowed", maxValue)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, isControl):
		return invalid("the value has a line break or another character that no header can have").
			WithRemedy("give it as one line of UTF-8 text").With("field", "value")
	case strings.TrimSpace(value) != value:
		return invalid("the value begins or ends with a blank").WithRemedy("leave the blank out").With("field", "value")
	}
	return nil
}
