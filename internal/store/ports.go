package store

import (
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// Ports says what traffic does, by port ("8080") or by port and path
// ("8080/healthz"). A path stands for itself and all below it; the longest that
// fits decides, and what no rule fits wakes.
type Ports map[string]lifecycle.WakePolicy

// Bounds of the rules of one sandbox: every access looks through them.
const (
	MaxPortRules = 100
	maxPortRule  = 1024 // bytes
)

// ParsePortRule returns a rule of Ports as it is stored.
func ParsePortRule(text string) (string, error) {
	if len(text) > maxPortRule {
		return "", portError("a rule for a port has %d bytes", len(text)).WithRemedy("use %d at most", maxPortRule)
	}
	number, below, hasPath := strings.Cut(text, "/")
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || port == 0 || strconv.FormatUint(port, 10) != number {
		return "", portError("%q does not begin with a port", text).
			WithRemedy("use a number from 1 to 65535, and after it a path if need be, such as 8080 or 8080/healthz")
	}
	if !hasPath {
		return number, nil
	}
	if strings.ContainsAny(below, "%?#") || strings.ContainsFunc(below, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", portError("%q has more than a path", text).
			WithRemedy("write the path as plain text: without a query and not percent-encoded")
	}
	clean := cleanPath("/" + below)
	if plain := strings.TrimSuffix("/"+below, "/"); plain != strings.TrimSuffix(clean, "/") {
		return "", portError("%q has a path that is not in its shortest form", text).WithRemedy("write %s%s", number, clean)
	}
	return number + strings.TrimSuffix(clean, "/"), nil
}

func portError(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Invalid, "port_invalid", format, args...)
}

// WakePolicy returns what a request does to the sandbox: to which port it goes,
// and with which path. The path is as in the request's first line, without the
// query, and empty where there is none. It is decoded and cleaned before it is
// compared, so that another way to write a path does not lead round its rule.
func (c Config) WakePolicy(port int, sent string) lifecycle.WakePolicy {
	if len(c.Ports) == 0 {
		return lifecycle.Wake
	}
	if decoded, err := url.PathUnescape(sent); err == nil {
		sent = decoded
	}
	number, wanted := strconv.Itoa(port), cleanPath(sent)
	policy, longest := lifecycle.Wake, -1
	for rule, p := range c.Ports {
		of, below, _ := strings.Cut(rule, "/")
		if of == number && len(below) > longest && isBelow(wanted, "/"+below) {
			policy, longest = p, len(below)
		}
	}
	return policy
}

// isBelow reports whether a clean path is another or one below that.
func isBelow(wanted, above string) bool {
	return above == "/" || wanted == above || strings.HasPrefix(wanted, above+"/")
}

func cleanPath(p string) string { return path.Clean("/" + p) }
