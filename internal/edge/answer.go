package edge

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
)

// reply is what the edge answers itself. Clients recognise a sandbox that is
// gone by status 502 and these fields.
type reply struct {
	SandboxID string `json:"sandboxId,omitempty"`
	Message   string `json:"message"`
	Path      string `json:"path,omitempty"`
	Port      int    `json:"port,omitempty"`
	Code      int    `json:"code"`
}

func answer(w http.ResponseWriter, r *http.Request, a reply) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Access-Control-Allow-Origin", "*")
	if navigates(r) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(a.Code)
		fmt.Fprintf(w, page, a.Code, html.EscapeString(a.Message), html.EscapeString(a.SandboxID))
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(a.Code)
	_ = json.NewEncoder(w).Encode(a)
}

const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>%d</title>
<body style="font-family:sans-serif;margin:4em auto;max-width:36em">
<h1>%[1]d</h1><p>%s</p><p><code>%s</code></p></body></html>
`

var browser = regexp.MustCompile(`(?i)mozilla|chrome|safari|firefox|edge|opera|msie`)

// navigates reports whether a person at a browser will see the answer.
func navigates(r *http.Request) bool {
	if !browser.MatchString(r.UserAgent()) {
		return false
	}
	accept := r.Header.Get("Accept")
	if strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html") {
		return false
	}
	mode := r.Header.Get("Sec-Fetch-Mode")
	switch mode {
	case "cors", "no-cors", "same-origin", "websocket":
		return false
	}
	return r.Header.Get("X-Requested-With") == "" || mode == "navigate"
}
