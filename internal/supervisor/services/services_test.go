package services

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
)

// one is a sandbox that sleeps.
type one struct {
	mu sync.Mutex
	sb store.Sandbox
}

func newOne(list ...service.Service) *one {
	return &one{sb: store.Sandbox{ID: "i1", Config: store.Config{Services: list}, Record: lifecycle.Record{State: lifecycle.Paused}}}
}

func (o *one) Find(context.Context, string) (store.Sandbox, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sb, nil
}

func (o *one) Get(ctx context.Context, id string) (store.Sandbox, error) { return o.Find(ctx, id) }

func (o *one) Patch(_ context.Context, _ string, p fields.Patch, _ string) (store.Sandbox, error) {
	time.Sleep(time.Millisecond) // for another to come between
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sb.Config = p.On(o.sb.Config)
	o.sb.Record.Settings.Serves = *p.Settings.Serves
	return o.sb, nil
}

func (o *one) names() (list []string) {
	for _, s := range o.sb.Config.Services {
		list = append(list, s.Name)
	}
	return list
}

func serving(name string) service.Service {
	return service.Service{Name: name, Shell: "serve"}.WithDefaults()
}

func TestChanges(t *testing.T) {
	o := newOne()
	b := New(t.Context(), o, agentclient.Host{}, 1, nil)
	web := serving("web")
	web.Port, web.Resume = 8000, true
	if err := b.SetServices(t.Context(), "i1", []service.Service{web, serving("db")}, ""); err != nil || !o.sb.Record.Settings.Serves {
		t.Fatalf("%v; it serves: %t", err, o.sb.Record.Settings.Serves)
	}
	web.Resume = false
	if err := b.SetService(t.Context(), "i1", web, ""); err != nil || o.sb.Record.Settings.Serves || !slices.Equal(o.names(), []string{"web", "db"}) {
		t.Errorf("%v; %v", err, o.names())
	}
	if err := b.RemoveService(t.Context(), "i1", "other", ""); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("removing one that is not there: %v", err)
	}
	worker := serving("worker")
	worker.After = []string{"db"}
	if err := b.SetService(t.Context(), "i1", worker, ""); err != nil {
		t.Error(err)
	}
	if err := b.RemoveService(t.Context(), "i1", "db", ""); !errdef.Is(err, errdef.Invalid) {
		t.Errorf("removing one that another starts after: %v", err)
	}
	if err := b.SetServices(t.Context(), "i1", nil, ""); err != nil || len(o.names()) != 0 {
		t.Errorf("%v; %v", err, o.names())
	}
	for what, err := range map[string]error{
		"restart": b.RestartService(t.Context(), "i1", "web"),
		"log":     func() error { _, err := b.ServiceLog(t.Context(), "i1", "web", 0, 1); return err }(),
	} {
		if !errdef.Is(err, errdef.NotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestChangesAtOnce: of changes at the same time none is lost.
func TestChangesAtOnce(t *testing.T) {
	o := newOne()
	b := New(t.Context(), o, agentclient.Host{}, 1, nil)
	var all sync.WaitGroup
	for i := range service.Most {
		all.Go(func() {
			if err := b.SetService(t.Context(), "i1", serving(string(rune('a'+i))), ""); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(o.names()); n != service.Most || len(b.changes) != 0 {
		t.Errorf("%d services, %d turns", n, len(b.changes))
	}
	err := b.SetService(t.Context(), "i1", serving("more"), "")
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "field_too_large" {
		t.Errorf("one too many: %v", err)
	}
}

// running is a runtime whose agent is a server of the test.
type running struct {
	runtime.Instance
	agent string
}

func (r running) ID() string              { return "i1-1" }
func (r running) Exited() <-chan struct{} { return nil }
func (r running) Dial(ctx context.Context, _ int) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", r.agent)
}

// TestReadyBeforeARestart: a service that an agent called ready before it was
// started again is not taken to be.
func TestReadyBeforeARestart(t *testing.T) {
	asked, answer := make(chan bool), make(chan bool)
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == agentapi.PathServiceReady {
			asked <- true
			<-answer
			_ = json.NewEncoder(w).Encode(service.Status{Name: "web", State: service.IsReady})
		}
	}))
	defer agent.Close()
	inst := running{agent: agent.Listener.Addr().String()}
	o := newOne(serving("web"))
	b := New(t.Context(), o, agentclient.Host{Secret: func(string) string { return "secret" }}, 1, func(string) (runtime.Instance, func(lifecycle.Entry) error) { return inst, nil })
	b.watchers["i1"] = &watcher{runtime: inst.ID()}
	for _, restart := range []bool{true, false} {
		waited := make(chan error)
		go func() { waited <- b.await(t.Context(), "i1", inst, "web") }()
		<-asked
		if restart {
			if err := b.RestartService(t.Context(), "i1", "web"); err != nil {
				t.Fatal(err)
			}
		}
		answer <- true
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
		if ready := b.isReady("i1", inst, "web"); ready == restart {
			t.Errorf("with a restart in between (%t) it is taken to be ready: %t", restart, ready)
		}
	}
}

// silent is a runtime whose agent takes questions and does not answer them.
type silent struct {
	runtime.Instance
	id string
}

func (s silent) ID() string { return s.id }

func (s silent) Exited() <-chan struct{} { return nil }

func (s silent) Dial(context.Context, int) (net.Conn, error) {
	here, there := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, there) }()
	return here, nil
}

// TestRequestsThatWaitForAService are bounded for each sandbox: at a public port of a
// service that never gets ready, outsiders made as many as they liked.
func TestRequestsThatWaitForAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 20
		b := New(t.Context(), newOne(), agentclient.Host{Secret: func(string) string { return "s" }}, most, nil)
		web := serving("web")
		web.Port = 8000
		list := []service.Service{web}
		ctx, cancel := context.WithCancel(t.Context())
		enter := func(ctx context.Context, id string) error {
			return b.Gate(id, silent{id: id + "-1"}, list, 8000, "/")(ctx)
		}
		ended := make(chan error, most)
		for range most {
			go func() { ended <- enter(ctx, "i1") }()
		}
		synctest.Wait()
		if n := len(ended); n > 0 {
			t.Fatalf("%d requests did not wait: %v", n, <-ended)
		}
		err := enter(ctx, "i1")
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "wake_queue_full" {
			t.Errorf("one too many: %v", err)
		}
		soon, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		err = enter(soon, "i2")
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "service_not_ready" {
			t.Errorf("at another sandbox: %v, want that it waited", err)
		}
		cancel()
		for range most {
			<-ended
		}
		if len(b.waiting) != 0 {
			t.Errorf("%v are counted after the last has gone", b.waiting)
		}
	})
}

// TestNothingIsKeptOfSandboxesThatEnded, whether they ran or slept.
func TestNothingIsKeptOfSandboxesThatEnded(t *testing.T) {
	b := New(t.Context(), newOne(), agentclient.Host{}, 1, nil)
	inst := silent{id: "i1-1"}
	b.watchers["i1"] = &watcher{runtime: inst.id}
	b.setReady("i1", b.readiness("i1", inst), "web")
	if !b.isReady("i1", inst, "web") {
		t.Error("a service that is ready is not known to be")
	}
	b.EndServices("i1")
	b.setReady("i1", b.readiness("i1", inst), "web") // a request that waited until the end
	if n := b.Noted(); n != 0 || len(b.ready) != 0 {
		t.Errorf("kept: %v, %v", b.watchers, b.ready)
	}
}

// TestEvents holds what gets into the event log of what an agent says: each event
// once, also over a boot, and not more than a sandbox may have.
func TestEvents(t *testing.T) {
	b := New(t.Context(), newOne(), agentclient.Host{}, 1, nil)
	now := time.Now()
	w := &watcher{entries: mostEntries, refill: now, begun: now.Add(-settled)}
	guest := now.Add(-24 * time.Hour) // by its clock
	report := func(life string, after, last int64) service.Report {
		r := service.Report{Now: guest, Life: life}
		for seq := after + 1; seq <= last; seq++ {
			r.Events = append(r.Events, service.Event{Seq: seq, At: guest, Service: "web", Type: service.EventCrashed, Detail: "exit status 1"})
		}
		return r
	}
	got := func(r service.Report) (n int, again bool) {
		t.Helper()
		entries, again := b.fresh(r, w, now)
		for _, e := range entries {
			if e.Type != lifecycle.EntryServiceCrashed || e.Detail != "web: exit status 1" || !e.At.Equal(now.UTC().Truncate(time.Microsecond)) {
				t.Errorf("entry %+v", e)
			}
		}
		return len(entries), again
	}
	for i, c := range []struct {
		report service.Report
		want   int
		again  bool
	}{
		{report("a", 0, 3), 3, false},
		{report("a", 0, 3), 0, false},
		{report("a", 3, 5), 2, false},
		{report("b", 5, 9), 0, true}, // it booted: what it was asked for is not all
		{report("b", 0, 9), 9, false},
		{service.Report{Now: guest, Life: "b", Events: []service.Event{
			{Seq: 10, At: guest.Add(-time.Hour), Service: "web", Type: service.EventCrashed, Detail: "exit status 1"}, // before this server watched
			{Seq: 11, At: guest, Service: "web", Type: "invented"},
		}}, 0, false},
		{report("b", 11, 1000), mostEntries - 14, false},
	} {
		if n, again := got(c.report); n != c.want || again != c.again {
			t.Errorf("report %d: %d entries, again %t; want %d, %t", i, n, again, c.want, c.again)
		}
	}
	now = now.Add(2 * refill)
	if n, _ := got(report("b", 1000, 2000)); n != 2 {
		t.Errorf("%d entries after time for 2", n)
	}
}

// TestStatus holds that the times of a guest are those of the host's clock, or none.
func TestStatus(t *testing.T) {
	now := time.Now()
	report := service.Report{Now: now.Add(-time.Hour), Services: []service.Status{
		{Name: "web", Since: now.Add(-time.Hour - time.Minute), NextAt: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), StartedAt: time.Unix(0, 0)},
	}}
	s := statusOf(report, "web")
	if off := s.Since.Sub(now.Add(-time.Minute)).Abs(); off > time.Minute/2 || !s.NextAt.IsZero() || !s.StartedAt.IsZero() || !s.ReadyAt.IsZero() {
		t.Errorf("got %+v", s)
	}
	if statusOf(report, "other") != nil {
		t.Error("there is a status of no service")
	}
}
