package e2b

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

var _ Sandboxes = (*apitest.Fake)(nil)

const goodKey = apitest.GoodKey

var epoch = apitest.Epoch

// world is a handler with what is behind it.
type world struct {
	t    *testing.T
	fake *apitest.Fake
	http http.Handler
	log  *strings.Builder
}

func newWorld(t *testing.T, change ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, fake: apitest.NewFake(), log: &strings.Builder{}}
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
	a := w.do("POST", "/v2/sandboxes", body)
	a.is(http.StatusCreated)
	return a.object()["sandboxID"].(string)
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

// fails checks an error: its status, its numeric code, its error_code and a
// part of its message.
func (a answer) fails(status int, errorCode, message string) {
	a.t.Helper()
	a.is(status)
	o := a.object()
	if code, ok := o["code"].(float64); !ok || int(code) != status {
		a.t.Errorf("code is %v, want the number %d", o["code"], status)
	}
	if got, _ := o["error_code"].(string); errorCode != "" && got != errorCode {
		a.t.Errorf("error_code %q, want %q (%v)", got, errorCode, o["message"])
	}
	if got, _ := o["message"].(string); got == "" || !strings.Contains(got, message) {
		a.t.Errorf("message %q, want %q in it", got, message)
	}
}

func (a answer) object() map[string]any {
	a.t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(a.body), &o); err != nil {
		a.t.Fatalf("no JSON object: %v: %s", err, a.body)
	}
	return o
}

func (a answer) list() []map[string]any {
	a.t.Helper()
	var l []map[string]any
	if err := json.Unmarshal([]byte(a.body), &l); err != nil || l == nil {
		a.t.Fatalf("no JSON array: %v: %s", err, a.body)
	}
	return l
}

// ids returns the sandbox ids of a list, in its order.
func (a answer) ids() string {
	a.t.Helper()
	var ids []string
	for _, o := range a.list() {
		ids = append(ids, o["sandboxID"].(string))
	}
	return strings.Join(ids, " ")
}

// TestFakeFollowsTheInterface: what the fake refuses is what Sandboxes promises.
func TestFakeFollowsTheInterface(t *testing.T) {
	f := apitest.NewFake()
	sb, err := f.Create(t.Context(), supervisor.CreateRequest{Template: "base", Settings: lifecycle.Settings{Timeout: time.Minute, OnTimeout: lifecycle.Kill}})
	if err != nil || sb.Record.State != lifecycle.Running || !sb.Record.EndAt.Equal(epoch.Add(time.Minute)) {
		t.Fatalf("Create = %+v, %v", sb.Record, err)
	}
	wants := func(err error, class errdef.Class, code string) {
		t.Helper()
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Class != class || e.Code != code {
			t.Errorf("got %v, want %s %s", err, class, code)
		}
	}
	_, err = f.Resume(t.Context(), sb.ID, time.Minute, "")
	wants(err, errdef.Conflict, "already_running")
	if err := f.Pause(t.Context(), sb.ID, lifecycle.Memory, ""); err != nil {
		t.Fatal(err)
	}
	wants(f.Pause(t.Context(), sb.ID, lifecycle.Memory, ""), errdef.Conflict, "already_paused")
	_, err = f.SetTimeout(t.Context(), sb.ID, time.Minute, "")
	wants(err, errdef.WrongState, "not_running")
	if err := f.Kill(t.Context(), sb.ID, ""); err != nil {
		t.Fatal(err)
	}
	_, err = f.Get(t.Context(), sb.ID)
	wants(err, errdef.NotFound, "sandbox_terminated")
}
