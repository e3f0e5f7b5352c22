package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
)

func TestErrorClasses(t *testing.T) {
	tests := map[errdef.Class]int{
		errdef.NotFound: 404, errdef.Exists: 409, errdef.Invalid: 400, errdef.WrongState: 409, errdef.Conflict: 409,
		errdef.Exhausted: 429, errdef.Unavailable: 503, errdef.Unauthorized: 401, errdef.Forbidden: 403,
		errdef.Unsupported: 400, errdef.Unfit: 501, errdef.Internal: 500,
	}
	for class, status := range tests {
		t.Run(string(class), func(t *testing.T) {
			w := newWorld(t)
			w.Fake.Err = fmt.Errorf("create: %w", errdef.New(class, "some_code", "what happened").WithRemedy("do this"))
			a := w.do("POST", v2, `{"templateID":"base"}`)
			message := "what happened: do this"
			if status == 500 {
				message = "internal error"
			}
			a.fails(status, "some_code", message)
			if a.Header.Get("Retry-After") != "" {
				t.Error("Retry-After makes clients wait for what does not come")
			}
			if strings.Contains(a.Body, "create:") {
				t.Errorf("the server's own words are in the answer: %s", a.Body)
			}
			if logged := w.Log.String() != ""; logged != (status >= 500) {
				t.Errorf("log %q", w.Log.String())
			}
		})
	}
}

// TestRunningLimitsHaveE2BsWords: clients look for the sentence.
func TestRunningLimitsHaveE2BsWords(t *testing.T) {
	one := store.Sandbox{Record: lifecycle.Record{State: lifecycle.Running}}
	var s quota.Slots
	s.Bound(1, nil)
	if err := s.Move(store.Sandbox{}, one); err != nil {
		t.Fatal(err)
	}
	for _, refused := range []error{
		s.Move(store.Sandbox{}, one),
		store.KeyLimits{Running: 1}.Fit("k", one.Use(), one.Use()),
	} {
		w := newWorld(t)
		w.Fake.Err = refused
		a := w.do("POST", v2, `{"templateID":"base"}`)
		if a.Status != http.StatusTooManyRequests || !strings.Contains(a.Body, "you have reached the maximum number of concurrent E2B sandboxes (1)") {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
}

// TestPauseThatCannotBeIsNoSleep: of a 409 the SDKs say that the sandbox is paused.
func TestPauseThatCannotBeIsNoSleep(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base"}`)
	w.Fake.Err = errdef.New(errdef.WrongState, "memory_not_capturable", "it runs on")
	w.do("POST", "/sandboxes/"+id+"/pause", "").fails(http.StatusBadRequest, "memory_not_capturable", "it runs on")
}

func TestUnclassedErrorsAreHidden(t *testing.T) {
	w := newWorld(t)
	w.Fake.Err = errors.New("password of the database is hunter2")
	a := w.do("GET", "/v2/sandboxes", "")
	a.fails(http.StatusInternalServerError, "internal_server_error", "request")
	if strings.Contains(a.Body, "hunter2") {
		t.Error("the cause is in the answer")
	}
	id := strings.Fields(a.Object()["message"].(string))
	if log := w.Log.String(); !strings.Contains(log, "hunter2") || !strings.Contains(log, id[len(id)-1]) {
		t.Errorf("log %q has no cause with request %s", log, id)
	}
}

func TestContextErrors(t *testing.T) {
	w := newWorld(t)
	w.Fake.Err = fmt.Errorf("wait: %w", context.DeadlineExceeded)
	w.do("GET", "/v2/sandboxes", "").fails(http.StatusGatewayTimeout, "timed_out", "")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{
		fmt.Errorf("wait: %w", context.Canceled),
		errdef.New(errdef.Unavailable, "wait_timeout", "still in flight: %w", context.Canceled),
	} {
		w := newWorld(t)
		w.Fake.Err = err
		r := httptest.NewRequestWithContext(ctx, "GET", "/v2/sandboxes", nil)
		r.Header.Set("X-API-Key", goodKey)
		w.send(r).fails(http.StatusServiceUnavailable, "canceled", "")
		if w.Log.String() != "" {
			t.Errorf("a client that left is logged: %s", w.Log)
		}
	}
}

func TestAbortPassesThrough(t *testing.T) {
	w := newWorld(t)
	w.Fake.Panics = http.ErrAbortHandler
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("recovered %v", p)
		}
	}()
	w.do("GET", "/v2/sandboxes", "")
}

func TestUnstorableNetworkIsAnInternalError(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base"}`)
	sb := w.Fake.Sandboxes[id]
	sb.Config.Network = []byte("{broken")
	w.Fake.Sandboxes[id] = sb
	w.do("GET", "/sandboxes/"+id, "").fails(http.StatusInternalServerError, "internal_server_error", "")
}

func TestMalformedJSONSaysWhere(t *testing.T) {
	tests := map[string]struct{ body, want string }{
		"first line":   {`{"templateID" "base"}`, "line 1, column 15"},
		"third line":   {"{\n  \"templateID\": \"base\",\n  oops\n}", "line 3, column 3"},
		"cut off":      {`{"templateID":`, "line 1, column 14"},
		"trailing":     {`{"templateID":"base"} x`, "line 1, column 23"},
		"text":         {"hello", "line 1, column 1"},
		"deep":         {strings.Repeat("[", 20000), "line 1, column"},
		"not UTF-8":    {"{\"templateID\":\"\xff\"}", "UTF-8"},
		"byte order":   {"\ufeff{}", "line 1, column 1"},
		"two objects":  {`{}{}`, "line 1, column 3"},
		"single quote": {`{'a':1}`, "line 1, column 2"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			newWorld(t).do("POST", v2, tt.body).fails(http.StatusBadRequest, "invalid_request", tt.want)
		})
	}
}

// stream hides the length of a body, as a client that streams does.
type stream struct{ io.Reader }

func serve(t *testing.T) (*world, *httptest.Server) {
	w := newWorld(t)
	srv := httptest.NewServer(w.HTTP)
	t.Cleanup(srv.Close)
	return w, srv
}

func post(t *testing.T, url string, body io.Reader) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", goodKey)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, _ := io.ReadAll(res.Body)
	return answer{apitest.Answer{T: t, Status: res.StatusCode, Header: res.Header, Body: string(data)}}
}

func TestBodiesOfUnknownLength(t *testing.T) {
	_, srv := serve(t)
	id := post(t, srv.URL+v2, stream{strings.NewReader(`{"templateID":"base"}`)}).Is(http.StatusCreated).Object()["sandboxID"].(string)
	post(t, srv.URL+"/sandboxes/"+id+"/pause", stream{strings.NewReader("")}).Is(http.StatusNoContent)
	post(t, srv.URL+"/v2/sandboxes/"+id+"/connect", stream{strings.NewReader("")}).Is(http.StatusCreated)
	post(t, srv.URL+"/v2/sandboxes/"+id+"/connect", stream{strings.NewReader("{}")}).Is(http.StatusOK)
}

func TestBodyLimit(t *testing.T) {
	_, srv := serve(t)
	pad := func(n int) []byte {
		return append([]byte(`{"templateID":"base"}`), bytes.Repeat([]byte(" "), n-21)...)
	}
	post(t, srv.URL+v2, bytes.NewReader(pad(1<<20))).Is(http.StatusCreated)
	post(t, srv.URL+v2, bytes.NewReader(pad(1<<20+1))).fails(http.StatusRequestEntityTooLarge, "body_too_large", "1 MiB")
	post(t, srv.URL+v2, stream{bytes.NewReader(pad(1<<20 + 1))}).fails(http.StatusRequestEntityTooLarge, "body_too_large", "1 MiB")
	post(t, srv.URL+v2, bytes.NewReader(pad(100))).Is(http.StatusCreated)
}

func TestNothingSecretIsLogged(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base"}`)
	w.Fake.Err = errors.New("broken")
	for _, r := range routes {
		w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r))
	}
	w.Fake.Err, w.Fake.Panics = nil, "broken"
	for _, r := range routes {
		w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r))
	}
	for _, secret := range []string{goodKey, "envd-token-of", "traffic-token-of"} {
		if strings.Contains(w.Log.String(), secret) {
			t.Errorf("the log contains %s", secret)
		}
	}
}

// What this dialect gives by itself, or the API for the files of volumes beside
// it, has statuses that follow from no class; other tests hold them.
var ownStatuses = map[string]bool{
	codeBodyTooLarge: true, codeBodyTimedOut: true, "method_not_allowed": true, "unknown_path": true, codeNotSupported: true, codeTimedOut: true, codeVolumeExists: true, "volume_full": true,
}

func TestCatalogueStatusesAreThoseAnswered(t *testing.T) {
	for _, e := range errdef.Catalogue() {
		if e.E2B() == 0 || ownStatuses[e.Code] {
			continue
		}
		w := newWorld(t)
		id := w.create(`{"templateID":"base"}`)
		w.Fake.Err = fmt.Errorf("set timeout: %w", errdef.New(e.Class, e.Code, "what happened"))
		a := w.do("POST", "/sandboxes/"+id+"/timeout", `{"timeout":60}`)
		if got := a.Object()["error_code"]; a.Status != e.E2B() || got != e.Code {
			t.Errorf("%s is answered with %d and %v, the catalogue says %d", e.Code, a.Status, got, e.E2B())
		}
	}
}
