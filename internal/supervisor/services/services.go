// Package services keeps which services a sandbox has, asks the agents inside how
// they are, and lets requests wait until the one that they are for is ready.
//
// The services of a sandbox are part of its record. The agent is told all of them
// when a runtime starts or wakes, and at every change while one runs; it supervises
// them. Nothing here is activity, and nothing but a request to a service wakes a
// sandbox.
package services

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
)

// Sandboxes is what a board needs of the supervisor.
type Sandboxes interface {
	// Find returns a sandbox, also one that has ended.
	Find(ctx context.Context, id string) (store.Sandbox, error)
	// Get returns one that has not ended.
	Get(ctx context.Context, id string) (store.Sandbox, error)
	Patch(ctx context.Context, id string, p fields.Patch, actor string) (store.Sandbox, error)
}

// Board is the services of all sandboxes. It is safe for concurrent use.
type Board struct {
	ctx       context.Context // ends what follows services
	sandboxes Sandboxes
	served    Served
	agents    agentclient.Host
	queue     int // how many requests may wait for the services of one sandbox

	mu       sync.Mutex
	waiting  map[string]int        // by sandbox; requests
	ready    map[string]*readiness // by sandbox
	watchers map[string]*watcher   // by sandbox
	changes  map[string]*turn      // by sandbox; those that somebody changes now
}

// turn lets one change after the other read and write the services of a sandbox.
type turn struct {
	mu    sync.Mutex
	users int // guarded by Board.mu
}

// take waits until nobody else changes the services of a sandbox.
func (b *Board) take(id string) (done func()) {
	b.mu.Lock()
	t := b.changes[id]
	if t == nil {
		t = &turn{}
		b.changes[id] = t
	}
	t.users++
	b.mu.Unlock()
	t.mu.Lock()
	return func() {
		t.mu.Unlock()
		b.mu.Lock()
		defer b.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(b.changes, id)
		}
	}
}

// readiness is which services were seen to be ready in a runtime.
type readiness struct {
	runtime string
	names   map[string]bool
}

// Served returns what serves a sandbox and can be asked now, which may be nil, and
// what writes to its event log; nil for both if there is no such sandbox.
type Served func(id string) (runtime.Instance, func(lifecycle.Entry) error)

// New returns the services of sandboxes. With nil for served, no agent is ever asked.
// ctx ends what the board does by itself, and queue bounds how many requests may wait
// for the services of one sandbox.
func New(ctx context.Context, sandboxes Sandboxes, agents agentclient.Host, queue int, served Served) *Board {
	if served == nil {
		served = func(string) (runtime.Instance, func(lifecycle.Entry) error) { return nil, nil }
	}
	return &Board{
		ctx: ctx, sandboxes: sandboxes, agents: agents, queue: queue, served: served,
		waiting: map[string]int{}, ready: map[string]*readiness{}, watchers: map[string]*watcher{}, changes: map[string]*turn{},
	}
}

// runtime returns what serves a sandbox and can be asked now; nil for nothing.
func (b *Board) runtime(id string) runtime.Instance {
	inst, _ := b.served(id)
	return inst
}

// Serving is a service, and how it is.
type Serving struct {
	service.Service
	Status *service.Status // by the host's clock; nil while the sandbox sleeps, or if it gives no answer
}

// askTimeout bounds a question to an agent.
const askTimeout = 2 * time.Second

// Services returns the services of a sandbox in the order in which they were given.
func (b *Board) Services(ctx context.Context, id string) ([]Serving, error) {
	sb, err := b.sandboxes.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	list := make([]Serving, len(sb.Config.Services))
	for i, s := range sb.Config.Services {
		list[i].Service = s
	}
	inst := b.runtime(id)
	if len(list) == 0 || inst == nil {
		return list, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	report, err := b.agents.Agent(inst, id).Services(ctx, 0)
	if err != nil {
		return list, nil // what is known without it is told all the same
	}
	for i := range list {
		list[i].Status = statusOf(report, list[i].Name)
	}
	return list, nil
}

// Service returns one of the services of a sandbox that has not ended.
func (b *Board) Service(ctx context.Context, id, name string) (Serving, error) {
	if _, err := b.sandboxes.Get(ctx, id); err != nil {
		return Serving{}, err
	}
	list, err := b.Services(ctx, id)
	if err != nil {
		return Serving{}, err
	}
	i := slices.IndexFunc(list, func(s Serving) bool { return s.Name == name })
	if i < 0 {
		return Serving{}, notFound(id, name)
	}
	return list[i], nil
}

// statusOf returns what a report says of a service, by the host's clock.
func statusOf(r service.Report, name string) *service.Status {
	i := slices.IndexFunc(r.Services, func(s service.Status) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	s, now := r.Services[i], time.Now().UTC()
	skew := now.Sub(r.Now)
	for _, t := range []*time.Time{&s.Since, &s.StartedAt, &s.ReadyAt, &s.NextAt} {
		if t.IsZero() {
			continue
		}
		// The guest is hostile: what it says is of this year or so.
		*t = t.Add(skew).UTC().Truncate(time.Millisecond)
		if t.Before(now.Add(-mostTime)) || t.After(now.Add(mostTime)) {
			*t = time.Time{}
		}
	}
	return &s
}

// mostTime is how far from now the times are that an agent is believed.
const mostTime = 365 * 24 * time.Hour

// SetServices makes a list all services of a sandbox.
func (b *Board) SetServices(ctx context.Context, id string, list []service.Service, actor string) error {
	return b.change(ctx, id, actor, func([]service.Service) ([]service.Service, error) { return list, nil }, fields.Patch{})
}

// Publish makes lists all services of a sandbox, and all entrances to its ports. The
// rest of the patch is applied with them, or nothing is.
func (b *Board) Publish(ctx context.Context, id string, list []service.Service, entrances []service.Entrance, patch fields.Patch, actor string) error {
	patch.Entrances = append([]service.Entrance{}, entrances...)
	return b.change(ctx, id, actor, func([]service.Service) ([]service.Service, error) { return list, nil }, patch)
}

// SetService adds a service, or replaces the one of its name.
func (b *Board) SetService(ctx context.Context, id string, s service.Service, actor string) error {
	return b.change(ctx, id, actor, func(list []service.Service) ([]service.Service, error) {
		if i := named(list, s.Name); i >= 0 {
			list[i] = s
			return list, nil
		}
		return append(list, s), nil
	}, fields.Patch{})
}

// RemoveService ends a service and forgets it.
func (b *Board) RemoveService(ctx context.Context, id, name, actor string) error {
	return b.change(ctx, id, actor, func(list []service.Service) ([]service.Service, error) {
		i := named(list, name)
		if i < 0 {
			return nil, notFound(id, name)
		}
		return slices.Delete(list, i, i+1), nil
	}, fields.Patch{})
}

func named(list []service.Service, name string) int {
	return slices.IndexFunc(list, func(s service.Service) bool { return s.Name == name })
}

func notFound(id, name string) error {
	return errdef.New(errdef.NotFound, "service_not_found", "sandbox %s has no service %.80q", id, name).
		WithRemedy("list its services: drowse service ls %s", id)
}

// change changes the services of a sandbox as a whole, with the patch, and tells its
// agent. If the patch has no entrances, those that there are follow the services.
func (b *Board) change(ctx context.Context, id, actor string, change func([]service.Service) ([]service.Service, error), patch fields.Patch) error {
	defer b.take(id)()
	sb, err := b.sandboxes.Get(ctx, id)
	if err != nil {
		return err
	}
	list, err := change(slices.Clone(sb.Config.Services))
	if err != nil {
		return err
	}
	if err := fields.CheckServices(list); err != nil {
		return err
	}
	if patch.Entrances == nil && len(sb.Config.Entrances) > 0 {
		patch.Entrances = service.Follow(sb.Config.Entrances, list)
	}
	if err := fields.CheckEntrances(patch.Entrances); err != nil {
		return err
	}
	serves := service.Resumes(list)
	patch.Services, patch.Settings.Serves = append([]service.Service{}, list...), &serves
	if sb, err = b.sandboxes.Patch(ctx, id, patch, actor); err != nil {
		return err
	}
	b.forget(id)
	return b.tell(ctx, sb)
}

// tell tells the agent of a sandbox that runs which services there are.
func (b *Board) tell(ctx context.Context, sb store.Sandbox) error {
	inst := b.runtime(sb.ID)
	if inst == nil {
		return nil // it sleeps, or is about to: it is told at the wake
	}
	b.Watch(sb.ID, inst, sb.Config.Services)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := b.agents.Agent(inst, sb.ID).Serve(ctx, sb.Config.Services)
	if err == nil || b.runtime(sb.ID) != inst {
		return nil
	}
	return untold(sb.ID, "its services are stored, and its agent could not be told of them", err)
}

func untold(id, what string, err error) error {
	if e, ok := errors.AsType[*agentclient.StatusError](err); ok && e.Code == http.StatusNotFound {
		return errdef.New(errdef.Unsupported, "agent_too_old", "sandbox %s: %s: it is of a version from before there were services", id, what).
			WithRemedy("pause the sandbox with mode filesystem and resume it: then it has the agent of this server")
	}
	return errdef.New(errdef.Unavailable, "agent_unreachable", "sandbox %s: %s: %w", id, what, err).WithRemedy("try again in a moment")
}

// agent returns the agent of a sandbox that runs and has a service.
func (b *Board) agent(ctx context.Context, id, name string) (agentclient.Agent, error) {
	sb, err := b.sandboxes.Get(ctx, id)
	if err != nil {
		return agentclient.Agent{}, err
	}
	if named(sb.Config.Services, name) < 0 {
		return agentclient.Agent{}, notFound(id, name)
	}
	inst := b.runtime(id)
	if inst == nil {
		return agentclient.Agent{}, errdef.New(errdef.WrongState, "not_running", "sandbox %s is %s, and so are its services", id, sb.Record.Situation()).
			WithRemedy("resume it with connect")
	}
	return b.agents.Agent(inst, id), nil
}

// RestartService ends what runs of a service and starts it at once, also one that
// backs off or has failed.
func (b *Board) RestartService(ctx context.Context, id, name string) error {
	a, err := b.agent(ctx, id, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	defer b.forget(id) // also after an error: the agent may have been told
	if err := a.RestartService(ctx, name); err != nil {
		return untold(id, "its agent could not be told to start the service again", err)
	}
	return nil
}

// ServiceLog returns lines that a service has written since the sandbox booted,
// after one of them, and no more than most of the last.
func (b *Board) ServiceLog(ctx context.Context, id, name string, after int64, most int) ([]service.Line, error) {
	a, err := b.agent(ctx, id, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	lines, err := a.ServiceLog(ctx, name, after, most)
	if err != nil {
		return nil, untold(id, "its agent gives no log", err)
	}
	return lines, nil
}

// Gate returns what lets a request wait until the service is ready that it is for;
// nil where there is nothing to wait for. It does no I/O.
func (b *Board) Gate(id string, inst runtime.Instance, list []service.Service, port int, path string) func(context.Context) error {
	s := service.Serving(list, port, path)
	if s == nil || b.isReady(id, inst, s.Name) {
		return nil
	}
	name := s.Name
	return func(ctx context.Context) error { return b.await(ctx, id, inst, name) }
}

// await asks the agent, which answers when the service is ready, or will not be soon.
func (b *Board) await(ctx context.Context, id string, inst runtime.Instance, name string) error {
	leave, err := b.wait(id)
	if err != nil {
		return err
	}
	defer leave()
	seen := b.readiness(id, inst)
	status, err := b.agents.Agent(inst, id).AwaitService(ctx, name)
	switch {
	case err != nil && ctx.Err() == nil:
		return nil // an agent from before there were services, or one that is about to sleep: the port says more
	case err != nil:
		return notReady(id, name, "it is not ready yet")
	case status.State == service.IsReady:
		b.setReady(id, seen, name)
		return nil
	case status.State == service.BackingOff:
		return notReady(id, name, "it ended ("+status.LastEnd+"), and is started again in a while")
	case status.State.Final():
		return notReady(id, name, "it ended ("+status.LastEnd+"), and is not started again")
	}
	return notReady(id, name, "it is "+string(status.State))
}

// wait counts a request that waits for a service. Each holds a lease and a connection
// to the agent, and anybody can make one where the port is public.
func (b *Board) wait(id string) (leave func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.waiting[id]; n >= b.queue {
		return nil, errdef.New(errdef.Unavailable, "wake_queue_full", "%d requests wait for the services of sandbox %s already", n, id).
			WithRemedy("try again in a moment")
	}
	b.waiting[id]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.waiting[id]--; b.waiting[id] == 0 {
			delete(b.waiting, id)
		}
	}, nil
}

func notReady(id, name, why string) error {
	return errdef.New(errdef.Unavailable, "service_not_ready", "service %q of sandbox %s does not serve: %s", name, id, why).
		WithRemedy("see what it says: drowse service logs %s %s", id, name).With("service", name)
}

// Dial connects to a port. A service that refuses is no longer taken to be ready.
func (b *Board) Dial(ctx context.Context, id string, inst runtime.Instance, port int) (net.Conn, error) {
	conn, err := agentclient.Dial(ctx, inst, port)
	if errors.Is(err, syscall.ECONNREFUSED) {
		b.forget(id)
	}
	return conn, err
}

func (b *Board) isReady(id string, inst runtime.Instance, name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.ready[id]
	return r != nil && r.runtime == inst.ID() && r.names[name]
}

// readiness returns which services of a runtime were seen to be ready, for setReady.
// Of what is not watched nothing will be noted: the sandbox may have ended meanwhile.
func (b *Board) readiness(id string, inst runtime.Instance) *readiness {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.ready[id]
	if r != nil && r.runtime == inst.ID() {
		return r
	}
	r = &readiness{inst.ID(), map[string]bool{}}
	if w := b.watchers[id]; w != nil && w.runtime == inst.ID() {
		b.ready[id] = r
	}
	return r
}

// setReady notes that a service was seen to be ready, unless all that was seen has
// been forgotten since seen was asked for.
func (b *Board) setReady(id string, seen *readiness, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready[id] == seen {
		seen.names[name] = true
	}
}

func (b *Board) forget(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ready, id)
}
