package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// tokenHeader and tokenField carry the token of a session: the one from scripts,
// the other from forms.
const (
	tokenHeader = "X-Drowse-Token"
	tokenField  = "token"
)

// protect sets what every answer says to the browser.
func (v *visit) protect() {
	h := v.w.Header()
	// Styles with the nonce are those that the terminal's library makes.
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-"+v.nonce+"'; style-src 'nonce-"+v.nonce+"'; "+
		"img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
	h.Set("Cache-Control", "no-store")
	if v.door == public { // it is the same for everybody, and named by its contents
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
}

// fromHere refuses what another site sends, and browsers that do not say where a
// request comes from.
func (v *visit) fromHere() error {
	site := v.r.Header.Get("Sec-Fetch-Site")
	reads := v.r.Method == http.MethodGet || v.r.Method == http.MethodHead
	switch {
	case site == "":
		return refusal{http.StatusForbidden, "the dashboard needs HTTPS, or localhost, and a current browser",
			"over plain HTTP from another machine the API key could be read on the way: give the server --tls-cert and --tls-key, or forward its port with ssh -L"}
	case site == "same-origin", reads && v.navigates():
		return nil
	}
	return refusal{http.StatusForbidden, "this request comes from another site", "open the dashboard, and try again there"}
}

// navigates reports whether the browser loads a page into a window of its own.
func (v *visit) navigates() bool {
	return v.r.Header.Get("Sec-Fetch-Mode") == "navigate" && v.r.Header.Get("Sec-Fetch-Dest") == "document"
}

// secure reports whether the browser uses TLS. A client that lies about it gets a
// cookie that it does not send back.
func (v *visit) secure() bool {
	return v.r.TLS != nil || strings.EqualFold(v.r.Header.Get("X-Forwarded-Proto"), "https")
}

// redirect sends the browser to a page of the dashboard.
func (v *visit) redirect(to string) {
	v.w.Header().Set("Location", to)
	v.w.WriteHeader(http.StatusSeeOther)
}

// back returns the page that a form names to go on from, if it is one of ours.
func (v *visit) back(otherwise string) string { return ownPath(v.r.FormValue("back"), otherwise) }

func ownPath(text, otherwise string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || strings.ContainsAny(text, "\\\r\n\t") || !strings.HasPrefix(u.Path, Path+"/") || strings.Contains(u.Path, "..") {
		return otherwise
	}
	return u.RequestURI()
}

// answer sends JSON.
func (v *visit) answer(status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("internal error: ui: an answer that cannot be encoded: %v", err))
	}
	v.w.Header().Set("Content-Type", "application/json")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(append(b, '\n'))
}
