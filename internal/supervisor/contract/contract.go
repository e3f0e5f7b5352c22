// Package contract is what callers may rely on of a supervisor: the real one, the
// fake by which the dialects are tested, and the fake server by which the command
// line is. All run through it, so that a test with a fake says something about the
// server. Time is virtual.
package contract

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/events"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
)

// Sandboxes makes, shows and ends sandboxes.
type Sandboxes interface {
	Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error)
	Get(ctx context.Context, id string) (store.Sandbox, error)
	Find(ctx context.Context, id string) (store.Sandbox, error)
	List(ctx context.Context) ([]store.Sandbox, error)
	All(ctx context.Context) ([]store.Sandbox, error)
	// Made returns the sandbox that an idempotency key has made.
	Made(ctx context.Context, as store.Config) (store.Sandbox, bool, error)
	Kill(ctx context.Context, id, actor string) error
}

// Lifecycle changes their state and settings.
type Lifecycle interface {
	Pause(ctx context.Context, id string, q supervisor.PauseRequest) error
	Connect(ctx context.Context, id string, q supervisor.WakeRequest) (supervisor.Connected, error)
	Resume(ctx context.Context, id string, q supervisor.WakeRequest) (store.Sandbox, error)
	SetTimeout(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error)
	Refresh(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error)
	Patch(ctx context.Context, id string, p supervisor.Patch, actor string) (store.Sandbox, error)
}

// Holds keeps sandboxes awake, and says what does.
type Holds interface {
	Hold(ctx context.Context, id string, l lifecycle.Lease, actor string) (lifecycle.Lease, error)
	ReleaseHold(ctx context.Context, id, hold, actor string) error
	Explain(ctx context.Context, id string) (supervisor.Explanation, error)
	Outlooks(ctx context.Context, ids []string) map[string]supervisor.Explanation
}

// EventLog is the log of all sandboxes.
type EventLog interface {
	Events(ctx context.Context, sandbox string, after int64, limit int) ([]store.Event, error)
	EventsAfter(ctx context.Context, of events.Scope, after int64, limit int) (events.Page, error)
	EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]store.Event, error)
	LastEvent(ctx context.Context) (int64, error)
	Changed() <-chan struct{}
}

// Moves takes sandboxes out and in again.
type Moves interface {
	Export(ctx context.Context, id string) (*supervisor.Export, error)
	Import(ctx context.Context, r io.Reader, req supervisor.ImportRequest) (store.Sandbox, error)
}

// Previews makes links.
type Previews interface {
	CreatePreview(ctx context.Context, id string, req preview.Request) (store.Preview, string, error)
	Previews(ctx context.Context, id string) ([]store.Preview, error)
	RevokePreview(ctx context.Context, id, link, actor string) error
}

// Accounts tells what API keys use, and the tokens of sandboxes.
type Accounts interface {
	KeyUse(key string) store.Use
	EnvdToken(id string) string
	TrafficToken(id string) string
}

// Diaries is what sandboxes logged and used, up to their end.
type Diaries interface {
	SandboxLog(ctx context.Context, id string) ([]journal.Line, error)
	Samples(ctx context.Context, id string, from, to time.Time) ([]usage.Sample, error)
}

// Supervisor is all of it.
type Supervisor interface {
	Sandboxes
	Lifecycle
	Holds
	EventLog
	Moves
	Previews
	Accounts
	Diaries
}

// Server is a supervisor under test, and what belongs to it.
type Server struct {
	Supervisor
	Volumes   Volumes
	Services  Services
	Snapshots Snapshots
	Templates Templates
	// Look lets happen what has become due; nil for a supervisor that has a clock.
	Look func()
	// Reach asks for a way to a port, as a request from outside does.
	Reach func(ctx context.Context, id string, port int, path string) error
}

// world is a server under test.
type world struct {
	t *testing.T
	s Server
}

// Run runs the suite. open returns a server without sandboxes, that has a template
// of the name "base", and ends it with the test.
func Run(t *testing.T, open func(t *testing.T) Server) {
	for name, test := range map[string]func(world){
		"Create": create, "CreateRefused": createRefused, "Idempotency": idempotency, "Unknown": unknown, "Ended": ended,
		"PauseAndResume": pauseAndResume, "Timeouts": timeouts, "Patch": patch, "PatchWithConnect": patchWithConnect,
		"Holds": holds, "Events": eventLog, "Move": move, "Previews": previews, "Explain": explain,
		"Clocks": clocks, "HoldsAndClocks": holdsAndClocks, "Activity": activity, "Tombstones": tombstones, "Names": named, "Made": made, "Accounts": accounts, "Traffic": traffic,
		"Volumes": volumes, "Mounts": mounts, "Services": services, "Templates": templates,
		"TakeSnapshots": takeSnapshots, "NameSnapshots": nameSnapshots, "KeepSnapshots": keepSnapshots, "FromSnapshots": fromSnapshots, "Forks": forks, "Restores": restores,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(world{t, open(t)}) })
		})
	}
}

// sleep lets time pass, and all happen that becomes due.
func (w world) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	if w.s.Look != nil {
		w.s.Look()
	}
}

// asked is a sandbox that lives for long.
func asked() supervisor.CreateRequest {
	return supervisor.CreateRequest{
		Template: "base", Actor: "test", Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause},
		Config: store.Config{Key: "key", Metadata: map[string]string{"a": "b"}, Env: map[string]string{"A": "b"}},
	}
}

func (w world) create() store.Sandbox {
	w.t.Helper()
	return w.made(asked())
}

func (w world) made(req supervisor.CreateRequest) store.Sandbox {
	w.t.Helper()
	sb, err := w.s.Create(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return sb
}

// with makes a sandbox of these settings.
func (w world) with(s lifecycle.Settings) string {
	w.t.Helper()
	req := asked()
	req.Settings = s
	return w.made(req).ID
}

func (w world) paused() store.Sandbox {
	w.t.Helper()
	sb := w.create()
	w.pause(sb.ID)
	return w.find(sb.ID)
}

func (w world) pause(id string) {
	w.t.Helper()
	if err := w.s.Pause(w.t.Context(), id, supervisor.PauseRequest{Actor: "test"}); err != nil {
		w.t.Fatal(err)
	}
}

func (w world) find(id string) store.Sandbox {
	w.t.Helper()
	sb, err := w.s.Find(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return sb
}

// is holds the state and generation of a sandbox.
func (w world) is(id string, state lifecycle.State, generation int64) {
	w.t.Helper()
	if r := w.find(id).Record; r.State != state || r.Generation != generation || r.Op != nil {
		w.t.Errorf("it is %s in generation %d, want %s in %d", r.Situation(), r.Generation, state, generation)
	}
}

// refused holds that an error has a class and a code.
func (w world) refused(what string, err error, class errdef.Class, code string) {
	w.t.Helper()
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Class != class || e.Code != code {
		w.t.Errorf("%s: %v, want %v %s", what, describe(err), class, code)
	}
}

func describe(err error) any {
	if e, ok := errors.AsType[*errdef.Error](err); ok {
		return []any{e.Class, e.Code, e.Message}
	}
	return err
}

func (w world) ok(what string, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Errorf("%s: %v", what, err)
	}
}

// calls is every call on one sandbox.
func (w world) calls(id string) map[string]error {
	ctx := w.t.Context()
	errs := map[string]error{}
	_, errs["Get"] = w.s.Get(ctx, id)
	errs["Kill"] = w.s.Kill(ctx, id, "test")
	errs["Pause"] = w.s.Pause(ctx, id, supervisor.PauseRequest{Actor: "test"})
	_, errs["Connect"] = w.s.Connect(ctx, id, supervisor.WakeRequest{Timeout: time.Minute, Actor: "test"})
	_, errs["Resume"] = w.s.Resume(ctx, id, supervisor.WakeRequest{Timeout: time.Minute, Actor: "test"})
	_, errs["SetTimeout"] = w.s.SetTimeout(ctx, id, time.Minute, "test")
	_, errs["Refresh"] = w.s.Refresh(ctx, id, time.Minute, "test")
	_, errs["Patch"] = w.s.Patch(ctx, id, supervisor.Patch{Metadata: map[string]string{"a": "c"}}, "test")
	_, errs["Hold"] = w.s.Hold(ctx, id, lifecycle.Lease{Until: time.Now().Add(time.Hour)}, "test")
	errs["ReleaseHold"] = w.s.ReleaseHold(ctx, id, "none", "test")
	_, errs["Export"] = w.s.Export(ctx, id)
	_, _, errs["CreatePreview"] = w.s.CreatePreview(ctx, id, preview.Request{Port: 80, For: time.Hour})
	_, errs["Previews"] = w.s.Previews(ctx, id)
	_, errs["SandboxLog"] = w.s.SandboxLog(ctx, id)
	_, errs["Samples"] = w.s.Samples(ctx, id, time.Time{}, time.Now())
	errs["RevokePreview"] = w.s.RevokePreview(ctx, id, "none", "test")
	return errs
}
