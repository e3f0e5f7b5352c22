package supervisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/backup"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
	"github.com/drowse-dev/drowse/internal/secret"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
	"github.com/drowse-dev/drowse/internal/supervisor/outside"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/internal/volume"
)

const counterPort = 8000

// sleepy sandboxes pause at the end of their timeout and wake by traffic.
var sleepy = lifecycle.Settings{OnTimeout: lifecycle.Pause, AutoResume: true}

// guest is an agent and a counter in memory.
type guest struct {
	Count      atomic.Int64
	Generation int64
	host       atomic.Value // the secret by which it knows its host; part of its memory
	copied     atomic.Bool  // it was told that its memory is a copy
	checkpoint func() error // called while its image is taken
	activity   func() (agentapi.Activity, error)
	journal    func(after string) (agentapi.Log, bool) // false for an agent that has none
	open       func() []runtime.OpenFile
	deaf       atomic.Bool // it fails to write back, and is not well
}

// OpenFiles are those that the guest's programs have open.
func (g *guest) OpenFiles() []runtime.OpenFile {
	if g.open == nil {
		return nil
	}
	return g.open()
}

func (g *guest) Serves(port int) http.Handler {
	switch port {
	case agentapi.Port:
		return http.HandlerFunc(g.agent)
	case counterPort:
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, g.Count.Add(1)) })
	}
	return nil
}

func (g *guest) agent(w http.ResponseWriter, r *http.Request) {
	secret := r.Header.Get(agentapi.HeaderInit)
	if g.host.CompareAndSwap(nil, secret); secret == "" || g.host.Load() != secret {
		http.Error(w, "not the host", http.StatusUnauthorized)
		return
	}
	switch r.URL.Path {
	case "/init":
		g.init(w, r)
	case agentapi.PathActivity:
		seen, err := g.activity()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(seen)
	case agentapi.PathSync, "/health":
		if g.deaf.Load() {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	case agentapi.PathLog:
		said, ok := g.journal(r.URL.Query().Get(agentapi.ParamAfter))
		if !ok {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(said)
	default:
		http.NotFound(w, r)
	}
}

func (g *guest) init(w http.ResponseWriter, r *http.Request) {
	var req agentapi.InitRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, "bad init", http.StatusBadRequest)
		return
	}
	if req.Generation != nil {
		g.Generation = *req.Generation
	}
	if req.Copied {
		g.copied.Store(true)
	}
	if req.HostSecret != "" {
		g.host.Store(req.HostSecret)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (g *guest) Image() ([]byte, error) {
	if g.checkpoint != nil {
		if err := g.checkpoint(); err != nil {
			return nil, err
		}
	}
	image := strconv.AppendInt(nil, g.Count.Load(), 10)
	if host, known := g.host.Load().(string); known {
		image = append(append(image, ' '), host...)
	}
	return image, nil
}

// recall gives the guest the memory that is in an image; none is that of a new
// one.
func (g *guest) recall(image []byte) error {
	count, host, known := strings.Cut(string(image), " ")
	n, err := strconv.ParseInt(cmp.Or(count, "0"), 10, 64)
	g.Count.Store(n)
	if known {
		g.host.Store(host)
	}
	return err
}

// bench is a machine with a state directory, on which servers come and go.
type bench struct {
	t       *testing.T
	dir     string
	machine *fake.Machine
	driver  runtime.Driver     // of the next server; nil for the machine's
	limits  store.Limits       // of the next server
	ceiling time.Duration      // the longest timeout that the next server grants; 0 for any
	samples time.Duration      // how often the next server measures; 0 for never
	logs    bool               // whether the next server keeps logs
	light   lightsleep.Options // of the next server

	mu         sync.Mutex
	checkpoint func() error
	boot       func() error
	activity   func() (agentapi.Activity, error)
	journal    func(after string) (agentapi.Log, bool)
	held       func() []runtime.OpenFile // nil where that is not known
	starts     int
	last       *guest // that was started
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, dir: t.TempDir()}
	b.machine = fake.NewMachine(func(_ runtime.Spec, image []byte) (fake.Program, error) {
		b.mu.Lock()
		b.starts++
		boot := b.boot
		g := &guest{checkpoint: b.checkpoint, activity: b.seen, journal: b.logged, open: b.held}
		b.last = g
		b.mu.Unlock()
		if boot != nil {
			if err := boot(); err != nil {
				return nil, err
			}
		}
		return g, g.recall(image)
	})
	dir := filepath.Join(b.dir, "templates", "test")
	lower := filepath.Join(b.dir, "lower")
	for _, d := range []string{dir, lower, filepath.Join(b.dir, "rootfs")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tree := layer.Tree{Name: "root", Path: "/", Lowers: []string{lower}}
	data, _ := json.Marshal(template.Template{ID: "test", Trees: []layer.Tree{tree}})
	if err := os.WriteFile(filepath.Join(dir, "template.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.unmountAll) // what still runs has its files mounted
	return b
}

func (b *bench) unmountAll() {
	entries, err := os.ReadDir(filepath.Join(b.dir, "rootfs"))
	if err != nil {
		b.t.Error(err)
	}
	for _, e := range entries {
		if err := layer.Unmount(filepath.Join(b.dir, "rootfs", e.Name())); err != nil {
			b.t.Error(err)
		}
	}
}

// seen is what the agents of the bench report.
func (b *bench) seen() (agentapi.Activity, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.activity == nil {
		return agentapi.Activity{Now: time.Now()}, nil
	}
	return b.activity()
}

// logged is what the agents of the bench have in their logs.
func (b *bench) logged(after string) (agentapi.Log, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.journal == nil {
		return agentapi.Log{}, false
	}
	return b.journal(after)
}

func (b *bench) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *bench) started() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.starts
}

// open starts a server on the bench; stop ends it.
func (b *bench) open() (s *Supervisor, stop func()) {
	t := b.t
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(b.dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := layer.Open(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	templates, err := template.Open(filepath.Join(b.dir, "templates"))
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := volume.Open(filepath.Join(b.dir, "volumes"), os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	driver := b.driver
	if driver == nil {
		driver = b.machine.Driver()
	}
	logDir := ""
	if b.logs {
		logDir = filepath.Join(b.dir, "logs")
	}
	secrets, err := secret.Open(t.Context(), st, b.dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err = New(t.Context(), Options{
		World:  outside.World{Secrets: secrets},
		Limits: b.limits, MaxTimeout: b.ceiling,
		LogDir: logDir,
		Store:  st, Layers: layers, Templates: templates, Volumes: volumes, Driver: driver, BackupNeeds: func(path string) bool { return backup.Needs(b.dir, path) }, RunDir: filepath.Join(b.dir, "rootfs"),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), WakeTimeout: 20 * time.Second, WakeQueue: 10_000, Defaults: Defaults{StallAfter: 30 * time.Minute},
		SampleEvery: b.samples, ConfineEvery: time.Second, LightSleep: b.light,
	})
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), testmode.Patience())
			defer cancel()
			if err := errors.Join(s.Stop(ctx), st.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return s, stop
}

func create(t *testing.T, s *Supervisor, req CreateRequest) string {
	t.Helper()
	req.Template = "test"
	if req.Settings.Timeout == 0 && req.Settings.IdleTimeout == 0 {
		req.Settings.Timeout = time.Hour
	}
	if req.Settings.OnTimeout == "" {
		req.Settings.OnTimeout = lifecycle.Kill
	}
	sb, err := s.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID
}

// count asks the counter, as the edge would, and returns the generation that
// answered.
func count(ctx context.Context, s *Supervisor, id string) (n, generation int64, err error) {
	lease, err := s.Acquire(ctx, id, Access{Port: counterPort})
	if err != nil {
		return 0, 0, err
	}
	defer lease.Release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-lease.Cut:
			cancel()
		case <-ctx.Done():
		}
	}()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return lease.Dial(ctx, counterPort)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/", nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	n, err = strconv.ParseInt(string(data), 10, 64)
	return n, lease.Generation, err
}

func wantCount(t *testing.T, s *Supervisor, id string, n, generation int64) {
	t.Helper()
	gotN, gotG, err := count(t.Context(), s, id)
	if err != nil || gotN != n || gotG != generation {
		t.Fatalf("count = %d in generation %d, %v; want %d in %d", gotN, gotG, err, n, generation)
	}
}

func record(t *testing.T, s *Supervisor, id string) lifecycle.Record {
	t.Helper()
	b, err := s.box(id)
	if err != nil {
		t.Fatal(err)
	}
	return b.snapshot().Record
}

func TestMemoryContinuesOverPauses(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	wantCount(t, s, id, 1, 1)
	for g := int64(2); g <= 5; g++ {
		if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Pause(t.Context(), id, PauseRequest{}); !errdef.Is(err, errdef.Conflict) {
			t.Fatalf("second pause: %v, want a conflict", err)
		}
		c, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute})
		if err != nil || !c.Resumed {
			t.Fatalf("connect: %+v, %v", c, err)
		}
		wantCount(t, s, id, g, g)
	}
	if err := s.Kill(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	b.wantNothingLeft()
}

func (b *bench) wantNothingLeft() {
	b.t.Helper()
	ids, _ := b.machine.Driver().List(context.Background())
	if len(ids) > 0 {
		b.t.Errorf("runtimes left: %v", ids)
	}
	for _, dir := range []string{"rootfs", "layers", "images", "imports"} {
		entries, err := os.ReadDir(filepath.Join(b.dir, dir))
		if err != nil || len(entries) > 0 {
			b.t.Errorf("left in %s: %v, %v", dir, entries, err)
		}
	}
}

func TestOneWakeForManyCallers(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	before := b.started()
	const callers = 200
	var served atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			if _, _, err := count(t.Context(), s, id); err != nil {
				t.Error(err)
				return
			}
			served.Add(1)
		})
	}
	wg.Wait()
	if got := b.started() - before; got != 1 {
		t.Errorf("%d runtime starts, want 1", got)
	}
	wantCount(t, s, id, callers+1, 2)
	if left := time.Until(record(t, s, id).EndAt); left < 50*time.Minute {
		t.Errorf("woken with %s to live, want the original hour", left)
	}
}

func TestConcurrentConnectsShareOneResume(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	before := b.started()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			c, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute})
			if err != nil || c.Sandbox.Record.Generation != 2 {
				t.Errorf("connect: generation %d, %v", c.Sandbox.Record.Generation, err)
			}
		})
	}
	wg.Wait()
	if got := b.started() - before; got != 1 {
		t.Errorf("%d runtime starts, want 1", got)
	}
}

func TestTimeoutKills(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: lifecycle.Settings{Timeout: 20 * time.Millisecond}})
	testmode.Eventually(t, "the end", func() bool { _, err := s.Get(t.Context(), id); return errdef.Is(err, errdef.NotFound) })
	if r := record(t, s, id).Tombstone.Reason; r != lifecycle.TimeoutExpired {
		t.Errorf("reason %s", r)
	}
	testmode.Eventually(t, "the release", func() bool { return record(t, s, id).Op == nil })
	b.wantNothingLeft()
}

func TestTimeoutPausesAgainAndAgain(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	for g := int64(1); g <= 3; g++ {
		wantCount(t, s, id, g, g)
		if _, err := s.SetTimeout(t.Context(), id, 0, ""); err != nil {
			t.Fatal(err)
		}
		testmode.Eventually(t, "the pause", func() bool { r := record(t, s, id); return r.State == lifecycle.Paused && r.Op == nil })
	}
}

func TestWithoutAutoResumeItStaysAsleep(t *testing.T) {
	s, _ := newBench(t).open()
	id := create(t, s, CreateRequest{Settings: lifecycle.Settings{OnTimeout: lifecycle.Pause}})
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := count(t.Context(), s, id); !errdef.Is(err, errdef.WrongState) {
		t.Errorf("access: %v, want wrong_state", err)
	}
	if _, err := s.Refresh(t.Context(), id, time.Minute, ""); !errdef.Is(err, errdef.WrongState) {
		t.Errorf("refresh: %v, want wrong_state", err)
	}
	if st := record(t, s, id).State; st != lifecycle.Paused {
		t.Errorf("it is %s", st)
	}
}

func TestAccessCancelsAnAutomaticPause(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	reached, proceed := make(chan struct{}), make(chan struct{})
	b.set(func() { b.checkpoint = func() error { close(reached); <-proceed; return nil } })
	id := create(t, s, CreateRequest{Settings: sleepy})
	if _, err := s.SetTimeout(t.Context(), id, 0, ""); err != nil {
		t.Fatal(err)
	}
	<-reached
	done := make(chan error, 1)
	go func() {
		_, g, err := count(t.Context(), s, id)
		if err == nil && g != 1 {
			err = fmt.Errorf("served by generation %d, want 1", g)
		}
		done <- err
	}()
	testmode.Eventually(t, "the cancel", func() bool { op := record(t, s, id).Op; return op != nil && op.Canceling })
	close(proceed)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "the removal of the partial image", func() bool {
		n, err := os.ReadDir(filepath.Join(b.dir, "images"))
		return err == nil && len(n) == 0
	})
}

func TestFailedPauseRunsOn(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	b.set(func() { b.checkpoint = func() error { return errors.New("no space left on device") } })
	id := create(t, s, CreateRequest{})
	wantCount(t, s, id, 1, 1)
	if err := s.Pause(t.Context(), id, PauseRequest{}); !errdef.Is(err, errdef.Unavailable) {
		t.Fatalf("pause: %v, want unavailable", err)
	}
	wantCount(t, s, id, 2, 1)
	if e := record(t, s, id).LastError; e == "" {
		t.Error("the reason is not visible")
	}
}

func TestFailedResumeStaysPaused(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	wantCount(t, s, id, 1, 1)
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	b.set(func() { b.boot = func() error { return errors.New("boom") } })
	for name, f := range map[string]func() error{
		"connect": func() error {
			_, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute})
			return err
		},
		"access": func() error { _, _, err := count(t.Context(), s, id); return err },
		"boot": func() error {
			_, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute, Boot: true})
			return err
		},
	} {
		if err := f(); !errdef.Is(err, errdef.Unavailable) {
			t.Errorf("%s: %v, want unavailable", name, err)
		}
	}
	b.set(func() { b.boot = nil })
	wantCount(t, s, id, 2, 2)
}

func TestDamagedImageIsNotServed(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(b.dir, "images", record(t, s, id).Checkpoint.ID, "memory")
	whole, err := os.ReadFile(path)
	if err := errors.Join(err, os.WriteFile(path, []byte("9"), 0o600)); err != nil {
		t.Fatal(err)
	}
	hasCode(t, "why, before anybody has tried", faultOf(t, s, id), "checkpoint_damaged", "")
	_, err = s.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute})
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Class != errdef.Unavailable || e.Code != "checkpoint_damaged" {
		t.Errorf("connect: %v, want it refused as damaged", err)
	}
	hasCode(t, "why, afterwards", faultOf(t, s, id), "checkpoint_damaged", "")
	if x := s.Outlooks(t.Context(), []string{id})[id]; x.Fault == nil {
		t.Error("a list does not say that it cannot wake")
	}
	if r := record(t, s, id); r.State != lifecycle.Paused || r.Launches != 2 {
		t.Errorf("it is %s after %d launches, want paused, and no second try", r.State, r.Launches)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := faultOf(t, s, id); err != nil {
		t.Errorf("why, put right and asleep again: %v", err)
	}

	// One that is damaged for good boots from its files, if that is asked for.
	path = filepath.Join(b.dir, "images", record(t, s, id).Checkpoint.ID, "memory")
	if err := os.WriteFile(path, []byte("9"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resume(t.Context(), id, WakeRequest{Timeout: time.Minute}); err == nil {
		t.Error("it is served")
	}
	if _, err := s.Resume(t.Context(), id, WakeRequest{Timeout: time.Minute, Boot: true, Actor: "me"}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, id, 1, 3)
	last, err := s.LastEvents(t.Context(), id, 1)
	if err != nil || last[0].Type != lifecycle.EntryResumed || last[0].Actor != "me" || !strings.Contains(last[0].Detail, "memory is gone") {
		t.Errorf("the log says %+v, %v", last, err)
	}
	testmode.Eventually(t, "the removal of the image", func() bool {
		n, err := os.ReadDir(filepath.Join(b.dir, "images"))
		return err == nil && len(n) == 0
	})
}

// faultOf returns why a sandbox that sleeps cannot wake.
func faultOf(t *testing.T, s *Supervisor, id string) error {
	t.Helper()
	x, err := s.Explain(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return x.Fault
}

func TestRuntimeThatDies(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	wantCount(t, s, id, 1, 1)
	b.crash(record(t, s, id), id)
	testmode.Eventually(t, "the end", func() bool { return record(t, s, id).State == lifecycle.Terminated })
	if r := record(t, s, id).Tombstone.Reason; r != lifecycle.RuntimeExited {
		t.Errorf("reason %s", r)
	}
	testmode.Eventually(t, "the release", func() bool { return record(t, s, id).Op == nil })
	b.wantNothingLeft()
}

func TestRuntimePastItsLimit(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	for _, c := range []struct {
		limit  runtime.Limit
		reason lifecycle.Reason
		says   string
	}{
		{runtime.MemoryLimit, lifecycle.OutOfMemory, fmt.Sprintf("limit of %d MiB", s.o.Limits.MemoryMiB)},
		{runtime.PIDsLimit, lifecycle.OutOfProcesses, fmt.Sprintf("limit of %d tasks", s.o.Limits.PIDs)},
	} {
		id := create(t, s, CreateRequest{})
		wantCount(t, s, id, 1, 1)
		b.machine.Exceed(sweep.RuntimeID(id, record(t, s, id).Launch), c.limit)
		testmode.Eventually(t, "the end", func() bool { return record(t, s, id).State == lifecycle.Terminated })
		if stone := record(t, s, id).Tombstone; stone.Reason != c.reason || !strings.Contains(stone.Detail, c.says) {
			t.Errorf("it ended of %s (%s), want %s and its %s", stone.Reason, stone.Detail, c.reason, c.says)
		}
		testmode.Eventually(t, "the release", func() bool { return record(t, s, id).Op == nil })
	}
	b.wantNothingLeft()
}

// crash ends a runtime behind the server's back.
func (b *bench) crash(r lifecycle.Record, id string) {
	if err := b.machine.Driver().Remove(context.Background(), sweep.RuntimeID(id, r.Launch)); err != nil {
		b.t.Fatal(err)
	}
}

func TestRestart(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	running := create(t, s, CreateRequest{})
	paused := create(t, s, CreateRequest{Settings: sleepy})
	lost := create(t, s, CreateRequest{})
	fallback := create(t, s, CreateRequest{Settings: sleepy})
	for _, id := range []string{running, paused, lost, fallback} {
		wantCount(t, s, id, 1, 1)
	}
	for _, id := range []string{paused, fallback} {
		if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	wantCount(t, s, fallback, 2, 2)
	end := record(t, s, running).EndAt
	stop()
	b.crash(record(t, s, lost), lost)
	b.crash(record(t, s, fallback), fallback)

	s, _ = b.open()
	wantCount(t, s, running, 2, 1)
	if got := record(t, s, running).EndAt; !got.Equal(end) {
		t.Errorf("endAt moved from %s to %s", end, got)
	}
	wantCount(t, s, paused, 2, 2)
	if _, _, err := count(t.Context(), s, lost); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("access to the lost one: %v", err)
	}
	if r := record(t, s, lost).Tombstone.Reason; r != lifecycle.RuntimeLost {
		t.Errorf("reason %s", r)
	}
	wantCount(t, s, fallback, 2, 3) // from its checkpoint, as before its last request
}

func TestDeadlineWhileDown(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	id := create(t, s, CreateRequest{})
	if _, err := s.SetTimeout(t.Context(), id, 30*time.Millisecond, ""); err != nil {
		t.Fatal(err)
	}
	stop()
	time.Sleep(50 * time.Millisecond) // the thing tested is time passing
	s, _ = b.open()
	testmode.Eventually(t, "the end", func() bool { return record(t, s, id).State == lifecycle.Terminated })
}

func TestKillAtAnyMoment(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	for i := range 60 {
		id := create(t, s, CreateRequest{Settings: sleepy})
		var wg sync.WaitGroup
		for _, f := range []func(){
			func() { _ = s.Pause(t.Context(), id, PauseRequest{}) },
			func() {
				_, _ = s.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute})
			},
			func() { _, _, _ = count(t.Context(), s, id) },
		} {
			wg.Go(f)
		}
		time.Sleep(time.Duration(i%20) * 100 * time.Microsecond) // a different moment each time
		if err := s.Kill(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if r := record(t, s, id); r.State != lifecycle.Terminated || r.Op != nil {
			t.Fatalf("after the kill it is %s", r.Situation())
		}
	}
	b.wantNothingLeft()
}

func TestTimeoutAboveTheCeilingIsRefused(t *testing.T) {
	b := newBench(t)
	b.ceiling = 24 * time.Hour
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour}})
	before := record(t, s, id).EndAt
	for name, f := range map[string]func(time.Duration) error{
		"create": func(d time.Duration) error {
			_, err := s.Create(t.Context(), CreateRequest{Template: "test", Settings: lifecycle.Settings{Timeout: d, OnTimeout: lifecycle.Kill}})
			return err
		},
		"connect": func(d time.Duration) error {
			_, err := s.Connect(t.Context(), id, WakeRequest{Timeout: d})
			return err
		},
		"set": func(d time.Duration) error { _, err := s.SetTimeout(t.Context(), id, d, ""); return err },
	} {
		for _, d := range []time.Duration{Unlimited, -time.Second, 25 * time.Hour} {
			if err := f(d); !errdef.Is(err, errdef.Invalid) {
				t.Errorf("%s %s: %v, want invalid", name, d, err)
			}
		}
	}
	if got := record(t, s, id).EndAt; !got.Equal(before) {
		t.Errorf("endAt moved")
	}
}
