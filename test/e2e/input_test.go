package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestBadInput sends what no client should. Each request gets the right status
// and a body that says what is wrong, and the server is none the worse for it.
func TestBadInput(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t, "--max-timeout", "24h")
	sb := s.create(ctx, client.CreateOptions{})
	unknown := "i" + strings.Repeat("0", 20)
	for accept, want := range map[string]int{"text/html": 200, "*/*": 404} { // a browser, and a program
		if page, err := s.raw(ctx, "GET", "/", http.Header{"Accept": {accept}}, nil); err != nil || page.status != want || want == 200 && !strings.Contains(string(page.body), "/ui/") {
			t.Errorf("/ for %s: %d %q, %v; want %d", accept, page.status, page.body, err, want)
		}
	}
	const base = `{"templateID":"base"}`
	for _, c := range []struct {
		name, method, path, body string
		key                      string // the good one if empty
		status                   int
		says                     string
	}{
		{name: "unknown template", method: "POST", path: "/v2/sandboxes", body: `{"templateID":"nosuch"}`, status: 404, says: "nosuch"},
		{name: "template that is a path", method: "POST", path: "/v2/sandboxes", body: `{"templateID":"../../etc"}`, status: 400, says: "templateID"},
		{name: "no template", method: "POST", path: "/v2/sandboxes", body: `{}`, status: 400, says: "templateID"},
		{name: "no key", method: "POST", path: "/v2/sandboxes", body: base, key: "none", status: 401, says: "API key"},
		{name: "unknown key", method: "POST", path: "/v2/sandboxes", body: base, key: "e2b_" + strings.Repeat("f", 40), status: 401, says: "API key"},
		{name: "malformed key", method: "GET", path: "/v2/sandboxes", key: "' OR 1=1 --", status: 401, says: "API key"},
		{name: "bad key and unknown sandbox", method: "GET", path: "/sandboxes/" + unknown, key: "e2b_00", status: 401, says: "API key"},
		{name: "malformed JSON", method: "POST", path: "/v2/sandboxes", body: `{"templateID":`, status: 400, says: "JSON"},
		{name: "JSON array", method: "POST", path: "/v2/sandboxes", body: `[]`, status: 400, says: "object"},
		{name: "JSON null", method: "POST", path: "/v2/sandboxes", body: `null`, status: 400, says: "object"},
		{name: "two values", method: "POST", path: "/v2/sandboxes", body: base + base, status: 400, says: "JSON"},
		{name: "deep JSON", method: "POST", path: "/v2/sandboxes", body: `{"metadata":` + strings.Repeat(`{"a":`, 100_000), status: 400, says: "JSON"},
		{name: "not UTF-8", method: "POST", path: "/v2/sandboxes", body: "{\"templateID\":\"\xff\"}", status: 400, says: "UTF-8"},
		{name: "empty body", method: "POST", path: "/v2/sandboxes", status: 400, says: "body"},
		{name: "timeout as text", method: "POST", path: "/v2/sandboxes", body: `{"templateID":"base","timeout":"5"}`, status: 400, says: "timeout"},
		{name: "fractional timeout", method: "POST", path: "/v2/sandboxes", body: `{"templateID":"base","timeout":1.5}`, status: 400, says: "timeout"},
		{name: "negative timeout", method: "POST", path: "/v2/sandboxes", body: `{"templateID":"base","timeout":-1}`, status: 400, says: "imeout"},
		{name: "huge timeout", method: "POST", path: "/v2/sandboxes", body: `{"templateID":"base","timeout":1000000}`, status: 400, says: "imeout"},
		{name: "timeout beyond 64 bits", method: "POST", path: "/v2/sandboxes", body: `{"templateID":"base","timeout":1e400}`, status: 400, says: "timeout"},
		{name: "metadata of numbers", method: "POST", path: "/v2/sandboxes", body: `{"templateID":"base","metadata":{"a":1}}`, status: 400, says: "metadata"},
		{name: "auto-resume of what is killed", method: "POST", path: "/v2/sandboxes", body: `{"templateID":"base","autoResume":{"enabled":true}}`, status: 400, says: "onTimeout"},
		{name: "unknown sandbox", method: "GET", path: "/sandboxes/" + unknown, status: 404, says: unknown},
		{name: "unknown sandbox with a dash", method: "GET", path: "/sandboxes/" + unknown + "-abc", status: 404, says: unknown},
		{name: "kill unknown sandbox", method: "DELETE", path: "/sandboxes/" + unknown, status: 404, says: unknown},
		{name: "pause unknown sandbox", method: "POST", path: "/sandboxes/" + unknown + "/pause", status: 404, says: unknown},
		{name: "id with two dashes", method: "GET", path: "/sandboxes/a-b-c", status: 400, says: "ID"},
		{name: "id with capitals", method: "GET", path: "/sandboxes/ABC", status: 400, says: "ID"},
		{name: "id that climbs", method: "GET", path: "/sandboxes/..%2f..%2fetc", status: 400, says: "ID"},
		{name: "known id with a dash", method: "GET", path: "/sandboxes/" + sb.ID + "-0123abcd", status: 200},
		{name: "timeout of nothing", method: "POST", path: "/sandboxes/" + sb.ID + "/timeout", body: `{}`, status: 400, says: "timeout"},
		{name: "resume what runs", method: "POST", path: "/sandboxes/" + sb.ID + "/resume", body: `{}`, status: 409, says: "running"},
		{name: "wrong method", method: "PUT", path: "/v2/sandboxes", body: base, status: 405, says: "PUT"},
		{name: "wrong method on a sandbox", method: "PATCH", path: "/sandboxes/" + sb.ID, status: 405, says: "PATCH"},
		{name: "unknown path", method: "GET", path: "/nosuch", status: 404, says: "path"},
		{name: "path that climbs", method: "GET", path: "/v2/../../etc/passwd", status: 404, says: "path"},
		{name: "bad page token", method: "GET", path: "/v2/sandboxes?nextToken=%00", status: 400, says: "oken"},
		{name: "bad limit", method: "GET", path: "/v2/sandboxes?limit=many", status: 400, says: "limit"},
		{name: "bad state", method: "GET", path: "/v2/sandboxes?state=asleep", status: 400, says: "state"},
	} {
		t.Run(c.name, func(t *testing.T) {
			header := http.Header{"Content-Type": {"application/json"}}
			switch c.key {
			case "":
				header.Set("X-API-Key", apiKey)
			case "none":
			default:
				header.Set("X-API-Key", c.key)
			}
			got, err := s.raw(ctx, c.method, c.path, header, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if got.status != c.status {
				t.Errorf("status %d, want %d: %.300s", got.status, c.status, got.body)
			}
			if c.status >= 400 {
				checkErrorBody(t, got, c.says)
			}
		})
	}

	for name, body := range map[string]io.Reader{
		"body of 20 MiB":                   bytes.NewReader(append([]byte(`{"templateID":"`), bytes.Repeat([]byte("a"), 20<<20)...)),
		"body of 20 MiB of unknown length": io.LimitReader(endless('a'), 20<<20),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.raw(ctx, http.MethodPost, "/v2/sandboxes", http.Header{"X-Api-Key": {apiKey}, "Content-Type": {"application/json"}}, body)
			if err != nil {
				t.Fatal(err) // the answer must arrive although not all was read
			}
			if got.status != http.StatusRequestEntityTooLarge {
				t.Errorf("status %d, want 413: %.300s", got.status, got.body)
			}
			checkErrorBody(t, got, "MiB")
		})
	}

	t.Run("data plane", func(t *testing.T) {
		for _, c := range []struct {
			name   string
			header http.Header
			status int
		}{
			{"no port", http.Header{"E2b-Sandbox-Id": {sb.ID}}, 400},
			{"port out of range", http.Header{"E2b-Sandbox-Id": {sb.ID}, "E2b-Sandbox-Port": {"65536"}}, 400},
			{"port that is none", http.Header{"E2b-Sandbox-Id": {sb.ID}, "E2b-Sandbox-Port": {"-1"}}, 400},
			{"id that climbs", http.Header{"E2b-Sandbox-Id": {"../" + sb.ID}, "E2b-Sandbox-Port": {"80"}}, 400},
			{"unknown sandbox", http.Header{"E2b-Sandbox-Id": {unknown}, "E2b-Sandbox-Port": {"80"}}, 502},
			{"closed port", http.Header{"E2b-Sandbox-Id": {sb.ID}, "E2b-Sandbox-Port": {"81"}}, 502},
		} {
			got, err := s.raw(ctx, http.MethodGet, "/", c.header, nil)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if got.status != c.status || len(got.body) == 0 {
				t.Errorf("%s: status %d, want %d: %s", c.name, got.status, c.status, got.body)
			}
			var body struct{ Code int }
			if c.status == http.StatusBadGateway && (json.Unmarshal(got.body, &body) != nil || body.Code != c.status) {
				t.Errorf("%s: body %s, want the status as its code", c.name, got.body)
			}
		}
	})

	if err := s.client.Health(ctx); err != nil {
		t.Errorf("after all that: %v", err)
	}
	if exit, out := run(ctx, t, sb, "echo", "well"); exit.Code != 0 || out != "well\n" {
		t.Errorf("after all that: %+v %q", exit, out)
	}
	for _, bad := range []string{"level=ERROR", "panic"} {
		if n := s.log.count(bad); n > 0 {
			t.Errorf("the server's log has %d lines with %q", n, bad)
		}
	}
}

// checkErrorBody wants the form of an error that every client understands.
func checkErrorBody(t *testing.T, got answer, says string) {
	t.Helper()
	var body struct {
		Code    json.RawMessage
		Message string
	}
	if err := json.Unmarshal(got.body, &body); err != nil {
		t.Fatalf("body %q: %v", got.body, err)
	}
	var code int
	if err := json.Unmarshal(body.Code, &code); err != nil || code != got.status {
		t.Errorf("code %s, want the number %d", body.Code, got.status)
	}
	if !strings.Contains(body.Message, says) {
		t.Errorf("message %q, want it to name %q", body.Message, says)
	}
	if ct := got.header.Get("Content-Type"); !strings.HasPrefix(ct, "application/json") {
		t.Errorf("content type %q, want JSON", ct)
	}
}

// endless is a reader without end.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}
