package dialect

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// serve answers a GET, and returns what was logged.
func serve(handle func() (Reply, error)) (*httptest.ResponseRecorder, string) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	rec := httptest.NewRecorder()
	Serve(rec, httptest.NewRequest("GET", "/", nil), handle, func(err error) httpapi.Response {
		Tell(httptest.NewRequest("GET", "/", nil), log, err)
		return httpapi.Response{Status: http.StatusTeapot}
	})
	return rec, out.String()
}

func TestServeAnswersOnce(t *testing.T) {
	rec, _ := serve(func() (Reply, error) { return Reply{Status: http.StatusCreated, Body: "made"}, nil })
	if rec.Code != http.StatusCreated || rec.Body.String() != `"made"` || rec.Header().Get("Access-Control-Allow-Origin") != "*" {
		t.Error(rec.Code, rec.Body, rec.Header())
	}
	rec, log := serve(func() (Reply, error) { return Reply{Body: "half"}, errors.New("broken") })
	if rec.Code != http.StatusTeapot || rec.Body.Len() != 0 || !strings.Contains(log, "broken") {
		t.Error(rec.Code, rec.Body, log)
	}
	rec, log = serve(func() (Reply, error) { panic("at the disco") })
	if rec.Code != http.StatusTeapot || !strings.Contains(log, "at the disco") || !strings.Contains(log, "dialect_test.go") {
		t.Error(rec.Code, log)
	}
}

// TestTheLogHasTheCause: of what may pass the log has more than the client is told, once.
func TestTheLogHasTheCause(t *testing.T) {
	e := errdef.New(errdef.Unavailable, "away", "it is away")
	e.Err = errors.New("10.0.0.2 refuses")
	for want, err := range map[string]error{
		`err="it is away" cause="10.0.0.2 refuses"` + "\n":          e,
		`err="it is away: 10.0.0.2 refuses"` + "\n":                 errdef.New(errdef.Unavailable, "away", "it is away: %w", e.Err),
		`msg="request could not be served" err="it is away"` + "\n": errdef.New(errdef.Unavailable, "away", "it is away"),
	} {
		if _, log := serve(func() (Reply, error) { return Reply{}, err }); !strings.HasSuffix(log, want) || strings.Count(log, "\n") != 1 {
			t.Errorf("the log is %q, want %q at its end", log, want)
		}
	}
}

// A client must not take half an answer for a whole one.
func TestServeBreaksOffAStreamThatPanics(t *testing.T) {
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("the panic went on as %v", p)
		}
	}()
	serve(func() (Reply, error) { return Reply{Stream: func(http.ResponseWriter) { panic("half way") }}, nil })
}

func TestRoute(t *testing.T) {
	type route struct{ method, pattern string }
	router := httpapi.NewRouter([]route{{"GET", "/a/{id}"}, {"PUT", "/a/{id}"}}, func(r *route) (string, string) { return r.method, r.pattern })
	unknown := errors.New("unknown")
	if r, params, err := Route(router, "PUT", "/a/b", unknown); err != nil || r.method != "PUT" || params["id"] != "b" {
		t.Error(r, params, err)
	}
	if _, _, err := Route(router, "GET", "/b", unknown); err != unknown {
		t.Error(err)
	}
	_, _, err := Route(router, "POST", "/a/b", unknown)
	e, ok := errors.AsType[*errdef.Error](err)
	if h := HeaderOf(e); !ok || h.Get("Allow") != "GET, PUT" || h.Get("Retry-After") != "" {
		t.Error(err, h)
	}
	if h := HeaderOf(errdef.New(errdef.Exhausted, auth.CodeRate, "too many")); h.Get("Retry-After") != "1" {
		t.Errorf("a key that calls too often is told %v", h)
	}
}

// What a route does not read is refused, and whoever reads for itself gets the body.
func TestReads(t *testing.T) {
	name := body.Vocabulary{{Name: "name", Spelled: []body.Spelled{body.AsText.As("name")}}}
	strict := Reads{Body: name, Nulls: body.NullIsRefused}
	for _, c := range []struct {
		what         string
		reads        Reads
		method, path string
		body         string
		wrong        string // in the error; empty for none
	}{
		{"all", Takes(name, "async"), "POST", "/?async=1", `{"name":"x"}`, ""},
		{"no body", Takes(name), "POST", "/", "", ""},
		{"a null", Takes(name), "POST", "/", `{"name":null}`, ""},
		{"a refused null", strict, "POST", "/", `{"name":null}`, "name"},
		{"a missing body", Needs(name), "POST", "/", " ", "empty"},
		{"another field", Takes(name), "POST", "/", `{"someday":1}`, "someday"},
		{"another parameter", Takes(name, "async"), "POST", "/?someday=1", `{}`, "someday"},
		{"a body", Nothing, "DELETE", "/", `{"someday":1}`, "someday"},
		{"a parameter", Nothing, "DELETE", "/?someday=1", "", "someday"},
		{"that of a GET", Nothing, "GET", "/?someday=1", `{"someday":1}`, ""},
		{"a parameter of a strict GET", Takes(nil, "async").Strict(), "GET", "/?async=1", `{"someday":1}`, ""},
		{"another of a strict GET", Takes(nil, "async").Strict(), "GET", "/?asynch=1", "", `did you mean "async"`},
		{"no JSON", Raw("path"), "POST", "/?path=a", "bytes", ""},
		{"no JSON, and a parameter", Raw("path"), "POST", "/?someday=1", "bytes", "someday"},
		{"what the handler judges", Unjudged, "POST", "/?someday=1", "bytes", ""},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		words, sent, err := c.reads.Read(httptest.NewRecorder(), r, "k")
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %v", c.what, err)
		}
		if c.what == "all" && (words["name"].Value != "x" || string(sent) != c.body) {
			t.Errorf("%v %q", words, sent)
		}
		if left, err := io.ReadAll(r.Body); err != nil || sent == nil && c.body == "bytes" && string(left) != c.body {
			t.Errorf("%s: of the body, %q is left, %v", c.what, left, err)
		}
	}
}
