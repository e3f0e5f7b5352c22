package supervisor

import (
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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/volume"
)

// world is a machine without mounts, disks or processes: everything that
// outlives a server, fast enough for many thousand lifecycles. Its template
// has no trees, so that nothing is mounted; runtimes write a file into their
// layer themselves, so that there are layers to keep and to lose.
//
// Servers come and go, and each can crash: from that instant on nothing that
// it still does has any effect.
type world struct {
	dir     string
	machine *fake.Machine
	data    *memstore.Data

	mu       sync.Mutex
	programs map[string]*program // by runtime id
	servers  int

	// Tests may set these before the first server opens. They are called
	// without mu, and may sleep where what they stand for may.
	meddle func(ctx context.Context, srv *server, at point, runtimeID string) error // ahead of what a driver does
	told   func(p *program) (agentapi.Activity, error)                              // what an agent reports
	later  atomic.Pointer[func(*program) (agentapi.Activity, error)]                // in place of told, where a server runs already
	agent  func() func(net.Conn)                                                    // who answers in place of an agent; nil is the agent
	// These are called with mu held and must not sleep.
	served func(p *program)                 // the program has counted
	did    func(at point, runtimeID string) // what a driver has done
	hooks  func(srv *server) memstore.Hooks // of a server's store
	log    func(srv *server) slog.Handler   // of a server
	tune   func(o *Options)                 // of a server
	light  bool                             // whether sandboxes of its servers sleep lightly first
	spec   func(runtime.Spec)               // what a runtime is told
}

// point is a thing that drivers do.
type point string

const (
	atStart      point = "start"
	atRestore    point = "restore"
	atBooted     point = "booted" // it runs, and the caller does not know yet
	atAdopt      point = "adopt"
	atList       point = "list"
	atRemove     point = "remove"
	atFreeze     point = "freeze"
	atThaw       point = "thaw"
	atCheckpoint point = "checkpoint"
	atCaptured   point = "captured" // the image is written, and the caller does not know yet
)

// lightly has sandboxes sleep lightly for a while, on a machine with memory to spare,
// which is looked at so seldom that virtual time passes quickly.
var lightly = lightsleep.Options{
	Most: 5 * time.Minute, Every: time.Hour,
	Look: func() (lightsleep.Host, error) { return lightsleep.Host{Memory: 1 << 40, Available: 1 << 39}, nil },
}

func sandboxOf(id string) string { return sweep.SandboxOf(id) }

func newWorldIn(t testing.TB, dir string) *world {
	w := &world{dir: dir, data: memstore.NewData(), programs: map[string]*program{}}
	w.machine = fake.NewMachine(w.boot)
	at := filepath.Join(dir, "templates", "test")
	data, _ := json.Marshal(template.Template{ID: "test"})
	if err := errors.Join(os.MkdirAll(at, 0o700), os.MkdirAll(filepath.Join(dir, "volumes"), 0o700), os.WriteFile(filepath.Join(at, "template.json"), data, 0o600)); err != nil {
		t.Fatal(err)
	}
	return w
}

// boot is what a runtime runs.
func (w *world) boot(spec runtime.Spec, image []byte) (fake.Program, error) {
	p := &program{w: w, id: spec.ID, changed: make(chan struct{}), booted: time.Now()}
	if image != nil {
		if err := json.Unmarshal(image, &p.count); err != nil {
			return nil, err
		}
	}
	if w.spec != nil {
		w.spec(spec)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.programs[spec.ID] != nil {
		return nil, fmt.Errorf("runtime %s is launched again", spec.ID)
	}
	w.programs[spec.ID] = p
	return p, nil
}

// program is an agent, and a counter that is asked directly: HTTP is not what
// is tested here. It is guarded by world.mu.
type program struct {
	w      *world
	id     string
	booted time.Time

	count   int64
	frozen  bool
	gone    bool
	changed chan struct{} // closed when frozen or gone changes
	crashed bool          // gone by itself
}

// launch is which launch of its sandbox the program is.
func (p *program) launch() int64 {
	n, _ := strconv.ParseInt(p.id[len(sandboxOf(p.id))+1:], 10, 64)
	return n
}

func (p *program) Serves(port int) http.Handler {
	if port == agentapi.Port {
		return http.HandlerFunc(p.agent)
	}
	return nil
}

func (p *program) agent(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != agentapi.PathActivity {
		_, _ = io.Copy(io.Discard, r.Body) // else the answer could come before the question has ended
		w.WriteHeader(http.StatusNoContent)
		return
	}
	seen := agentapi.Activity{Now: time.Now()}
	told := p.w.told
	if later := p.w.later.Load(); later != nil {
		told = *later
	}
	if told != nil {
		var err error
		if seen, err = told(p); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	_ = json.NewEncoder(w).Encode(seen)
}

func (p *program) Image() ([]byte, error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return json.Marshal(p.count)
}

// move changes the program and wakes those who wait for it.
func (p *program) move(f func()) {
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

var (
	errGone = errors.New("the program is gone")
	errCut  = errors.New("the connection was cut")
)

// ask counts one up, as soon as the program is not frozen.
func (p *program) ask(cut <-chan struct{}) (int64, error) {
	for {
		p.w.mu.Lock()
		if p.gone {
			p.w.mu.Unlock()
			return 0, errGone
		}
		if !p.frozen {
			p.count++
			n := p.count
			if p.w.served != nil {
				p.w.served(p)
			}
			p.w.mu.Unlock()
			return n, nil
		}
		changed := p.changed
		p.w.mu.Unlock()
		select {
		case <-changed:
		case <-cut:
			return 0, errCut
		}
	}
}

// server is one incarnation of the supervisor.
type server struct {
	w      *world
	number int
	dir    string
	s      *Supervisor
	store  *memstore.Store

	ctx     context.Context // of calls to it; ends with it
	end     context.CancelFunc
	crashed chan struct{}
	dead    atomic.Bool
}

var errDead = errors.New("the server is dead")

// open starts a server. On an error it is dead.
func (w *world) open() (*server, error) {
	w.mu.Lock()
	w.servers++
	srv := &server{w: w, number: w.servers, dir: filepath.Join(w.dir, fmt.Sprint("server", w.servers)), crashed: make(chan struct{})}
	srv.ctx, srv.end = context.WithCancel(context.Background())
	w.mu.Unlock()
	if err := srv.inherit(); err != nil {
		return nil, err
	}
	var hooks memstore.Hooks
	if w.hooks != nil {
		hooks = w.hooks(srv)
	}
	srv.store = memstore.Open(w.data, srv.mortal(hooks))
	layers, err := layer.Open(srv.dir)
	if err != nil {
		return nil, err
	}
	templates, err := template.Open(filepath.Join(w.dir, "templates"))
	if err != nil {
		return nil, err
	}
	var logs slog.Handler = slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1})
	if w.log != nil {
		logs = w.log(srv)
	}
	o := Options{
		Store: srv.store, Layers: layers, Templates: templates, Volumes: volume.At(filepath.Join(w.dir, "volumes"), os.Getuid()), Driver: &mortalDriver{w.machine.Driver(), srv},
		RunDir: filepath.Join(srv.dir, "rootfs"), Log: slog.New(logs),
		WakeTimeout: 30 * time.Second, WakeQueue: 1000, Drain: DefaultDrain, Defaults: Defaults{StallAfter: 30 * time.Minute},
	}
	if w.light {
		o.LightSleep = lightly
	}
	if w.tune != nil {
		w.tune(&o)
	}
	srv.s, err = New(srv.ctx, o)
	if err != nil {
		srv.crash()
		return srv, err
	}
	return srv, nil
}

// powerOff ends every runtime.
func (w *world) powerOff() {
	d := w.machine.Driver()
	ids, _ := d.List(context.Background())
	for _, id := range ids {
		_ = d.Remove(context.Background(), id)
	}
}

// end stops a server of the world, and then turns that off.
func (w *world) end(t testing.TB, srv *server) {
	t.Helper()
	if err := srv.s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	w.powerOff()
}

// subdirs are what a server keeps files in.
var subdirs = []string{"layers", "images", "rootfs"}

// inherit takes over the files of the last server. They are moved, so that
// whatever a dead server still does to files, it does to none of these.
func (srv *server) inherit() error {
	if err := os.MkdirAll(srv.dir, 0o700); err != nil {
		return err
	}
	grave := filepath.Join(srv.w.dir, "left")
	for _, d := range subdirs {
		to := filepath.Join(srv.dir, d)
		err := os.Rename(filepath.Join(grave, d), to)
		if errors.Is(err, os.ErrNotExist) {
			err = os.MkdirAll(to, 0o700)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// crash ends the server as kill -9 does, at this instant. It may be called
// from anywhere, more than once.
func (srv *server) crash() {
	if !srv.dead.CompareAndSwap(false, true) {
		return
	}
	grave := filepath.Join(srv.w.dir, "left")
	_ = os.MkdirAll(grave, 0o700)
	for _, d := range subdirs {
		_ = os.Rename(filepath.Join(srv.dir, d), filepath.Join(grave, d))
	}
	close(srv.crashed)
	srv.end()
}

// mortal adds the server's death to hooks.
func (srv *server) mortal(h memstore.Hooks) memstore.Hooks {
	return memstore.Hooks{
		Before: func(c memstore.Commit) error {
			if srv.dead.Load() {
				return errDead
			}
			if h.Before != nil {
				if err := h.Before(c); err != nil {
					return err
				}
			}
			if srv.dead.Load() { // the hook may crash it
				return errDead
			}
			return nil
		},
		After: h.After,
	}
}

// mortalDriver is a driver of the machine that does nothing once its server
// has crashed, and what the test wants before.
type mortalDriver struct {
	*fake.Driver
	srv *server
}

// reach is called ahead of whatever a driver does.
func (srv *server) reach(ctx context.Context, at point, id string) error {
	if srv.dead.Load() {
		return errDead
	}
	if srv.w.meddle != nil {
		if err := srv.w.meddle(ctx, srv, at, id); err != nil {
			return err
		}
	}
	if srv.dead.Load() {
		return errDead
	}
	return nil
}

func (srv *server) note(at point, id string, f func(p *program)) {
	srv.w.mu.Lock()
	defer srv.w.mu.Unlock()
	if p := srv.w.programs[id]; p != nil && f != nil {
		f(p)
	}
	if srv.w.did != nil {
		srv.w.did(at, id)
	}
}

func (d *mortalDriver) Start(ctx context.Context, spec runtime.Spec) (runtime.Instance, error) {
	if err := d.srv.reach(ctx, atStart, spec.ID); err != nil {
		return nil, err
	}
	inst, err := d.Driver.Start(ctx, spec)
	return d.up(ctx, inst, spec.ID, err)
}

func (d *mortalDriver) Restore(ctx context.Context, spec runtime.Spec, image string) (runtime.Instance, error) {
	if err := d.srv.reach(ctx, atRestore, spec.ID); err != nil {
		return nil, err
	}
	inst, err := d.Driver.Restore(ctx, spec, image)
	return d.up(ctx, inst, spec.ID, err)
}

// up writes a file into the new runtime's layer, as its processes would.
func (d *mortalDriver) up(ctx context.Context, inst runtime.Instance, id string, err error) (runtime.Instance, error) {
	if err != nil {
		return nil, err
	}
	d.srv.note(atBooted, id, nil)
	dir := filepath.Join(d.srv.dir, "layers", id, "root")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)); err != nil {
		return nil, err
	}
	if err := d.srv.reach(ctx, atBooted, id); err != nil {
		return nil, err
	}
	return &mortalInstance{inst, d.srv}, nil
}

func (d *mortalDriver) Adopt(ctx context.Context, id string) (runtime.Instance, error) {
	if err := d.srv.reach(ctx, atAdopt, id); err != nil {
		return nil, err
	}
	inst, err := d.Driver.Adopt(ctx, id)
	if err != nil {
		return nil, err
	}
	return &mortalInstance{inst, d.srv}, nil
}

func (d *mortalDriver) List(ctx context.Context) ([]string, error) {
	if err := d.srv.reach(ctx, atList, ""); err != nil {
		return nil, err
	}
	return d.Driver.List(ctx)
}

func (d *mortalDriver) Remove(ctx context.Context, id string) error {
	if err := d.srv.reach(ctx, atRemove, id); err != nil {
		return err
	}
	d.srv.note(atRemove, id, func(p *program) { p.move(func() { p.gone = true }) })
	return d.Driver.Remove(ctx, id)
}

// kill ends a runtime behind everybody's back.
func (w *world) kill(id string) {
	w.mu.Lock()
	if p := w.programs[id]; p != nil && !p.gone {
		p.move(func() { p.gone, p.crashed = true, true })
	}
	w.mu.Unlock()
	_ = w.machine.Driver().Remove(context.Background(), id)
}

type mortalInstance struct {
	runtime.Instance
	srv *server
}

// counter is a connection to a program.
type counter struct {
	net.Conn
	p *program
}

func (i *mortalInstance) Dial(ctx context.Context, port int) (net.Conn, error) {
	if i.srv.dead.Load() {
		return nil, errDead
	}
	if port == agentapi.Port {
		return i.dialAgent(ctx)
	}
	i.srv.w.mu.Lock()
	defer i.srv.w.mu.Unlock()
	p := i.srv.w.programs[i.ID()]
	if p.gone {
		return nil, fmt.Errorf("dial %s: %w", i.ID(), syscall.ECONNREFUSED)
	}
	return counter{p: p}, nil
}

func (i *mortalInstance) dialAgent(ctx context.Context) (net.Conn, error) {
	if i.srv.w.agent != nil {
		if answer := i.srv.w.agent(); answer != nil {
			near, far := net.Pipe()
			go answer(far)
			return near, nil
		}
	}
	return i.Instance.Dial(ctx, agentapi.Port)
}

// Usage implements runtime.UsageMeter.
func (i *mortalInstance) Usage() (runtime.Usage, error) {
	return runtime.Usage{Memory: fake.MemoryBytes}, nil
}

func (i *mortalInstance) Freeze(ctx context.Context) error {
	if err := i.srv.reach(ctx, atFreeze, i.ID()); err != nil {
		return err
	}
	if err := i.Instance.Freeze(ctx); err != nil {
		return err
	}
	i.srv.note(atFreeze, i.ID(), func(p *program) { p.move(func() { p.frozen = true }) })
	return nil
}

func (i *mortalInstance) Thaw(ctx context.Context) error {
	if err := i.srv.reach(ctx, atThaw, i.ID()); err != nil {
		return err
	}
	i.srv.note(atThaw, i.ID(), func(p *program) { p.move(func() { p.frozen = false }) })
	return i.Instance.Thaw(ctx)
}

func (i *mortalInstance) Checkpoint(ctx context.Context, dir string) error {
	if err := i.srv.reach(ctx, atCheckpoint, i.ID()); err != nil {
		return err
	}
	if err := i.Instance.Checkpoint(ctx, dir); err != nil {
		return err
	}
	return i.srv.reach(ctx, atCaptured, i.ID())
}

// askThrough uses a lease once, unless it is cut.
func askThrough(ctx context.Context, lease *Lease) (int64, error) {
	if isCut(lease) {
		return 0, errCut
	}
	conn, err := lease.Dial(ctx, counterPort)
	if err != nil {
		if isCut(lease) {
			return 0, errCut
		}
		return 0, err
	}
	n, err := conn.(counter).p.ask(lease.Cut)
	if err != nil && isCut(lease) {
		return 0, errCut
	}
	return n, err
}

func isCut(lease *Lease) bool {
	select {
	case <-lease.Cut:
		return true
	default:
		return false
	}
}

var _ store.Store = (*memstore.Store)(nil)

// rootfs returns where the files of a runtime are mounted.
func (s *Supervisor) rootfs(runtime string) string { return filepath.Join(s.o.RunDir, runtime) }
