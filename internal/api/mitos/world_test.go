package mitos

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// sandboxes is the supervisor of a test: it finds sandboxes by their names, and lets nobody into a sandbox but where a test says who answers there.
type sandboxes struct {
	*apitest.Fake
	*apitest.Snapshots
	acquired []supervisor.Access
	dial     *supervisor.Lease // nil where nobody answers
	moved    error             // why nobody gets in; nil if that may be
}

// Named returns the sandbox that has a name, or that had it last.
func (s *sandboxes) Named(key, name string) (id string, ok bool) {
	var last store.Sandbox
	for _, sb := range s.Sandboxes {
		if sb.Config.Key == key && sb.Config.Name == name && !sb.Record.CreatedAt.Before(last.Record.CreatedAt) {
			last = sb
		}
	}
	return last.ID, last.ID != ""
}

func (s *sandboxes) Acquire(ctx context.Context, id string, a supervisor.Access) (*supervisor.Lease, error) {
	sb, err := s.Get(ctx, id)
	switch {
	case err != nil || s.moved != nil:
		return nil, cmp.Or(s.moved, err)
	case sb.Record.State == lifecycle.Paused:
		return nil, errdef.New(errdef.WrongState, "not_resumable", "sandbox %s is paused", id)
	case s.dial == nil:
		return nil, errdef.New(errdef.Unavailable, "runtime_gone", "nobody answers in sandbox %s", id)
	}
	s.acquired = append(s.acquired, a)
	return s.dial, nil
}

// world is a handler with what is behind it.
type world struct {
	*apitest.World
	in *sandboxes
}

func newWorld(t *testing.T, change ...func(*Options)) *world {
	t.Helper()
	w := &world{World: apitest.NewWorld(t)}
	w.in = &sandboxes{Fake: w.Fake, Snapshots: apitest.NewSnapshots(w.Fake)}
	o := Options{Sandboxes: w.in, Templates: apitest.NewTemplates(w.Fake), Snapshots: w.in.Snapshots, Builds: apitest.NewBuilds(), Settings: memstore.Open(memstore.NewData(), memstore.Hooks{}), Auth: apitest.Keyring{}, Log: slog.New(slog.NewTextHandler(w.Log, nil))}
	for _, c := range change {
		c(&o)
	}
	w.HTTP = New(o)
	return w
}

// do sends a request of an API key to the handler.
func (w *world) do(key, method, path, body string, header ...string) *httptest.ResponseRecorder {
	w.T.Helper()
	r := httptest.NewRequest(method, Prefix+path, strings.NewReader(body))
	if body == "" {
		r = httptest.NewRequest(method, Prefix+path, nil)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	w.HTTP.ServeHTTP(rec, r)
	return rec
}

// create makes a sandbox of a name, as the SDK does.
func (w *world) create(key, name string) *httptest.ResponseRecorder {
	w.T.Helper()
	if got := w.do(key, post, "/v1/templates", `{"id":"python","init_wait_seconds":5}`); got.Code != http.StatusOK {
		w.T.Fatalf("template: %d %s", got.Code, got.Body)
	}
	return w.do(key, post, "/v1/fork", `{"template":"python","id":"`+name+`"}`)
}
