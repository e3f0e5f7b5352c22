package v1

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
)

func TestPreviews(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"timeout":600,"onTimeout":"pause"}`)
	path := base + "/" + id + "/previews"
	o := w.do("POST", path, `{"port":8000}`).Is(http.StatusCreated).Object()
	token, _ := o["token"].(string)
	if o["port"] != 8000.0 || o["expiresAt"] != "2026-09-01T13:00:01.000000Z" || o["actor"] != apitest.Actor || !strings.Contains(token, apitest.Tokens()) {
		t.Errorf("%v", o)
	}
	w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
	second := w.do("POST", path, `{"port":1,"ttl":60,"expiresIn":60.0}`).Is(http.StatusCreated).Object()
	if second["expiresAt"] != "2026-09-01T12:01:01.000000Z" || w.sandbox(id)["state"] != "paused" {
		t.Errorf("%v", second)
	}

	a := w.do("GET", path, "").Is(http.StatusOK)
	if got := list(a.Object()["previews"]); len(got) != 2 || got[0]["id"] != o["id"] || got[1]["port"] != 1.0 || strings.Contains(a.Body, apitest.Tokens()) || strings.Contains(a.Body, "url") {
		t.Errorf("listed %s", a.Body)
	}
	w.do("DELETE", fmt.Sprintf("%s/%s", path, o["id"]), "").Is(http.StatusNoContent)
	e := w.do("DELETE", path+"/"+token, "").fails(http.StatusNotFound, "preview_not_found", "")
	if strings.Contains(fmt.Sprint(e), token) {
		t.Errorf("the token is in the error %v", e)
	}
	w.Advance(2 * time.Minute)
	if got := list(w.do("GET", path, "").Is(http.StatusOK).Object()["previews"]); len(got) != 0 {
		t.Errorf("listed %v: one is revoked, one has expired", got)
	}
	if log := w.Log.String(); strings.Contains(log, apitest.Tokens()) {
		t.Errorf("a token is in the log: %s", log)
	}
}

func TestPreviewURLs(t *testing.T) {
	plain := func(*http.Request) {}
	for name, tt := range map[string]struct {
		domain, body string
		change       func(*http.Request)
		want         string // before the token
	}{
		"by path":            {"", `{"port":8000}`, plain, "http://example.com/s/ID/8000/?drowse_preview="},
		"by path, further":   {"", `{"port":8000,"path":"/a%20b/?x=1&y"}`, plain, "http://example.com/s/ID/8000/a%20b/?x=1&y&drowse_preview="},
		"a host with a port": {"", `{"port":80}`, func(r *http.Request) { r.Host = "127.0.0.1:3000" }, "http://127.0.0.1:3000/s/ID/80/?drowse_preview="},
		"by host":            {"sb.example.com:3000", `{"port":8000,"path":"/x"}`, plain, "http://8000-ID.sb.example.com:3000/x?drowse_preview="},
		"by host, TLS":       {"sb.example.com", `{"port":1}`, func(r *http.Request) { r.TLS = &tls.ConnectionState{} }, "https://1-ID.sb.example.com/?drowse_preview="},
		"TLS ends before us": {"", `{"port":1}`, func(r *http.Request) { r.Header.Set("X-Forwarded-Proto", "https") }, "https://example.com/s/ID/1/?drowse_preview="},
		"HTTP/1.0, without host": {"", `{"port":1}`, func(r *http.Request) {
			r.Host = ""
			at := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 3000}
			*r = *r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(at)))
		}, "http://10.0.0.1:3000/s/ID/1/?drowse_preview="},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *Options) { o.Domain = tt.domain })
			id := w.create(`{}`)
			r := httptest.NewRequest("POST", base+"/"+id+"/previews", strings.NewReader(tt.body))
			r.Header.Set("X-API-Key", goodKey)
			tt.change(r)
			o := w.send(r).Is(http.StatusCreated).Object()
			if want := strings.Replace(tt.want, "ID", id, 1) + o["token"].(string); o["url"] != want {
				t.Errorf("got  %v\nwant %s", o["url"], want)
			}
		})
	}
}

func TestPreviewRefusals(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{}`)
	path := base + "/" + id + "/previews"
	for body, want := range map[string]struct{ code, message string }{
		`{}`:                                {"invalid_request", `"port" is required`},
		`{"port":0}`:                        {"port_invalid", `"port" is 0`},
		`{"port":65536}`:                    {"port_invalid", "65536"},
		`{"port":80.5}`:                     {"port_invalid", "80.5"},
		`{"port":-1}`:                       {"port_invalid", "-1"},
		`{"port":"80"}`:                     {"invalid_request", "must be a number, not a string"},
		`{"port":80,"expiresIn":0}`:         {"timeout_invalid", `"expiresIn" is 0`},
		`{"port":80,"ttl":-1}`:              {"timeout_invalid", `"ttl" is negative`},
		`{"port":80,"ttl":1,"expiresIn":2}`: {"contradicting_options", `"expiresIn"`},
		`{"port":80,"ttl":1e400}`:           {"timeout_too_large", `"ttl"`},
		`{"port":80,"path":"docs"}`:         {"invalid_request", `"path"`},
		`{"port":80,"path":""}`:             {"invalid_request", `"path"`},
		`{"port":80,"path":"//evil.com"}`:   {"invalid_request", `"path"`},
		`{"port":80,"path":"/\\evil.com"}`:  {"invalid_request", `"path"`},
		`{"port":80,"path":"/a#b"}`:         {"invalid_request", `"path"`},
		`{"port":80,"path":"/a b"}`:         {"invalid_request", `"path"`},
		`{"port":80,"path":"/a\nb"}`:        {"invalid_request", `"path"`},
		`{"port":80,"path":"http://a/b"}`:   {"invalid_request", `"path"`},
		`{"port":80,"protocol":"https"}`:    {"unknown_field", "protocol"},
	} {
		w.do("POST", path, body).fails(http.StatusBadRequest, want.code, want.message)
	}
	for range 100 {
		w.do("POST", path, `{"port":80}`).Is(http.StatusCreated)
	}
	w.do("POST", path, `{"port":80}`).fails(http.StatusTooManyRequests, "too_many_previews", "100")
}
