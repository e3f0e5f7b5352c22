package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/webhook"
)

var (
	_ Sandboxes       = (*apitest.Fake)(nil)
	_ dialect.Volumes = (*apitest.Fake)(nil)
)

const goodKey = apitest.GoodKey

var epoch = apitest.Epoch

// world is a handler with what is behind it.
type world struct{ *apitest.World }

func newWorld(t *testing.T, change ...func(*Options)) *world {
	t.Helper()
	keys, err := auth.Load(t.Context(), memstore.Open(memstore.NewData(), memstore.Hooks{}))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{apitest.NewWorld(t)}
	hooks := newSender(t, w.Fake)
	templates, snapshots := noTemplates(), apitest.NewSnapshots(w.Fake)
	snapshots.Built = templates
	o := Options{Sandboxes: w.Fake, Volumes: w.Fake, Webhooks: hooks, Templates: apitest.NewTemplates(w.Fake), Snapshots: snapshots, Builds: newBuilder(t, templates, noShop{}), Sign: func(purpose, text string) string { return "signed:" + purpose + ":" + text }, LocalDomain: "localhost:3000", Auth: apitest.Keyring{}, Keys: keys, Log: slog.New(slog.NewTextHandler(w.Log, nil))}
	for _, c := range change {
		c(&o)
	}
	w.Fake.Limit = o.MaxTimeout
	w.HTTP = New(o)
	return w
}

// noShop is a workshop in which nothing has been left, and nothing is done.
type noShop struct{ build.Workshop }

func (noShop) End(context.Context, string) error                             { return nil }
func (noShop) Resolve(context.Context, build.Base) (o build.Origin, e error) { return o, nil }
func (noShop) SnapshotOf(build.Base) (s store.Snapshot, is bool)             { return s, false }
func (noShop) Drop(context.Context, string) error                            { return nil }
func (noShop) Left(context.Context) (sandboxes, snaps []string, e error)     { return nil, nil, nil }

// noTemplates returns a store in which there are none.
func noTemplates() *memstore.Store { return memstore.Open(memstore.NewData(), memstore.Hooks{}) }

// newBuilder returns a builder that lasts as long as the test.
func newBuilder(t *testing.T, templates *memstore.Store, shop interface {
	build.Origins
	build.Workshop
	build.Yard
}) *build.Builder {
	t.Helper()
	b, err := build.Open(t.Context(), build.Options{
		Dir: t.TempDir(), Store: templates, Origins: shop, Workshop: shop, Yard: shop, Room: func() error { return nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Stop)
	return b
}

// newSender returns a sender of webhooks that lasts as long as the test.
func newSender(t *testing.T, fake *apitest.Fake) *webhook.Sender {
	t.Helper()
	s, err := webhook.New(t.Context(), webhook.Options{
		Store: memstore.Open(memstore.NewData(), memstore.Hooks{}), Events: fake, Log: slog.New(slog.DiscardHandler),
		Encode: func(ctx context.Context, e store.Event) (webhook.Message, error) {
			sb, err := fake.Find(ctx, e.Sandbox)
			if err != nil {
				return webhook.Message{}, err
			}
			kind, id, body, err := EncodeEvent(e, sb)
			return webhook.Message{Type: kind, ID: id, Body: body}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func (w *world) do(method, target, body string) answer {
	w.T.Helper()
	return answer{w.Do(method, target, body)}
}

func (w *world) send(r *http.Request) answer {
	w.T.Helper()
	return answer{w.Send(r)}
}

// create makes a sandbox and returns its id.
func (w *world) create(body string) string {
	w.T.Helper()
	a := w.do("POST", "/v2/sandboxes", body)
	a.Is(http.StatusCreated)
	return a.Object()["sandboxID"].(string)
}

// answer is a response as a client reads it.
type answer struct{ apitest.Answer }

// fails checks an error: its status, its numeric code, its error_code and a
// part of its message.
func (a answer) fails(status int, errorCode, message string) {
	a.T.Helper()
	a.Is(status)
	o := a.Object()
	if code, ok := o["code"].(float64); !ok || int(code) != status {
		a.T.Errorf("code is %v, want the number %d", o["code"], status)
	}
	if got, _ := o["error_code"].(string); errorCode != "" && got != errorCode {
		a.T.Errorf("error_code %q, want %q (%v)", got, errorCode, o["message"])
	}
	if got, _ := o["message"].(string); got == "" || !strings.Contains(got, message) {
		a.T.Errorf("message %q, want %q in it", got, message)
	}
}

func (a answer) is(status int) answer { a.T.Helper(); return answer{a.Is(status)} }

func (a answer) list() []map[string]any {
	a.T.Helper()
	var l []map[string]any
	if err := json.Unmarshal([]byte(a.Body), &l); err != nil || l == nil {
		a.T.Fatalf("no JSON array: %v: %s", err, a.Body)
	}
	return l
}

// ids returns the sandbox ids of a list, in its order.
func (a answer) ids() string {
	a.T.Helper()
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
	_, err = f.Resume(t.Context(), sb.ID, supervisor.WakeRequest{Timeout: time.Minute})
	wants(err, errdef.Conflict, "already_running")
	if err := f.Pause(t.Context(), sb.ID, supervisor.PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	wants(f.Pause(t.Context(), sb.ID, supervisor.PauseRequest{}), errdef.Conflict, "already_paused")
	_, err = f.SetTimeout(t.Context(), sb.ID, time.Minute, "")
	wants(err, errdef.WrongState, "not_running")
	if err := f.Kill(t.Context(), sb.ID, ""); err != nil {
		t.Fatal(err)
	}
	_, err = f.Get(t.Context(), sb.ID)
	wants(err, errdef.NotFound, "sandbox_terminated")
}
