package edge

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"
)

// reply is what the edge answers itself. Clients recognise a sandbox that is
// gone by status 502 and these fields.
type reply struct {
	SandboxID       string `json:"sandboxId,omitempty"`
	Server          string `json:"server,omitempty"` // that has the sandbox, where that is another one
	Message         string `json:"message"`
	Path            string `json:"path,omitempty"`
	Port            int    `json:"port,omitempty"`
	Code            int    `json:"code"`
	ErrorCode       string `json:"error_code,omitempty"`
	Reason          any    `json:"reason,omitempty"`   // that a sandbox ended for, or what put it to sleep
	EndedAt         any    `json:"endedAt,omitempty"`  // when it ended
	PausedAt        any    `json:"pausedAt,omitempty"` // since when it sleeps
	Remedy          string `json:"remedy,omitempty"`
	Interrupted     bool   `json:"interrupted,omitempty"` // the request was under way: it may have been carried out
	ConnectionLimit int    `json:"connectionLimit,omitempty"`

	plain      bool // text, as E2B's proxy answers what it cannot route
	waking     bool // a page that asks again by itself
	retryAfter int  // seconds; 0 for none
	location   string
	cookie     string
}

// render returns the answer as this client can read it.
func (a *reply) render(r *request) (http.Header, []byte) {
	h := http.Header{"Cache-Control": {"no-store"}, "Access-Control-Allow-Origin": {"*"}}
	if a.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(a.retryAfter))
	}
	if a.cookie != "" {
		h.Set("Set-Cookie", a.cookie)
	}
	switch {
	case a.location != "":
		h.Set("Location", a.location)
		return h, nil
	case a.plain:
		h.Set("Content-Type", "text/plain; charset=utf-8")
		return h, []byte(a.Message + "\n")
	case navigates(r):
		h.Set("Content-Type", "text/html; charset=utf-8")
		refresh := ""
		if a.waking {
			refresh = `<meta http-equiv="refresh" content="1">`
		}
		return h, fmt.Appendf(nil, page, refresh, a.Code, html.EscapeString(a.Message), html.EscapeString(a.SandboxID))
	}
	h.Set("Content-Type", "application/json; charset=utf-8")
	body, err := json.Marshal(a)
	if err != nil { // cannot happen: strings and numbers
		body = []byte("{}")
	}
	return h, append(body, '\n')
}

const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">%s<title>%d</title>
<body style="font-family:sans-serif;margin:4em auto;max-width:36em">
<h1>%[2]d</h1><p>%s</p><p><code>%s</code></p></body></html>
`

func wakingPage(id string) *reply {
	return &reply{Code: http.StatusServiceUnavailable, SandboxID: id, Message: "The sandbox is waking up. This page asks again by itself.", waking: true, retryAfter: 1}
}

// navigates reports whether a person at a browser will see the answer.
func navigates(r *request) bool {
	if !isBrowser(r.header.Get("User-Agent")) {
		return false
	}
	accept := r.header.Get("Accept")
	if strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html") {
		return false
	}
	mode := r.header.Get("Sec-Fetch-Mode")
	switch mode {
	case "cors", "no-cors", "same-origin", "websocket":
		return false
	}
	return r.header.Get("X-Requested-With") == "" || mode == "navigate"
}

// isBrowser knows browsers by what they call themselves.
func isBrowser(agent string) bool {
	agent = strings.ToLower(agent)
	for _, name := range []string{"mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie"} {
		if strings.Contains(agent, name) {
			return true
		}
	}
	return false
}
