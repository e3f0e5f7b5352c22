package inject

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
)

// Secret is a value that is put into requests to one host.
type Secret struct {
	Name        string
	Placeholder string   // what programs inside have in its place
	Headers     []Insert // set in every request
	Query       []Insert // parameters, likewise
	Plain       bool     // also without TLS
	Value       string
	// Life ends when the secret is revoked, or its rule changes.
	Life context.Context
}

// Insert is a header or a parameter with the value in it.
type Insert struct{ Name, Text string }

// Mark stands for the value in the text of an [Insert].
const Mark = "{}"

func (s Secret) text(i Insert) string { return strings.ReplaceAll(i.Text, Mark, s.Value) }

// wanted reports whether a request is to have the value in it.
func (s Secret) wanted(r *http.Request) bool {
	if len(s.Headers)+len(s.Query) > 0 || strings.Contains(r.URL.EscapedPath(), s.Placeholder) || strings.Contains(r.URL.RawQuery, s.Placeholder) {
		return true
	}
	for _, values := range r.Header {
		for _, v := range values {
			if has(v, s.Placeholder) {
				return true
			}
		}
	}
	return false
}

// into puts the value into a request.
func (s Secret) into(r *http.Request) {
	for _, values := range r.Header {
		for i, v := range values {
			values[i] = replace(v, s.Placeholder, s.Value)
		}
	}
	if path := r.URL.EscapedPath(); strings.Contains(path, s.Placeholder) {
		r.URL.RawPath = strings.ReplaceAll(path, s.Placeholder, url.PathEscape(s.Value))
		r.URL.Path = strings.ReplaceAll(r.URL.Path, s.Placeholder, s.Value)
	}
	r.URL.RawQuery = strings.ReplaceAll(r.URL.RawQuery, s.Placeholder, url.QueryEscape(s.Value))
	for _, h := range s.Headers {
		r.Header.Set(h.Name, s.text(h))
	}
	for _, q := range s.Query {
		r.URL.RawQuery = withParameter(r.URL.RawQuery, q.Name, s.text(q))
	}
}

// basic returns the credentials in a header, which Base64 hides.
func basic(header string) (scheme, credentials string, ok bool) {
	scheme, coded, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Basic") {
		return "", "", false
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(coded))
	return scheme, string(plain), err == nil
}

// has reports whether a header has a text in it.
func has(header, text string) bool {
	_, credentials, _ := basic(header)
	return strings.Contains(header, text) || strings.Contains(credentials, text)
}

// replace replaces a text in a header.
func replace(header, old, by string) string {
	if scheme, credentials, ok := basic(header); ok && strings.Contains(credentials, old) {
		return scheme + " " + base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(credentials, old, by)))
	}
	return strings.ReplaceAll(header, old, by)
}

// withParameter returns a query in which a parameter has one value.
func withParameter(query, name, value string) string {
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(part, "=")
		if key, err := url.QueryUnescape(key); part == "" || err == nil && key == name {
			continue
		}
		kept = append(kept, part)
	}
	return strings.Join(append(kept, url.QueryEscape(name)+"="+url.QueryEscape(value)), "&")
}

// shortest is the shortest value that is looked for in answers: shorter ones are
// in too much that has nothing to do with them.
const shortest = 6

// out takes the value out of the headers of an answer.
func (s Secret) out(h http.Header) {
	if len(s.Value) < shortest {
		return
	}
	for _, values := range h {
		for i, v := range values {
			for _, form := range []string{s.Value, url.QueryEscape(s.Value), url.PathEscape(s.Value), base64.StdEncoding.EncodeToString([]byte(s.Value))} {
				v = replace(v, form, s.Placeholder)
			}
			values[i] = v
		}
	}
}
