package edge

import "strings"

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
// to every sandbox of this host.
func prefixedCookie(value, prefix string) string {
	parts := strings.Split(value, ";")
	kept := parts[:1]
	for _, part := range parts[1:] {
		name, v, _ := strings.Cut(strings.Trim(part, " \t"), "=")
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
