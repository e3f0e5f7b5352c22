package v1

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/secret"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

var (
	_ Sandboxes       = (*apitest.Fake)(nil)
	_ dialect.Volumes = (*apitest.Fake)(nil)
)

const goodKey = apitest.GoodKey

var epoch = apitest.Epoch

// world is a handler with what is behind it.
type world struct {
	*apitest.World
	vault *secret.Vault
}

func newWorld(t *testing.T, change ...func(*Options)) *world {
	t.Helper()
	st := memstore.Open(memstore.NewData(), memstore.Hooks{})
	keys, err := auth.Load(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	if err := (apitest.Keyring{}).AddTo(t.Context(), st); err != nil { // keys does not list these
		t.Fatal(err)
	}
	sshKeys, err := auth.LoadSSHKeys(t.Context(), st, keys)
	if err != nil {
		t.Fatal(err)
	}
	vault, err := secret.Open(t.Context(), st, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(filepath.Join(t.TempDir(), "audit"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	w := &world{apitest.NewWorld(t), vault}
	builds, snapshots := apitest.NewBuilds(), apitest.NewSnapshots(w.Fake)
	snapshots.Built = builds
	o := Options{Sandboxes: w.Fake, Volumes: w.Fake, Templates: apitest.NewTemplates(w.Fake), Snapshots: snapshots, Builds: builds, Services: apitest.NewServices(w.Fake), Publisher: apitest.Publisher{}, Traces: apitest.NewTraces(w.Fake), Diaries: w.Fake, Auth: apitest.Keyring{}, Keys: keys, SSHKeys: sshKeys, Secrets: vault, Audit: log, Servers: apitest.Servers{}, Doctor: func(context.Context) []Finding { return nil }, Isolation: "gvisor", Log: slog.New(slog.NewTextHandler(w.Log, nil))}
	for _, c := range change {
		c(&o)
	}
	w.HTTP = log.Handler(New(o))
	return w
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
	return w.do("POST", base, body).Is(http.StatusCreated).Object()["id"].(string)
}

func (w *world) sandbox(id string) map[string]any {
	w.T.Helper()
	return w.do("GET", base+"/"+id, "").Is(http.StatusOK).Object()
}

// answer is a response as a client reads it.
type answer struct{ apitest.Answer }

// fails checks an error and returns its inner object.
func (a answer) fails(status int, code, message string) map[string]any {
	a.T.Helper()
	a.Is(status)
	o := a.Object()
	e, ok := o["error"].(map[string]any)
	if !ok || len(o) != 1 {
		a.T.Fatalf("no error: %s", a.Body)
	}
	for _, field := range []string{"code", "message", "cause", "remediation", "context"} {
		if _, has := e[field]; !has {
			a.T.Errorf("the error has no %s: %s", field, a.Body)
		}
		if text, isText := e[field].(string); field != "context" && (!isText || text == "") {
			a.T.Errorf("the error's %s is %v, want a text: %s", field, e[field], a.Body)
		}
	}
	if e["code"] != code {
		a.T.Errorf("code %v, want %s (%v)", e["code"], code, e["message"])
	}
	if text, _ := e["message"].(string); text == "" || !strings.Contains(text, message) {
		a.T.Errorf("message %q, want %q in it", e["message"], message)
	}
	if text, _ := e["remediation"].(string); text == "" && status != http.StatusInternalServerError {
		a.T.Errorf("no remediation: %s", a.Body)
	}
	return e
}

func contextOf(e map[string]any) map[string]any { return e["context"].(map[string]any) }

func list(v any) []map[string]any {
	var l []map[string]any
	for _, item := range v.([]any) {
		l = append(l, item.(map[string]any))
	}
	return l
}
