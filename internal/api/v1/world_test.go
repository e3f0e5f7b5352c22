package v1

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
)

var _ Sandboxes = (*apitest.Fake)(nil)

const goodKey = apitest.GoodKey

var epoch = apitest.Epoch

// world is a handler with what is behind it.
type world struct {
	t    *testing.T
	fake *apitest.Fake
	http http.Handler
	log  *logBuffer
}

// logBuffer is a log that streams write to as well.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t *testing.T, change ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, fake: apitest.NewFake(), log: &logBuffer{}}
	w.fake.Limit = 24 * time.Hour
	o := Options{Sandboxes: w.fake, Auth: apitest.Keyring{}, Log: slog.New(slog.NewTextHandler(w.log, nil))}
	for _, c := range change {
		c(&o)
	}
	w.http = New(o)
	return w
}

// answer is a response as a client reads it.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

// do sends a request with the good key.
func (w *world) do(method, target, body string) answer {
	w.t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("X-API-Key", goodKey)
	return w.send(r)
}

func (w *world) send(r *http.Request) answer {
	w.t.Helper()
	rec := httptest.NewRecorder()
	w.http.ServeHTTP(rec, r)
	body, _ := io.ReadAll(rec.Body)
	return answer{w.t, rec.Code, rec.Header(), string(body)}
}

// create makes a sandbox and returns its id.
func (w *world) create(body string) string {
	w.t.Helper()
	return w.do("POST", base, body).is(http.StatusCreated).object()["id"].(string)
}

func (w *world) sandbox(id string) map[string]any {
	w.t.Helper()
	return w.do("GET", base+"/"+id, "").is(http.StatusOK).object()
}

func (w *world) advance(d time.Duration) { w.fake.Now = w.fake.Now.Add(d) }

// is checks the status and what must hold of every answer.
func (a answer) is(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d; body %s", a.status, status, a.body)
	}
	if a.header.Get("Access-Control-Allow-Origin") != "*" {
		a.t.Error("no Access-Control-Allow-Origin")
	}
	if status == http.StatusNoContent {
		if a.body != "" {
			a.t.Errorf("204 with a body: %s", a.body)
		}
		return a
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		a.t.Errorf("Content-Type %q", got)
	}
	if !json.Valid([]byte(a.body)) {
		a.t.Errorf("the body is not JSON: %s", a.body)
	}
	return a
}

// fails checks an error and returns its inner object.
func (a answer) fails(status int, code, message string) map[string]any {
	a.t.Helper()
	a.is(status)
	o := a.object()
	e, ok := o["error"].(map[string]any)
	if !ok || len(o) != 1 {
		a.t.Fatalf("no error: %s", a.body)
	}
	for _, field := range []string{"code", "message", "cause", "remediation", "context"} {
		if _, has := e[field]; !has {
			a.t.Errorf("the error has no %s: %s", field, a.body)
		}
	}
	if e["code"] != code {
		a.t.Errorf("code %v, want %s (%v)", e["code"], code, e["message"])
	}
	if text, _ := e["message"].(string); text == "" || !strings.Contains(text, message) {
		a.t.Errorf("message %q, want %q in it", e["message"], message)
	}
	if text, _ := e["remediation"].(string); text == "" && status != http.StatusInternalServerError {
		a.t.Errorf("no remediation: %s", a.body)
	}
	return e
}

func (a answer) object() map[string]any {
	a.t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(a.body), &o); err != nil {
		a.t.Fatalf("no JSON object: %v: %s", err, a.body)
	}
	return o
}

func contextOf(e map[string]any) map[string]any { return e["context"].(map[string]any) }

func list(v any) []map[string]any {
	var l []map[string]any
	for _, item := range v.([]any) {
		l = append(l, item.(map[string]any))
	}
	return l
}
