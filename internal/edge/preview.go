package edge

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/supervisor/preview"
)

// previewName is the query parameter in which a preview link carries its token,
// and the cookie in which a browser keeps it.
const previewName = preview.Param

// found says where a request carries a preview token.
type found struct{ inQuery, inCookie bool }

func (f found) none() bool { return !f.inQuery && !f.inCookie }

// previewToken returns the preview token of a request; that of its link before
// that of its cookie, which may be older.
func previewToken(r *request) (string, found) {
	if strings.Contains(r.target, previewName+"=") {
		if token := r.query().Get(previewName); token != "" {
			return token, found{inQuery: true}
		}
	}
	if cookies := r.header.Get("Cookie"); strings.Contains(cookies, previewName+"=") {
		for pair := range strings.SplitSeq(cookies, ";") {
			name, value, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
			if name == previewName && value != "" {
				return value, found{inCookie: true}
			}
		}
	}
	return "", found{}
}

// openPreview keeps a link's token in a cookie of the browser, for the port
// alone, and sends it to the address without the token, which so stays out of
// what people copy and what pages send as referrer.
func openPreview(r *request, p *passage, token string) *reply {
	c := http.Cookie{
		Name: previewName, Value: token, Path: p.prefix + "/",
		HttpOnly: true, Secure: r.secure, SameSite: http.SameSiteLaxMode,
	}
	return &reply{Code: http.StatusSeeOther, SandboxID: p.id, Message: "open the preview",
		location: here(p.prefix + withoutPreview(p.path)), cookie: c.String()}
}

// here returns a raw path as a browser stays on its host with it: one that begins with
// two slashes, of either kind, it takes for another host.
func here(path string) string {
	if len(path) > 1 && (path[1] == '/' || path[1] == '\\') {
		return "/." + path
	}
	return path
}

// badPreview refuses a token, and makes the browser forget one it keeps.
func badPreview(p *passage, f found) *reply {
	a := &reply{Code: http.StatusForbidden, SandboxID: p.id, Port: p.port,
		Message: "This preview link is not valid for this port, has expired, or was revoked. Ask its owner for a new one."}
	if f.inCookie {
		a.cookie = (&http.Cookie{Name: previewName, Path: p.prefix + "/", MaxAge: -1, HttpOnly: true}).String()
	}
	return a
}

// withoutPreview removes the token from a raw path and query, and leaves the
// rest as it is.
func withoutPreview(target string) string {
	path, query, ok := strings.Cut(target, "?")
	if !ok {
		return target
	}
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if decoded, err := url.QueryUnescape(name); err != nil || decoded != previewName {
			kept = append(kept, pair)
		}
	}
	if len(kept) == 0 {
		return path
	}
	return path + "?" + strings.Join(kept, "&")
}

// withoutCookies removes from a Cookie field what no sandbox may get: the
// server's own cookies and, of a request that a preview link let in, its token.
func (e *edge) withoutCookies(value string, preview bool) string {
	var kept []string
	for pair := range strings.SplitSeq(value, ";") {
		pair = strings.Trim(pair, " \t")
		name, _, _ := strings.Cut(pair, "=")
		name = strings.TrimRight(name, " \t")
		if preview && name == previewName || slices.Contains(e.ownCookies, name) {
			continue
		}
		kept = append(kept, pair)
	}
	return strings.Join(kept, "; ")
}

// hidesCookies reports whether a Cookie field has what withoutCookies removes. All
// others go on as they came.
func (e *edge) hidesCookies(value string, preview bool) bool {
	return preview || slices.ContainsFunc(e.ownCookies, func(name string) bool { return strings.Contains(value, name) })
}
