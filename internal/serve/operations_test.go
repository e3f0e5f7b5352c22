package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/cluster"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
	"github.com/drowse-dev/drowse/internal/secret"
	"github.com/drowse-dev/drowse/internal/serve/settings"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/publish"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/internal/volume"
)

const (
	testKey  = "e2b_0123456789abcdef0123456789abcdef01234567"
	userPort = 8000
)

// world is a whole server but for the runtime, which is the fake one.
type world struct {
	t       *testing.T
	sup     *supervisor.Supervisor
	parts   parts
	url     string
	log     apitest.Log  // of the server, as JSON
	capture func() error // what a capture waits for
}

// program answers everything an agent and a user's server are asked.
type program struct{ w *world }

func (p program) Serves(int) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == agentapi.PathActivity {
			_ = json.NewEncoder(rw).Encode(agentapi.Activity{Now: time.Now()})
			return
		}
		if r.URL.Path == processconnect.ProcessStartProcedure && strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+") {
			connect.NewServerStreamHandler(r.URL.Path, runAndEnd).ServeHTTP(rw, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if kind := r.Header.Get("Content-Type"); kind == "application/proto" {
			rw.Header().Set("Content-Type", kind) // an empty message
			return
		}
		rw.WriteHeader(http.StatusNoContent)
	})
}

// runAndEnd is a process that ends at once.
func runAndEnd(_ context.Context, _ *connect.Request[process.StartRequest], to *connect.ServerStream[process.StartResponse]) error {
	began := &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 1}}}
	ended := &process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{Exited: true}}}
	return errors.Join(to.Send(&process.StartResponse{Event: began}), to.Send(&process.StartResponse{Event: ended}))
}

func (p program) Image() ([]byte, error) {
	if p.w.capture != nil {
		return nil, p.w.capture()
	}
	return []byte("memory"), nil
}

func newWorld(t *testing.T, with ...func(*supervisor.Options)) *world {
	w := &world{t: t}
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	base := filepath.Join(dir, "templates", "base")
	must(os.MkdirAll(base, 0o700))
	must(errors.Join(os.MkdirAll(filepath.Join(dir, "rootfs"), 0o700), os.MkdirAll(filepath.Join(dir, "volumes"), 0o700)))
	must(os.WriteFile(filepath.Join(base, "template.json"), []byte(`{"id":"base"}`), 0o600))
	st, err := store.Open(t.Context(), filepath.Join(dir, "db"))
	must(err)
	layers, err := layer.Open(dir)
	must(err)
	templates, err := template.Open(filepath.Join(dir, "templates"))
	must(err)
	keys, err := auth.Load(t.Context(), st)
	must(err)
	_, _, err = keys.EnsureFirst(t.Context(), testKey)
	must(err)
	machine := fake.NewMachine(func(runtime.Spec, []byte) (fake.Program, error) { return program{w}, nil })
	log, err := NewLogger(&w.log, "json", "info")
	must(err)
	// "base" must not be taken for an old build of itself: it is in use.
	options := supervisor.Options{
		Store: st, Layers: layers, Templates: templates, Volumes: volume.At(filepath.Join(dir, "volumes"), os.Getuid()), Driver: machine.Driver(), RunDir: filepath.Join(dir, "rootfs"),
		Log: log, WakeTimeout: 10 * time.Second, WakeQueue: 100, KeyLimits: keys.Limits,
	}
	for _, f := range with {
		f(&options)
	}
	w.sup, err = supervisor.New(t.Context(), options)
	must(err)
	must(os.MkdirAll(base, 0o700))
	must(os.WriteFile(filepath.Join(base, "template.json"), []byte(`{"id":"base"}`), 0o600))
	calls, err := audit.Open(filepath.Join(t.TempDir(), "audit"), log)
	must(err)
	t.Cleanup(func() { _ = calls.Close() })
	var closers cleanups
	hooks, err := sendWebhooks(t.Context(), Options{Log: log}, st, nil, w.sup, &closers)
	must(err)
	o := Options{Server: settings.Server{StateDir: t.TempDir(), DefaultTimeout: time.Minute}, Log: log}
	must(os.MkdirAll(recipesIn(o.StateDir), 0o700))
	builder, err := openBuilds(t.Context(), o, st, w.sup, nil, &closers)
	must(err)
	sshKeys, err := auth.LoadSSHKeys(t.Context(), st, keys)
	must(err)
	vault, err := secret.Open(t.Context(), st, o.StateDir)
	must(err)
	publisher := publish.New(publish.Options{Layers: layers, Templates: templates, Snapshots: w.sup, Log: log})
	w.parts = parts{w.sup, cluster.NewView(w.sup, st, nil), nil, publisher, hooks, builder, keys, sshKeys, vault, calls, held.New(), st, nil}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	w.url = "http://" + ln.Addr().String()
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		served <- serveUntil(ctx, log, ln, newServer(ctx, o, w.parts, shown{ends: time.Now}), w.sup, nil, func() {}, func() {})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), testmode.Patience())
		defer cancel()
		if err := errors.Join(closers.run(), w.sup.Stop(ctx), st.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// create makes a sandbox whose idle clock can be watched.
func (w *world) create(autoResume bool) string {
	w.t.Helper()
	sb, err := w.sup.Create(w.t.Context(), supervisor.CreateRequest{Template: "base", Settings: lifecycle.Settings{
		Timeout: time.Hour, IdleTimeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: autoResume,
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	return sb.ID
}

// idleAt returns when the idle clock would run out.
func (w *world) idleAt(id string) time.Time {
	w.t.Helper()
	for end := time.Now().Add(testmode.Patience()); time.Now().Before(end); time.Sleep(time.Millisecond) {
		e, err := w.sup.Explain(w.t.Context(), id)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, d := range e.Deadlines {
			if d.Clock == lifecycle.ClockIdle {
				return d.At
			}
		} // a request whose answer we have may still count as work
	}
	w.t.Fatal("the idle clock does not run")
	return time.Time{}
}

func (w *world) state(id string) lifecycle.Record {
	w.t.Helper()
	sb, err := w.sup.Find(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return sb.Record
}

// operation is one that the public can call, and what it does to a sandbox.
type operation struct {
	name   string
	method string
	path   string // {id} is replaced; a path that begins with ":" goes to that port
	body   string // {id} is replaced

	activity bool // it runs, reads or changes something inside
	wakes    bool // by itself, as traffic does
	// The answers on sandboxes in each situation. During an explicit pause an
	// operation waits, so that its answer is the one on a paused sandbox.
	running, paused, dead, unknown int
}

// operations is every public operation on one sandbox, of both dialects and
// the data plane.
var operations = []operation{
	{"e2b get", "GET", "/sandboxes/{id}", "", false, false, 200, 200, 404, 404},
	{"e2b pause", "POST", "/sandboxes/{id}/pause", "{}", false, false, 204, 409, 404, 404},
	{"e2b connect v1", "POST", "/sandboxes/{id}/connect", `{"timeout":60}`, false, false, 200, 201, 404, 404},
	{"e2b connect v2", "POST", "/v2/sandboxes/{id}/connect", "", false, false, 200, 201, 404, 404},
	{"e2b resume", "POST", "/sandboxes/{id}/resume", "{}", false, false, 409, 201, 404, 404},
	{"e2b timeout", "POST", "/sandboxes/{id}/timeout", `{"timeout":60}`, false, false, 204, 404, 404, 404},
	{"e2b refreshes", "POST", "/sandboxes/{id}/refreshes", `{"duration":60}`, false, false, 204, 404, 404, 404},
	{"e2b kill", "DELETE", "/sandboxes/{id}", "", false, false, 204, 204, 404, 404},
	{"v1 get", "GET", "/v1/sandboxes/{id}", "", false, false, 200, 200, 200, 404},
	{"v1 patch", "PATCH", "/v1/sandboxes/{id}", `{"metadata":{"a":"b"}}`, false, false, 200, 200, 404, 404},
	{"v1 lifecycle", "GET", "/v1/sandboxes/{id}/lifecycle", "", false, false, 200, 200, 200, 404},
	{"v1 holds", "GET", "/v1/sandboxes/{id}/holds", "", false, false, 200, 200, 200, 404},
	{"v1 preview", "POST", "/v1/sandboxes/{id}/previews", `{"port":8000}`, false, false, 201, 201, 404, 404},
	{"v1 previews", "GET", "/v1/sandboxes/{id}/previews", "", false, false, 200, 200, 200, 404},
	{"v1 revoke preview", "DELETE", "/v1/sandboxes/{id}/previews/pv0", "", false, false, 404, 404, 404, 404},
	{"v1 events", "GET", "/v1/sandboxes/{id}/events", "", false, false, 200, 200, 200, 404},
	{"v1 pause", "POST", "/v1/sandboxes/{id}/pause", "", false, false, 200, 409, 404, 404},
	{"v1 resume", "POST", "/v1/sandboxes/{id}/resume", "", false, false, 200, 200, 404, 404},
	{"v1 timeout", "POST", "/v1/sandboxes/{id}/timeout", `{"timeoutSeconds":60}`, false, false, 200, 409, 404, 404},
	{"v1 set_timeout", "POST", "/v1/set_timeout", `{"sandbox":"{id}","timeout_seconds":60}`, false, false, 200, 409, 404, 404},
	{"v1 flat pause", "POST", "/v1/pause", `{"sandbox":"{id}"}`, false, false, 200, 409, 404, 404},
	{"v1 flat resume", "POST", "/v1/resume", `{"sandbox":"{id}"}`, false, false, 200, 200, 404, 404},
	{"v1 kill", "DELETE", "/v1/sandboxes/{id}", "", false, false, 204, 204, 404, 404},
	{"probe", "GET", ":49983/health", "", false, false, 204, 502, 502, 502},
	{"file read", "GET", ":49983/files?path=x", "", true, true, 204, 204, 502, 502},
	{"file write", "POST", ":49983/files?path=x", "x", true, true, 204, 204, 502, 502},
	{"file stat", "POST", ":49983/filesystem.Filesystem/Stat", "{}", true, true, 204, 204, 502, 502},
	{"command", "POST", ":49983/process.Process/Start", "{}", true, true, 204, 204, 502, 502},
	{"user port", "GET", ":8000/", "", true, true, 204, 204, 502, 502},
	{"user port, post", "POST", ":8000/x", "x", true, true, 204, 204, 502, 502},
}

func (w *world) do(op operation, id string) int {
	path := strings.ReplaceAll(op.path, "{id}", id)
	port := ""
	if p, ok := strings.CutPrefix(path, ":"); ok {
		i := strings.IndexByte(p, '/')
		port, path = p[:i], p[i:]
	}
	req, err := http.NewRequestWithContext(w.t.Context(), op.method, w.url+path, strings.NewReader(strings.ReplaceAll(op.body, "{id}", id)))
	if err != nil {
		w.t.Error(err)
		return 0
	}
	req.Header.Set("X-API-Key", testKey)
	if port != "" {
		req.Header.Set("E2b-Sandbox-Id", id)
		req.Header.Set("E2b-Sandbox-Port", port)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func TestEveryOperation(t *testing.T) {
	w := newWorld(t)
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			w.t = t
			w.onRunning(op)
			w.onPaused(op)
			w.onDead(op)
			if got := w.do(op, "inosuchsandbox"); got != op.unknown {
				t.Errorf("unknown: %d, want %d", got, op.unknown)
			}
		})
	}
}

func (w *world) onRunning(op operation) {
	id := w.create(false)
	before := w.idleAt(id)
	time.Sleep(2 * time.Millisecond) // so that activity can be told by the clock
	if got := w.do(op, id); got != op.running {
		w.t.Errorf("running: %d, want %d", got, op.running)
	}
	if r := w.state(id); r.Situation() != "running" {
		return // it paused or killed
	}
	if moved := w.idleAt(id).After(before); moved != op.activity {
		w.t.Errorf("the idle clock moved: %v, want %v", moved, op.activity)
	}
}

func (w *world) onPaused(op operation) {
	for _, autoResume := range []bool{false, true} {
		id := w.create(autoResume)
		if err := w.sup.Pause(w.t.Context(), id, supervisor.PauseRequest{}); err != nil {
			w.t.Fatal(err)
		}
		want := op.paused
		if op.wakes && !autoResume {
			want = http.StatusBadGateway
		}
		if got := w.do(op, id); got != want {
			w.t.Errorf("paused, autoResume %v: %d, want %d", autoResume, got, want)
		}
		resumes := op.wakes && autoResume || strings.Contains(op.name, "resume") || strings.Contains(op.name, "connect")
		if awake := w.state(id).State == lifecycle.Running; awake != resumes {
			w.t.Errorf("paused, autoResume %v: awake %v, want %v", autoResume, awake, resumes)
		}
	}
}

func (w *world) onDead(op operation) {
	id := w.create(true)
	if err := w.sup.Kill(w.t.Context(), id, ""); err != nil {
		w.t.Fatal(err)
	}
	if got := w.do(op, id); got != op.dead {
		w.t.Errorf("terminated: %d, want %d", got, op.dead)
	}
}

// TestEveryOperationDuringAPause calls each while an explicit pause is being
// captured. None fails for that, and none is let through to the frozen
// sandbox: what needs it answers as on a paused one, after the commit.
func TestEveryOperationDuringAPause(t *testing.T) {
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			w := newWorld(t)
			reached, proceed := make(chan struct{}), make(chan struct{})
			id := w.create(true)
			w.capture = func() error { close(reached); <-proceed; return nil }
			paused := make(chan error, 1)
			go func() { paused <- w.sup.Pause(context.WithoutCancel(t.Context()), id, supervisor.PauseRequest{}) }()
			<-reached
			w.capture = nil
			answered := make(chan int, 1)
			go func() { answered <- w.do(op, id) }()
			select {
			case <-answered: // a read, or a kill
				if op.activity {
					t.Error("answered while the sandbox is frozen")
				}
				close(proceed)
				<-paused
				return
			case <-time.After(30 * time.Millisecond):
			}
			close(proceed)
			want := op.paused
			if strings.HasSuffix(op.name, "pause") {
				want = op.running // it joins
			}
			if got := <-answered; got != want {
				t.Errorf("answer %d, want %d", got, want)
			}
			if err := <-paused; err != nil && !strings.HasSuffix(op.name, "kill") {
				t.Errorf("the pause: %v", err)
			}
		})
	}
}
