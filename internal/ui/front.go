package ui

import (
	"io"
	"net/http"
	"slices"
	"strings"
)

// front is what a person sees who opens the server's address. It is the same for
// everybody, and says nothing of this server.
const front = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>drowse</title>
<h1>drowse</h1>
<p>This is the API of a drowse server. It runs sandboxes for AI agents, which sleep when idle and wake on the first request.</p>
<ul>
<li><a href="/ui/">The dashboard</a>: look at sandboxes and work with them. It asks for an API key.</li>
<li><a href="/v1/openapi.json">The API</a>, as an OpenAPI document.</li>
</ul>
<p>From a terminal: <code>drowse ls --url</code> with this address, and an API key in <code>DROWSE_API_KEY</code>.</p>
</html>
`

// AsksFront reports whether a browser asks for the front page. Programs that ask for
// the same path get what they always got.
func AsksFront(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Path == "/" && slices.ContainsFunc(r.Header.Values("Accept"), func(accept string) bool {
		return strings.Contains(strings.ToLower(accept), "text/html")
	})
}

// Front answers with the front page.
func Front(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Vary", "Accept")
	_, _ = io.WriteString(w, front)
}
