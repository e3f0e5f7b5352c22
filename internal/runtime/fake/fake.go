// Package fake is a runtime driver without processes, for tests that need many
// lifecycles in little time. It passes the same contract suite as the real
// one.
//
// A [Machine] is what outlives a server: the runtimes. Each runs a [Program],
// whose memory is whatever its Image method returns.
package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// Program is what runs in a fake runtime.
type Program interface {
	// Serves returns the handler for a port, nil if nobody listens there.
	Serves(port int) http.Handler
	// Image returns the program's memory.
	Image() ([]byte, error)
}

// Boot makes a program: a new one, or with an image the one it was taken of.
type Boot func(spec runtime.Spec, image []byte) (Program, error)

// Machine holds the runtimes of any number of drivers.
type Machine struct {
	boot Boot

	mu       sync.Mutex
	runtimes map[string]*instance
}

// NewMachine returns a machine on which runtimes boot in the given way.
func NewMachine(boot Boot) *Machine { return &Machine{boot: boot, runtimes: map[string]*instance{}} }

// Driver returns a driver for the machine's runtimes.
func (m *Machine) Driver() *Driver { return &Driver{m: m} }

// Driver implements runtime.Driver.
type Driver struct{ m *Machine }

// Capabilities implements runtime.Driver.
func (d *Driver) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Isolation: "none", MemoryPause: true, Version: "fake 1"}
}

// Start implements runtime.Driver.
func (d *Driver) Start(_ context.Context, spec runtime.Spec) (runtime.Instance, error) {
	return d.m.launch(spec, nil)
}

// imageName is the one file of a fake image.
const imageName = "memory"

// Restore implements runtime.Driver.
func (d *Driver) Restore(_ context.Context, spec runtime.Spec, image string) (runtime.Instance, error) {
	data, err := os.ReadFile(filepath.Join(image, imageName))
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", spec.ID, err)
	}
	return d.m.launch(spec, data)
}

func (m *Machine) launch(spec runtime.Spec, image []byte) (runtime.Instance, error) {
	p, err := m.boot(spec, image)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runtimes[spec.ID] != nil {
		return nil, errdef.New(errdef.Exists, "runtime_exists", "runtime %s exists", spec.ID)
	}
	i := &instance{id: spec.ID, program: p, exited: make(chan struct{}), servers: map[int]*server{}}
	i.sharers.Store(int64(spec.Sharers))
	i.moved = sync.NewCond(&i.mu)
	m.runtimes[spec.ID] = i
	return i, nil
}

// Adopt implements runtime.Driver.
func (d *Driver) Adopt(_ context.Context, id string) (runtime.Instance, error) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if i := d.m.runtimes[id]; i != nil {
		return i, nil
	}
	return nil, errdef.New(errdef.NotFound, "runtime_not_found", "runtime %s does not exist", id)
}

// List implements runtime.Driver.
func (d *Driver) List(context.Context) ([]string, error) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	var ids []string
	for id := range d.m.runtimes {
		ids = append(ids, id)
	}
	return ids, nil
}

// Exceed ends a runtime as one ends that takes more of something than it may.
func (m *Machine) Exceed(id string, l runtime.Limit) {
	m.mu.Lock()
	i := m.runtimes[id]
	delete(m.runtimes, id)
	m.mu.Unlock()
	if i != nil {
		i.endedBy.Store(l)
		i.end()
	}
}

// Remove implements runtime.Driver.
func (d *Driver) Remove(_ context.Context, id string) error {
	d.m.mu.Lock()
	i := d.m.runtimes[id]
	delete(d.m.runtimes, id)
	d.m.mu.Unlock()
	if i != nil {
		i.end()
	}
	return nil
}

// Close implements runtime.Driver.
func (d *Driver) Close() error { return nil }

// instance implements runtime.Instance.
type instance struct {
	id      string
	program Program
	exited  chan struct{}

	endedBy  atomic.Value // the runtime.Limit that it ended of
	sharers  atomic.Int64 // see Sharers
	confined atomic.Int64 // see Confined
	yields   atomic.Bool  // see Yields

	mu      sync.Mutex
	frozen  bool
	ended   bool
	serving int        // requests at work, none while frozen
	served  int        // requests that have been answered
	moved   *sync.Cond // frozen, ended or serving has changed; unlike a lock, virtual time passes it
	servers map[int]*server
}

// ID implements runtime.Instance.
func (i *instance) ID() string { return i.id }

// Exited implements runtime.Instance.
func (i *instance) Exited() <-chan struct{} { return i.exited }

// MemoryBytes is what every fake runtime takes.
const MemoryBytes = 1 << 20

// CPUPerRequest is how much CPU time a fake runtime takes for a request.
const CPUPerRequest = 100 * time.Millisecond

// Usage implements runtime.UsageMeter.
func (i *instance) Usage() (runtime.Usage, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return runtime.Usage{CPU: time.Duration(i.served) * CPUPerRequest, Memory: MemoryBytes}, nil
}

// EndedBy implements runtime.Witness.
func (i *instance) EndedBy() (runtime.Ending, error) {
	l, _ := i.endedBy.Load().(runtime.Limit)
	return runtime.Ending{Limit: l}, nil
}

// ShareAmong implements runtime.Sharer.
func (i *instance) ShareAmong(n int) error {
	i.sharers.Store(int64(n))
	return nil
}

// Sharers returns among how many a runtime was told to share CPU time; 0 if
// there is no such runtime.
func (m *Machine) Sharers(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.runtimes[id]; i != nil {
		return int(i.sharers.Load())
	}
	return 0
}

// CPUTime implements runtime.Confiner.
func (i *instance) CPUTime() (time.Duration, error) {
	used, err := i.Usage()
	return used.CPU, err
}

// Confine implements runtime.Confiner.
func (i *instance) Confine(n int) error {
	i.confined.Store(int64(n))
	return nil
}

// Yield implements runtime.Confiner.
func (i *instance) Yield(yield bool) error {
	i.yields.Store(yield)
	return nil
}

// Yields reports whether a runtime lets others run first.
func (m *Machine) Yields(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.runtimes[id]
	return i != nil && i.yields.Load()
}

// Confined returns to how many processors a runtime is confined; 0 if to none, or
// if there is no such runtime.
func (m *Machine) Confined(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.runtimes[id]; i != nil {
		return int(i.confined.Load())
	}
	return 0
}

// OpenFiles implements runtime.FileHolder for programs that can tell.
func (i *instance) OpenFiles() ([]runtime.OpenFile, error) {
	if p, ok := i.program.(interface{ OpenFiles() []runtime.OpenFile }); ok {
		return p.OpenFiles(), nil
	}
	return nil, nil
}

// Dial implements runtime.Instance.
func (i *instance) Dial(_ context.Context, port int) (net.Conn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	h := i.program.Serves(port)
	if i.ended || h == nil {
		return nil, fmt.Errorf("dial port %d of %s: %w", port, i.id, syscall.ECONNREFUSED)
	}
	s := i.servers[port]
	if s == nil {
		s = newServer(i.gated(h))
		i.servers[port] = s
	}
	return s.dial()
}

func (i *instance) gated(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.enter()
		defer i.leave()
		h.ServeHTTP(w, r)
	})
}

func (i *instance) enter() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for i.frozen {
		i.moved.Wait()
	}
	i.serving++
}

func (i *instance) leave() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.serving--
	i.served++
	i.moved.Broadcast()
}

// Freeze implements runtime.Instance.
func (i *instance) Freeze(context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return errors.New("the runtime has exited")
	}
	i.frozen = true
	for i.frozen && i.serving > 0 {
		i.moved.Wait()
	}
	return nil
}

// Thaw implements runtime.Instance.
func (i *instance) Thaw(context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.frozen = false
	i.moved.Broadcast()
	return nil
}

// Checkpoint implements runtime.Instance.
func (i *instance) Checkpoint(_ context.Context, dir string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended || !i.frozen {
		return fmt.Errorf("checkpoint %s: not frozen", i.id)
	}
	data, err := i.program.Image()
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", i.id, err)
	}
	return os.WriteFile(filepath.Join(dir, imageName), data, 0o600)
}

func (i *instance) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return
	}
	i.ended = true
	i.frozen = false
	i.moved.Broadcast()
	for _, s := range i.servers {
		s.close()
	}
	close(i.exited)
}

// server serves HTTP over pipes.
type server struct {
	http  *http.Server
	conns chan net.Conn
	done  chan struct{}
}

func newServer(h http.Handler) *server {
	s := &server{http: &http.Server{Handler: h}, conns: make(chan net.Conn), done: make(chan struct{})}
	go func() { _ = s.http.Serve(s) }()
	return s
}

func (s *server) dial() (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case s.conns <- far:
		return near, nil
	case <-s.done:
		return nil, syscall.ECONNREFUSED
	}
}

func (s *server) close() {
	close(s.done)
	_ = s.http.Close()
}

// Accept implements net.Listener.
func (s *server) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *server) Close() error { return nil }

// Addr implements net.Listener.
func (s *server) Addr() net.Addr { return &net.UnixAddr{Name: "fake", Net: "unix"} }
