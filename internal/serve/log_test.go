package serve

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"unicode"
)

// maxLogLine is how long a line may be that has a few values of tenants. JSON takes
// six bytes for a control character.
const maxLogLine = 32 << 10

// hostileText is what a tenant would have an administrator's terminal do, 1 MiB of it.
var hostileText = strings.Repeat("\x1b[2J\x9b\u009b\u202e\x7f\n\r\x00level=ERROR \"}\xff", 1<<20/29)

// checkLog holds a log to lines of a bounded length, without anything that acts on a
// terminal.
func checkLog(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if len(line) > maxLogLine {
			t.Errorf("a line has %d bytes: %.200q", len(line), line)
		}
		for _, r := range strings.TrimSuffix(line, "\n") {
			if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
				t.Errorf("a line has %U: %.200q", r, line)
				break
			}
		}
	}
}

// stringer is a value with a text of its own.
type stringer struct{}

func (stringer) String() string { return hostileText }

// TestLogValues: whatever a value is, it is a bounded part of one line.
func TestLogValues(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		for name, value := range map[string]any{
			"text": hostileText, "error": fmt.Errorf("pause: %w", errors.New(hostileText)), "texts": []string{hostileText, "x"},
			"metadata": map[string]string{hostileText: hostileText}, "stringer": stringer{}, "bytes": json.RawMessage(asJSON(hostileText)),
			"group": slog.GroupValue(slog.String("inner", hostileText)),
		} {
			var out bytes.Buffer
			log, err := NewLogger(&out, format, "info")
			if err != nil {
				t.Fatal(err)
			}
			log.Info("something happened", "sandbox", "i123", name, value, "err", errors.New("short"))
			log.Warn(hostileText)
			checkLog(t, out.String())
			if n := strings.Count(out.String(), "\n"); n != 2 {
				t.Errorf("%s, %s: %d lines, want 2", format, name, n)
			}
			if !strings.Contains(out.String(), "i123") || !strings.Contains(out.String(), "short") || !strings.Contains(out.String(), "bytes)") {
				t.Errorf("%s, %s: %.300s lacks what is short, or that something was cut", format, name, out.String())
			}
		}
	}
	// What is short stays what it is.
	var out bytes.Buffer
	log, err := NewLogger(&out, "json", "info")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("deleted", "hosts", []string{"a.test", "b.test"}, "n", 7, "name", "Grüße")
	for _, want := range []string{`"hosts":["a.test","b.test"]`, `"n":7`, `"name":"Grüße"`, `"level":"INFO"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s has no %s", out.String(), want)
		}
	}
	if _, err := NewLogger(&out, "json", "loud"); err == nil {
		t.Error("a level that there is not is taken")
	}
}

func asJSON(text string) string {
	data, _ := json.Marshal(text)
	return string(data)
}

// TestLogOfHostileTenants has tenants send as much as a body may have in every field
// that could come to the log, in each dialect, and a sandbox whose pause fails with as
// much to say.
func TestLogOfHostileTenants(t *testing.T) {
	w := newWorld(t)
	huge := asJSON(hostileText[:900_000/4]) // as JSON it is up to four times as long
	id := w.create(true)
	asked := 0
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/sandboxes", `{"templateID":` + huge + `}`},
		{"POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"k":` + huge + `}}`},
		{"POST", "/v2/sandboxes", `{"templateID":"base","metadata":{` + huge + `:"v"}}`},
		{"POST", "/v1/sandboxes", `{"template":` + huge + `}`},
		{"POST", "/v1/sandboxes", `{"metadata":{"k":` + huge + `}}`},
		{"POST", "/v1/sandboxes", `{"env":{"k":` + huge + `}}`},
		{"POST", "/v1/sandboxes", `{"name":` + huge + `}`},
		{"POST", "/v1/sandboxes/" + id + "/holds", `{"reason":` + huge + `}`},
		{"POST", "/v1/keys", `{"name":` + huge + `,"role":"own"}`},
		{"POST", "/v1/volumes", `{"name":` + huge + `}`},
		{"POST", "/events/webhooks", `{"name":"x","url":` + huge + `,"events":[],"enabled":true}`},
		{"GET", "/v1/sandboxes/" + strings.Repeat("%1b[2J%0a", 3000), ""},
		{"GET", "/" + strings.Repeat("%c2%9b%e2%80%ae", 3000), ""},
	} {
		if a := w.ask(testKey, c.method, c.path, c.body); a.status >= 500 {
			t.Errorf("%s %.40q: %d %.300q", c.method, c.path, a.status, a.body)
		} else {
			asked++
		}
	}
	if asked == 0 {
		t.Error("nothing was asked")
	}
	w.capture = func() error { return errors.New(hostileText) }
	if a := w.ask(testKey, "POST", "/v1/sandboxes/"+id+"/pause", "{}"); a.status < 400 {
		t.Errorf("the pause does not fail: %d %.300q", a.status, a.body)
	}
	w.capture = nil
	text := w.log.String()
	checkLog(t, text)
	if !strings.Contains(text, "bytes)") {
		t.Errorf("the log has no value that was cut: %.500s", text)
	}
}

// TestWarningOfClearText: a server that others reach without TLS says so, and no other.
func TestWarningOfClearText(t *testing.T) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	for _, c := range []struct {
		at    string
		tls   *tls.Config
		warns bool
	}{
		{"0.0.0.0:3000", nil, true}, {"192.0.2.1:3000", nil, true}, {"[::]:3000", nil, true}, {"[2001:db8::1]:3000", nil, true}, {"10.0.0.1:3000", nil, true},
		{"127.0.0.1:3000", nil, false}, {"127.0.0.9:3000", nil, false}, {"[::1]:3000", nil, false}, {"[::ffff:127.0.0.1]:3000", nil, false},
		{"0.0.0.0:3000", secure, false}, {"[2001:db8::1]:3000", secure, false}, {"127.0.0.1:3000", secure, false},
	} {
		var out bytes.Buffer
		log, err := NewLogger(&out, "text", "warn")
		if err != nil {
			t.Fatal(err)
		}
		warnOfClear(log, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.at)), c.tls)
		text := out.String()
		if got := strings.Contains(text, "without TLS"); got != c.warns || got && (!strings.Contains(text, "WARN") || !strings.Contains(text, "--tls-cert") || !strings.Contains(text, c.at)) {
			t.Errorf("on %s, TLS %v: logs %q, want a warning: %v", c.at, c.tls != nil, text, c.warns)
		}
	}
}

// TestLogOfDescriptors: a server says how many files it can open, and warns where
// they are few.
func TestLogOfDescriptors(t *testing.T) {
	for descriptors, want := range map[uint64][]string{
		1 << 20: {"level=INFO", `msg="file limit"`, "1048576 file descriptors; a program in a sandbox may have 262144"},
		4096:    {"level=WARN", `msg="file limit"`, "4096 file descriptors; a program in a sandbox may have 1024", "LimitNOFILE"},
	} {
		var out bytes.Buffer
		log, err := NewLogger(&out, "text", "info")
		if err != nil {
			t.Fatal(err)
		}
		Finding{Name: "file limit"}.opening(descriptors).log(log)
		for _, part := range want {
			if text := out.String(); !strings.Contains(text, part) {
				t.Errorf("of %d, logs %q, want %q", descriptors, text, part)
			}
		}
	}
}

// TestMetricsNeedAKey: what is counted over all sandboxes is for keys that see all of
// them, however a key is sent, and not for whoever comes from this machine.
func TestMetricsNeedAKey(t *testing.T) {
	w := newWorld(t)
	keys := map[string]string{"admin": testKey}
	for _, role := range []string{"full", "own", "read"} {
		keys[role] = w.wants(w.ask(testKey, "POST", "/v1/keys", `{"name":"`+role+`","role":"`+role+`"}`), 201, `"key"`).field("key")
	}
	revoked := w.wants(w.ask(testKey, "POST", "/v1/keys", `{"name":"gone","role":"admin"}`), 201, `"key"`)
	w.wants(w.ask(testKey, "DELETE", "/v1/keys/"+revoked.field("id"), ""), 204, "")
	for _, c := range []struct {
		key, text string
		status    int
	}{
		{"none", "", 401}, {"unknown", "e2b_" + strings.Repeat("0", 40), 401}, {"malformed", "x", 401}, {"revoked", revoked.field("key"), 401},
		{"own", keys["own"], 403}, {"read", keys["read"], 200}, {"full", keys["full"], 200}, {"admin", keys["admin"], 200},
	} {
		for name, value := range map[string]string{"X-Api-Key": c.text, "Authorization": "Bearer " + c.text} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/metrics", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(name, value)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			var body bytes.Buffer
			_, err = body.ReadFrom(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != c.status {
				t.Errorf("with the key %s in %s: %d, %v; want %d", c.key, name, resp.StatusCode, err, c.status)
			}
			if has := strings.Contains(body.String(), "drowse_"); has != (c.status == http.StatusOK) {
				t.Errorf("with the key %s in %s: the answer has metrics: %v", c.key, name, has)
			}
		}
	}
}
