package edge

import (
	"slices"
	"strings"
)

// underPrefix adapts an answer's field to a path prefix that the server inside
// does not know: redirects and cookies stay below it. What is inside a page
// is left alone.
func (p *passage) underPrefix(name, value, host string) string {
	switch {
	case strings.EqualFold(name, "Location"), strings.EqualFold(name, "Content-Location"):
		return prefixedURL(value, p.prefix, p.hostInside(host), host)
	case strings.EqualFold(name, "Set-Cookie"):
		return prefixedCookie(value, p.prefix)
	}
	return value
}

// originFields are fields of an answer about the whole origin.
var originFields = []string{
	"NEL", "Alt-Svc", "Report-To", "Clear-Site-Data", "Origin-Agent-Cluster", "Service-Worker-Allowed",
	"Cross-Origin-Opener-Policy", // with the same policy as a page of the server, it would keep a hold of that
	"Strict-Transport-Security",
}

// ofWholeOrigin reports whether a field of an answer says something of the
// whole origin, which below a path belongs to the server and to all its
// sandboxes.
func ofWholeOrigin(name string) bool {
	return slices.ContainsFunc(originFields, func(field string) bool { return strings.EqualFold(name, field) })
}

const (
	headerPolicy = "Content-Security-Policy"
	// sandboxedPage gives a page an origin of its own, so that its scripts reach
	// neither the server nor another sandbox in the name of the person who
	// looks at it.
	sandboxedPage = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts"
)

// pagePolicy returns the policy that is added to an answer below a path; "" for
// none. A page that was let in by a preview link goes without, because its
// cookie, which all it loads needs, is not sent from an origin of its own.
func (p *passage) pagePolicy() string {
	if p.prefix == "" || p.preview {
		return ""
	}
	return sandboxedPage
}

// prefixedURL puts a URL of this host, as the server inside knows it, below the
// prefix. A relative one is resolved by the client, below it already.
func prefixedURL(raw, prefix, inside, host string) string {
	if strings.HasPrefix(raw, "/") && !strings.HasPrefix(raw, "//") {
		return prefix + raw
	}
	begin := strings.Index(raw, "//") + len("//")
	if scheme := raw[:begin]; scheme != "//" && !strings.EqualFold(scheme, "http://") && !strings.EqualFold(scheme, "https://") {
		return raw
	}
	authority, path := raw[begin:], ""
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		authority, path = authority[:i], authority[i:]
	}
	if !strings.EqualFold(authority, inside) {
		return raw
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return raw[:begin] + host + prefix + path
}

// prefixedCookie puts a cookie's path below the prefix. A cookie without a path
// belongs to that of the request, which has the prefix. A domain would show it
// to every sandbox of this host. Names and values are taken as browsers take
// them, without white space around them.
func prefixedCookie(value, prefix string) string {
	parts := strings.Split(value, ";")
	kept := parts[:1]
	for _, part := range parts[1:] {
		name, v, _ := strings.Cut(part, "=")
		name, v = strings.TrimSpace(name), strings.TrimSpace(v)
		switch {
		case strings.EqualFold(name, "Domain"):
			continue
		case strings.EqualFold(name, "Path") && strings.HasPrefix(v, "/"):
			part = " Path=" + prefix + v
		}
		kept = append(kept, part)
	}
	return strings.Join(kept, ";")
}
