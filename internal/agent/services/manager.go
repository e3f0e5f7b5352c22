// Package services supervises the services of a sandbox: it starts them in order,
// asks whether they are ready, and starts them again when they end, ever later if
// they keep ending.
//
// What is to run is told as a whole, after every start and wake of the sandbox.
// What runs already and has not changed goes on untouched: a sandbox that woke with
// its memory has its services still. Everything that is kept is bounded.
//
// The package knows nothing of processes and users: a [Starter] starts what it asks
// for. All methods of Manager may be called concurrently.
package services

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/service"
)

// Starter starts processes.
type Starter interface {
	// Start starts the command of a service. Its output goes to out, which is no
	// longer written to once the process is done.
	Start(s service.Service, out io.Writer) (Process, error)
}

// Process is one that was started.
type Process interface {
	PID() int
	// Done is closed when it has ended, with all that it started in its session.
	Done() <-chan struct{}
	// Err says what it ended of; nil for exit status 0. It is called after Done.
	Err() error
	// Stop asks it to end, and kill ends it.
	Stop(kill bool)
}

// Manager supervises the services of one sandbox.
type Manager struct {
	starter Starter

	mu      sync.Mutex
	units   map[string]*unit
	leaving map[string]*unit // that were taken off the list, until they are gone
	order   []string
	changed chan struct{} // closed and replaced at every change of a state
	events  []service.Event
	seq     int64
	life    string
}

// New returns a manager of no services.
func New(starter Starter) *Manager {
	return &Manager{starter: starter, units: map[string]*unit{}, leaving: map[string]*unit{}, changed: make(chan struct{}), life: rand.Text()}
}

// Apply makes a list all that runs. What is in it as before is left alone; what is
// not is ended, and what is new or different is started once its predecessor has
// ended. Apply waits for nothing of this.
func (m *Manager) Apply(list []service.Service) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.order = nil
	wanted := map[string]bool{}
	for name, u := range m.leaving {
		select {
		case <-u.gone:
			delete(m.leaving, name)
		default:
		}
	}
	for _, s := range list {
		m.order, wanted[s.Name] = append(m.order, s.Name), true
		old := m.units[s.Name]
		if old != nil && reflect.DeepEqual(old.spec, s) {
			continue
		}
		if old == nil {
			old = m.leaving[s.Name]
		}
		m.units[s.Name] = m.begin(s, old)
	}
	for name, u := range m.units {
		if !wanted[name] {
			u.end()
			m.leaving[name] = u
			delete(m.units, name)
		}
	}
	m.stir()
}

// begin starts to supervise a service after the unit before it, which may be nil,
// is gone. It is called with mu held.
func (m *Manager) begin(s service.Service, before *unit) *unit {
	u := &unit{
		m: m, spec: s, log: &log{}, stop: make(chan struct{}), gone: make(chan struct{}), kick: make(chan struct{}, 1),
		status: service.Status{Name: s.Name, State: service.Waiting, Since: now()},
	}
	var gone <-chan struct{}
	if before != nil {
		before.end()
		u.log, gone = before.log, before.gone
	}
	go u.run(gone)
	return u
}

// stir wakes who waits for a change. It is called with mu held.
func (m *Manager) stir() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Restart ends what runs of a service and starts it at once, whatever it was: from
// now on it is not ready, nor has it ended. It reports false if there is none of that
// name.
func (m *Manager) Restart(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.units[name]
	if u == nil {
		return false
	}
	select {
	case u.kick <- struct{}{}:
	default: // it is about to be
	}
	switch s := u.status.State; {
	case s == service.IsReady:
		u.enter(service.Stopping)
	case s.Final() || s == service.BackingOff:
		u.enter(service.Waiting)
	}
	m.stir()
	return true
}

// Report returns how the services are, and what has happened since an event.
func (m *Manager) Report(after int64) service.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := service.Report{Now: now(), Life: m.life, Services: []service.Status{}, Events: []service.Event{}}
	for _, name := range m.order {
		r.Services = append(r.Services, m.units[name].status)
	}
	for _, e := range m.events {
		if e.Seq > after {
			r.Events = append(r.Events, e)
		}
	}
	return r
}

// Await waits until a service is ready or will never be, or keeps ending, or ctx
// ends, and returns how it is. It reports false if there is none of that name.
func (m *Manager) Await(ctx context.Context, name string) (service.Status, bool) {
	for {
		m.mu.Lock()
		u, changed := m.units[name], m.changed
		var status service.Status
		if u != nil {
			status = u.status
		}
		m.mu.Unlock()
		hopeless := status.State.Final() || status.State == service.BackingOff && status.Failures >= loud
		if u == nil || status.State == service.IsReady || hopeless {
			return status, u != nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return status, true
		}
	}
}

// Log returns the lines of a service after one of them, no more than most of the
// last. It reports false if there is no service of that name.
func (m *Manager) Log(name string, after int64, most int) ([]service.Line, bool) {
	m.mu.Lock()
	u := m.units[name]
	m.mu.Unlock()
	if u == nil {
		return nil, false
	}
	return u.log.after(after, most), true
}

// happened notes an event. It is called with mu held.
func (m *Manager) happened(name string, t service.EventType, detail string) {
	m.seq++
	if len(m.events) == service.MaxEvents {
		m.events = slices.Delete(m.events, 0, 1)
	}
	m.events = append(m.events, service.Event{
		Seq: m.seq, At: now(), Service: name, Type: t, Detail: human.Line(detail, service.MaxDetail),
	})
}

// missing says which of the others is not ready; empty for none. It is called with
// mu held.
func (m *Manager) missing(others []string) string {
	for _, name := range others {
		u := m.units[name]
		if u == nil {
			continue // it is gone, and the next Apply says what holds then
		}
		if s := u.status.State; s != service.IsReady && s != service.Done {
			return fmt.Sprintf("%s, which is %s", name, s)
		}
	}
	return ""
}

func now() time.Time { return time.Now().UTC().Round(0) }
