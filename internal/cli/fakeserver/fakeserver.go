// Package fakeserver is a drowse server for tests: the real native API over a
// supervisor in memory, and the data plane with plain host processes for
// sandboxes.
//
// What the API answers is not written here: requests go through internal/api/v1
// to apitest's fake, which is driven by the lifecycle's own table. Here is the
// clock, which runs, and what a generation is made of.
//
// A sandbox is a directory and a process "marker" whose command line names it,
// as a runtime's does. Asleep, the marker is gone and the commands are stopped;
// waking continues them. There is no isolation whatever: commands run as the
// test does.
//
// The templates are "base"; "light", whose sandboxes are said to sleep lightly;
// "full", refused as over a limit; and "busy", refused as unavailable.
package fakeserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/api/e2b"
	v1 "github.com/drowse-dev/drowse/internal/api/v1"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/interpreter"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/secret"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
	"github.com/drowse-dev/drowse/internal/supervisor/events"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
	"github.com/drowse-dev/drowse/internal/trace"
	"github.com/drowse-dev/drowse/internal/ui"
	"github.com/drowse-dev/drowse/internal/webhook"
)

// Server is the fake. It is an http.Handler.
type Server struct {
	// Key is the API key of an admin; others can be made.
	Key string
	// PageSize bounds pages further than the API does; zero means not at all.
	PageSize int

	dir     string
	keys    *auth.Keys // but for Key
	sshKeys *auth.SSHKeys
	api     http.Handler
	hooks   *webhook.Sender
	e2b     http.Handler // as far as the command line uses it: webhooks
	ui      http.Handler // as far as the command line uses it: links to sign in
	prefix  string       // of ids, so that those of several servers differ

	mu     sync.Mutex // guards the rest, and the fields of fake
	fake   *apitest.Fake
	boxes  map[string]*box
	timer  *time.Timer
	closed bool
}

// box is what a sandbox consists of besides its record. The server's mu guards
// it.
type box struct {
	id, token  string
	env        map[string]string
	generation int64         // that runs; 0 for none
	cut        chan struct{} // closed when the generation ends
	marker     *exec.Cmd
	agent      *agent
}

// New returns a server that keeps what sandboxes write below dir.
func New(key, dir string) *Server {
	s := &Server{Key: key, dir: dir, prefix: "i" + strings.ToLower(rand.Text())[:10], fake: apitest.NewFake(), boxes: map[string]*box{}}
	st := memstore.Open(memstore.NewData(), memstore.Hooks{})
	var err error
	if s.keys, err = auth.Load(context.Background(), st); err != nil {
		panic("internal error: " + err.Error())
	}
	if err := (apitest.Keyring{}).AddTo(context.Background(), st); err != nil { // s.keys does not list these
		panic("internal error: " + err.Error())
	}
	if s.sshKeys, err = auth.LoadSSHKeys(context.Background(), st, s.keys); err != nil {
		panic("internal error: " + err.Error())
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic("internal error: " + err.Error())
	}
	vault, err := secret.Open(context.Background(), st, dir)
	if err != nil {
		panic("internal error: " + err.Error())
	}
	log, err := audit.Open(filepath.Join(dir, "audit"), slog.New(slog.DiscardHandler))
	if err != nil {
		panic("internal error: " + err.Error())
	}
	s.api = log.Handler(v1.New(v1.Options{Sandboxes: backend{s}, Volumes: s.fake, Templates: apitest.NewTemplates(s.fake), Snapshots: snapshots{s, apitest.NewSnapshots(s.fake)}, Builds: apitest.NewBuilds(), Services: apitest.NewServices(backend{s}), Publisher: apitest.Publisher{}, Traces: backend{s}, Diaries: diary{s}, Auth: s, Keys: s.keys, SSHKeys: s.sshKeys, Secrets: vault, Audit: log, Servers: apitest.Servers{{ID: "srv_one", Name: "machine", Address: "192.0.2.1:3443", Left: time.Second, Room: &store.Room{Running: 3, MaxRunning: 20, MemoryMiB: 2 << 10, DiskMiB: 40 << 10, Drain: &store.Drain{}}}, {ID: "srv_two", Name: "other", Room: &store.Room{}}, {ID: "srv_three", Name: "third", Left: time.Second, Leaving: true, Room: &store.Room{}}, {ID: "srv_four", Name: "fourth", Left: time.Second, Room: &store.Room{Drain: &store.Drain{Left: 2, Stay: 2, Cause: "sandbox i0abc: it has volumes"}}}}, Mover: backend{s}, Doctor: healthy, Isolation: "none"}))
	if s.hooks, err = hooksOf(context.Background(), s, st); err != nil {
		panic("internal error: " + err.Error())
	}
	s.e2b = e2b.New(e2b.Options{Sandboxes: s.fake, Webhooks: s.hooks, Auth: s})
	s.ui = ui.New(context.Background(), ui.Options{Keys: holders{s}})
	return s
}

// healthy finds that the host has all it needs, and one thing amiss that it can do without.
func healthy(context.Context) []v1.Finding {
	return []v1.Finding{
		{Name: "runtime none", OK: true, Required: true, Detail: "usable: a trial sandbox has started"},
		{Name: "disk", Detail: "1 GiB free for /var/lib/drowse", Remedy: "make room"},
	}
}

// Close ends all sandboxes.
func (s *Server) Close() {
	s.hooks.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	for _, b := range s.boxes {
		b.end(syscall.SIGKILL)
		b.agent.code.Close()
	}
}

// Check implements dialect.Authenticator.
func (s *Server) Check(text string) (store.Key, error) {
	if text == s.Key {
		return store.Key{ID: apitest.KeyID, Role: store.RoleAdmin}, nil
	}
	if made, err := s.keys.Check(text); err == nil {
		return made, nil
	}
	return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_unknown", "unknown API key")
}

// Current implements e2b.Authenticator.
func (s *Server) Current(id string) (store.Key, error) {
	if id == apitest.KeyID {
		return s.Check(s.Key)
	}
	return s.keys.Current(id)
}

// Take implements dialect.Authenticator: every call is let through.
func (s *Server) Take(string) error { return nil }

// holders are the keys as the dashboard knows them.
type holders struct{ *Server }

// Check implements ui.Keys.
func (h holders) Check(text string) (ui.Holder, error) {
	k, err := h.Server.Check(text)
	return ui.Holder{ID: k.ID, Name: k.Name}, err
}

// Lend implements ui.Keys.
func (h holders) Lend(ctx context.Context, id string) string { return h.keys.Lend(ctx, id) }

// Bind implements dialect.Authenticator.
func (s *Server) Bind(ctx context.Context, id string) (context.Context, context.CancelFunc) {
	if id != apitest.KeyID {
		return s.keys.Bind(ctx, id)
	}
	return context.WithCancel(ctx)
}

// ServeHTTP routes as the edge does: the sandbox headers count under localhost
// and an address alone, and a path under any name.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host := (&url.URL{Host: r.Host}).Hostname()
	named := host != "localhost" && net.ParseIP(host) == nil
	inside := strings.SplitN(strings.TrimPrefix(r.URL.EscapedPath(), "/s/"), "/", 3)
	switch {
	case r.Header.Get("E2b-Sandbox-Id") != "" && !named:
		s.data(w, r, r.Header.Get("E2b-Sandbox-Id"), r.Header.Get("E2b-Sandbox-Port"))
	case strings.HasPrefix(r.URL.Path, "/s/") && len(inside) == 3:
		http.StripPrefix("/s/"+inside[0]+"/"+inside[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.data(w, r, inside[0], inside[1])
		})).ServeHTTP(w, r)
	case v1.Owns(r):
		s.bound(r)
		s.api.ServeHTTP(w, r)
	case strings.HasPrefix(r.URL.Path, "/events/webhooks"):
		s.e2b.ServeHTTP(w, r)
	case ui.Owns(r):
		s.ui.ServeHTTP(w, r)
	case r.URL.Path == "/health":
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == "/readyz":
		fmt.Fprintln(w, "ok")
	default:
		http.NotFound(w, r)
	}
}

// bound makes pages small.
func (s *Server) bound(r *http.Request) {
	q := r.URL.Query()
	pages := strings.HasSuffix(r.URL.Path, "/sandboxes") || strings.HasSuffix(r.URL.Path, "/events")
	if s.PageSize == 0 || r.Method != http.MethodGet || !pages || q.Has("limit") {
		return
	}
	q.Set("limit", strconv.Itoa(s.PageSize))
	r.URL.RawQuery = q.Encode()
}

// enter begins a call: time is what it is, and so are the commands that run.
// The caller defers leave.
func (s *Server) enter() *apitest.Fake {
	s.mu.Lock()
	s.fake.Now = time.Now().UTC().Truncate(time.Microsecond)
	for id, b := range s.boxes {
		s.fake.Held[s.inner(id)] = b.agent.holds()
	}
	return s.fake
}

// leave ends a call: what the records say is made so.
func (s *Server) leave() {
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for inner, sb := range s.fake.Sandboxes {
		s.settle(s.outer(inner), sb)
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if next := apitest.Next(s.fake); !next.IsZero() {
		s.timer = time.AfterFunc(time.Until(next), s.look)
	}
}

// look lets happen what is due.
func (s *Server) look() {
	_, _ = s.enter().All(context.Background())
	s.leave()
}

// settle starts or ends what a sandbox runs as.
func (s *Server) settle(id string, sb store.Sandbox) {
	b := s.boxes[id]
	rec := sb.Record
	if b == nil {
		b = s.newBox(id, sb)
		s.boxes[id] = b
	}
	switch {
	case rec.State == lifecycle.Running && b.generation != rec.Generation:
		b.end(syscall.SIGSTOP) // it was quicker than we look
		b.start(rec.Generation)
	case rec.State == lifecycle.Paused && rec.Checkpoint.Mode == lifecycle.Memory:
		b.end(syscall.SIGSTOP)
	case rec.State != lifecycle.Running:
		b.end(syscall.SIGKILL)
	}
}

func (s *Server) newBox(id string, sb store.Sandbox) *box {
	b := &box{id: id, token: s.fake.EnvdToken(id), env: sb.Config.Env}
	home := filepath.Join(s.dir, id, "home", "user")
	if err := os.MkdirAll(home, 0o700); err != nil {
		panic(err)
	}
	b.agent = newAgent(b, filepath.Join(s.dir, id), home, s.look)
	return b
}

// start begins a generation.
func (b *box) start(generation int64) {
	b.generation, b.cut = generation, make(chan struct{})
	b.marker = exec.Command("/bin/sh", "-c", "while :; do sleep 1; done", "marker-"+b.id)
	b.marker.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	_ = b.marker.Start()
	b.agent.signalAll(syscall.SIGCONT)
}

// end ends the generation, if there is one, and does to its commands what sig
// says.
func (b *box) end(sig syscall.Signal) {
	b.agent.signalAll(sig)
	if b.generation == 0 {
		return
	}
	b.generation = 0
	close(b.cut)
	_ = syscall.Kill(-b.marker.Process.Pid, syscall.SIGKILL)
	_ = b.marker.Wait()
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// data is the data plane: it wakes, and passes on.
func (s *Server) data(w http.ResponseWriter, r *http.Request, id, portText string) {
	port, err := strconv.Atoi(portText)
	if err != nil {
		http.Error(w, "Invalid sandbox port", http.StatusBadRequest)
		return
	}
	b, cut := s.acquire(id, port, r.URL.EscapedPath())
	if b == nil {
		answer(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "message": "The sandbox was not found", "code": 502})
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(withCut(ctx, cut))
	switch port {
	case agentPort:
		b.agent.ServeHTTP(w, r)
	case interpreter.Port:
		b.agent.runCode(w, r)
	case 8000:
		_, _ = fmt.Fprintf(w, "hello from %s%s\n", id, r.URL.Path)
	default:
		answer(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "port": port, "code": 502,
			"message": "The sandbox is running but port is not open"})
	}
}

// acquire returns a sandbox that runs, woken if need be, and what is closed
// when it no longer does.
func (s *Server) acquire(id string, port int, path string) (*box, <-chan struct{}) {
	err := apitest.Reach(s.enter(), s.inner(id), port, path, "traffic")
	s.leave()
	if err != nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.boxes[id]
	if b == nil || b.generation == 0 {
		return nil, nil
	}
	return b, b.cut
}

// inner returns the id that apitest's fake knows a sandbox by, and outer the
// one that clients do.
func (s *Server) inner(id string) string {
	if rest, ours := strings.CutPrefix(id, s.prefix); ours {
		return "i" + rest
	}
	return id
}

func (s *Server) outer(id string) string {
	if id == "" {
		return ""
	}
	return s.prefix + id[1:]
}

// shown is a sandbox as clients know it.
func (s *Server) shown(sb store.Sandbox) store.Sandbox {
	sb.ID = s.outer(sb.ID)
	sb.Config.Lineage = slices.Clone(sb.Config.Lineage)
	for i := range sb.Config.Lineage {
		sb.Config.Lineage[i].Sandbox = s.outer(sb.Config.Lineage[i].Sandbox)
	}
	return sb
}

// backend is what the API is served from.
type backend struct{ s *Server }

var _ v1.Sandboxes = backend{}

func (b backend) shown(sb store.Sandbox, err error) (store.Sandbox, error) { return b.s.shown(sb), err }

func (b backend) events(list []store.Event, err error) ([]store.Event, error) {
	for i := range list {
		list[i].Sandbox = b.s.outer(list[i].Sandbox)
	}
	return list, err
}

// Create implements v1.Sandboxes.
func (b backend) Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error) {
	switch req.Template {
	case "full":
		return store.Sandbox{}, errdef.New(errdef.Exhausted, "too_many_sandboxes", "2 sandboxes run, and this server allows no more")
	case "busy":
		return store.Sandbox{}, errdef.New(errdef.Unavailable, "sandbox_create_failed", "the sandbox did not start")
	}
	light := req.Template == "light"
	if light {
		req.Template = "base"
	}
	defer b.s.leave()
	f := b.s.enter()
	sb, err := f.Create(ctx, req)
	if light {
		f.Light[sb.ID] = true
	}
	return b.shown(sb, err)
}

// KeyCosts implements v1.Sandboxes.
func (b backend) KeyCosts() map[string]cost.Cost {
	defer b.s.leave()
	return b.s.enter().KeyCosts()
}

// KeyUse implements v1.Sandboxes.
func (b backend) KeyUse(key string) store.Use {
	defer b.s.leave()
	return b.s.enter().KeyUse(key)
}

// Move implements v1.Mover: srv_two is all that can have a sandbox.
func (b backend) Move(ctx context.Context, id, to, _ string) (store.Sandbox, error) {
	sb, err := b.Find(ctx, id)
	if err == nil && to != "" && to != "srv_two" {
		err = errdef.New(errdef.NotFound, "server_not_found", "there is no server %q", to).WithRemedy("drowse servers lists those of the database")
	}
	sb.Owner = "srv_two"
	return sb, err
}

// Find implements v1.Sandboxes.
func (b backend) Find(ctx context.Context, id string) (store.Sandbox, error) {
	defer b.s.leave()
	return b.shown(b.s.enter().Find(ctx, b.s.inner(id)))
}

// Get implements services.Sandboxes.
func (b backend) Get(ctx context.Context, id string) (store.Sandbox, error) {
	defer b.s.leave()
	return b.shown(b.s.enter().Get(ctx, b.s.inner(id)))
}

// All returns every sandbox, in any order.
func (b backend) All(ctx context.Context) ([]store.Sandbox, error) {
	defer b.s.leave()
	all, err := b.s.enter().All(ctx)
	for i := range all {
		all[i] = b.s.shown(all[i])
	}
	return all, err
}

// Page implements v1.Sandboxes.
func (b backend) Page(ctx context.Context, q store.Selection) (store.Page, error) {
	all, err := b.All(ctx)
	return q.From(all), err
}

// Pause implements v1.Sandboxes.
func (b backend) Pause(ctx context.Context, id string, q supervisor.PauseRequest) error {
	defer b.s.leave()
	return b.s.enter().Pause(ctx, b.s.inner(id), q)
}

// Connect implements v1.Sandboxes.
func (b backend) Connect(ctx context.Context, id string, q supervisor.WakeRequest) (supervisor.Connected, error) {
	defer b.s.leave()
	c, err := b.s.enter().Connect(ctx, b.s.inner(id), q)
	c.Sandbox = b.s.shown(c.Sandbox)
	return c, err
}

// SetTimeout implements v1.Sandboxes.
func (b backend) SetTimeout(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error) {
	defer b.s.leave()
	return b.shown(b.s.enter().SetTimeout(ctx, b.s.inner(id), d, actor))
}

// Patch implements v1.Sandboxes.
func (b backend) Patch(ctx context.Context, id string, p supervisor.Patch, actor string) (store.Sandbox, error) {
	defer b.s.leave()
	return b.shown(b.s.enter().Patch(ctx, b.s.inner(id), p, actor))
}

// Hold implements v1.Sandboxes.
func (b backend) Hold(ctx context.Context, id string, l lifecycle.Lease, actor string) (lifecycle.Lease, error) {
	defer b.s.leave()
	return b.s.enter().Hold(ctx, b.s.inner(id), l, actor)
}

// ReleaseHold implements v1.Sandboxes.
func (b backend) ReleaseHold(ctx context.Context, id, hold, actor string) error {
	defer b.s.leave()
	return b.s.enter().ReleaseHold(ctx, b.s.inner(id), hold, actor)
}

// CreatePreview implements v1.Sandboxes.
func (b backend) CreatePreview(ctx context.Context, id string, req preview.Request) (store.Preview, string, error) {
	defer b.s.leave()
	return b.s.enter().CreatePreview(ctx, b.s.inner(id), req)
}

// Previews implements v1.Sandboxes.
func (b backend) Previews(ctx context.Context, id string) ([]store.Preview, error) {
	defer b.s.leave()
	return b.s.enter().Previews(ctx, b.s.inner(id))
}

// RevokePreview implements v1.Sandboxes.
func (b backend) RevokePreview(ctx context.Context, id, link, actor string) error {
	defer b.s.leave()
	return b.s.enter().RevokePreview(ctx, b.s.inner(id), link, actor)
}

// Explain implements v1.Sandboxes.
func (b backend) Explain(ctx context.Context, id string) (supervisor.Explanation, error) {
	defer b.s.leave()
	x, err := b.s.enter().Explain(ctx, b.s.inner(id))
	x.Sandbox = b.s.shown(x.Sandbox)
	x.Transitions, _ = b.events(x.Transitions, nil)
	return x, err
}

// Traces implements v1.Traces.
func (b backend) Traces(ctx context.Context, id string) ([]trace.Operation, error) {
	defer b.s.leave()
	return apitest.NewTraces(b.s.enter()).Traces(ctx, b.s.inner(id))
}

// Outlooks implements v1.Sandboxes.
func (b backend) Outlooks(ctx context.Context, ids []string) map[string]supervisor.Explanation {
	defer b.s.leave()
	f := b.s.enter()
	outlooks := map[string]supervisor.Explanation{}
	for _, id := range ids {
		if x, ok := f.Outlooks(ctx, []string{b.s.inner(id)})[b.s.inner(id)]; ok {
			x.Sandbox = b.s.shown(x.Sandbox)
			outlooks[id] = x
		}
	}
	return outlooks
}

// Events implements v1.Sandboxes.
func (b backend) Events(ctx context.Context, sandbox string, after int64, limit int) ([]store.Event, error) {
	defer b.s.leave()
	return b.events(b.s.enter().Events(ctx, b.s.inner(sandbox), after, limit))
}

// EventsAfter implements v1.Sandboxes.
func (b backend) EventsAfter(ctx context.Context, of events.Scope, after int64, limit int) (events.Page, error) {
	defer b.s.leave()
	of.Sandbox = b.s.inner(of.Sandbox)
	page, err := b.s.enter().EventsAfter(ctx, of, after, limit)
	page.Events, err = b.events(page.Events, err)
	return page, err
}

// EventsBefore implements v1.Sandboxes.
func (b backend) EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]store.Event, error) {
	defer b.s.leave()
	return b.events(b.s.enter().EventsBefore(ctx, b.s.inner(sandbox), before, limit))
}

// LastEvent implements v1.Sandboxes.
func (b backend) LastEvent(ctx context.Context) (int64, error) {
	defer b.s.leave()
	return b.s.enter().LastEvent(ctx)
}

// Changed implements v1.Sandboxes.
func (b backend) Changed() <-chan struct{} { return b.s.fake.Changed() }

// Kill implements v1.Sandboxes.
func (b backend) Kill(ctx context.Context, id, actor string) error {
	defer b.s.leave()
	return b.s.enter().Kill(ctx, b.s.inner(id), actor)
}

// Export implements v1.Sandboxes.
func (b backend) Export(ctx context.Context, id string) (*supervisor.Export, error) {
	defer b.s.leave()
	return b.s.enter().Export(ctx, b.s.inner(id))
}

// Import implements v1.Sandboxes.
func (b backend) Import(ctx context.Context, r io.Reader, req supervisor.ImportRequest) (store.Sandbox, error) {
	defer b.s.leave()
	return b.shown(b.s.enter().Import(ctx, r, req))
}

// EnvdToken implements v1.Sandboxes.
func (b backend) EnvdToken(id string) string { return b.s.fake.EnvdToken(id) }

// TrafficToken implements v1.Sandboxes.
func (b backend) TrafficToken(id string) string { return b.s.fake.TrafficToken(id) }
