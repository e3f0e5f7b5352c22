package apitest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// World is a dialect's handler with what is behind it.
type World struct {
	T    *testing.T
	Fake *Fake
	HTTP http.Handler
	Log  *Log
}

// NewWorld returns a world that has no handler yet.
func NewWorld(t *testing.T) *World {
	return &World{T: t, Fake: NewFake(), Log: &Log{}}
}

// Do sends a request with the good key.
func (w *World) Do(method, target, body string) Answer {
	w.T.Helper()
	return w.DoAs(GoodKey, method, target, body)
}

// DoAs sends a request with a key.
func (w *World) DoAs(key, method, target, body string) Answer {
	w.T.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("X-API-Key", key)
	return w.Send(r)
}

// Send sends a request as it is.
func (w *World) Send(r *http.Request) Answer {
	w.T.Helper()
	rec := httptest.NewRecorder()
	w.HTTP.ServeHTTP(rec, r)
	body, _ := io.ReadAll(rec.Body)
	return Answer{w.T, rec.Code, rec.Header(), string(body)}
}

// HidesSleep pauses a sandbox and holds that requests are answered the same, however
// it sleeps.
func (w *World) HidesSleep(id string, answer func() string) {
	w.T.Helper()
	if err := w.Fake.Pause(w.T.Context(), id, supervisor.PauseRequest{Actor: Actor}); err != nil {
		w.T.Fatal(err)
	}
	deep := answer()
	w.Fake.Light[id] = true
	if sb, err := w.Fake.Find(w.T.Context(), id); err != nil || !sb.Light {
		w.T.Fatalf("it does not sleep lightly: %+v, %v", sb, err)
	}
	if light := answer(); light != deep || !strings.Contains(light, "paused") {
		w.T.Errorf("of one that sleeps lightly it says\n%s\nand of one that sleeps deeply\n%s", light, deep)
	}
}

// Advance lets time pass.
func (w *World) Advance(d time.Duration) { pass(w.Fake, d) }

// Answer is a response as a client reads it.
type Answer struct {
	T      *testing.T
	Status int
	Header http.Header
	Body   string
}

// Is checks the status and what must hold of every answer.
func (a Answer) Is(status int) Answer {
	a.T.Helper()
	if a.Status != status {
		a.T.Fatalf("status %d, want %d; body %s", a.Status, status, a.Body)
	}
	if a.Header.Get("Access-Control-Allow-Origin") != "*" {
		a.T.Error("no Access-Control-Allow-Origin")
	}
	if status == http.StatusNoContent {
		if a.Body != "" {
			a.T.Errorf("204 with a body: %s", a.Body)
		}
		return a
	}
	if got := a.Header.Get("Content-Type"); got != "application/json" {
		a.T.Errorf("Content-Type %q", got)
	}
	if !json.Valid([]byte(a.Body)) {
		a.T.Errorf("the body is not JSON: %s", a.Body)
	}
	return a
}

// Object returns the body, which must be a JSON object.
func (a Answer) Object() map[string]any {
	a.T.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(a.Body), &o); err != nil {
		a.T.Fatalf("no JSON object: %v: %s", err, a.Body)
	}
	return o
}

// Log keeps what many goroutines log.
type Log struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns all that was logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// PathOf fills a route's pattern in: sandbox with an id, other parameters with
// something.
func PathOf(pattern, sandboxParam, id string) string {
	segs := strings.Split(pattern, "/")
	for i, seg := range segs {
		switch {
		case seg == "{"+sandboxParam+"}":
			segs[i] = id
		case httpapi.IsParam(seg):
			segs[i] = "x1"
		}
	}
	return strings.Join(segs, "/")
}
