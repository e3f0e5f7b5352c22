package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/service"
)

// stage is a Starter whose processes do what a test tells them to.
type stage struct {
	mu      sync.Mutex
	pid     int
	running map[string]*actor
	starts  []string // with the time since the beginning
	began   time.Time
	// act is what a process does; it runs in a goroutine of its own. Nil waits until
	// the process is stopped.
	act map[string]func(a *actor) error
	err map[string]error // of Start
}

func newStage() *stage {
	return &stage{running: map[string]*actor{}, act: map[string]func(*actor) error{}, err: map[string]error{}, began: time.Now()}
}

// actor is a process.
type actor struct {
	pid     int
	out     io.Writer
	stopped chan struct{}
	killed  chan struct{}
	done    chan struct{}
	err     error
	once    [2]sync.Once
}

func (a *actor) PID() int              { return a.pid }
func (a *actor) Done() <-chan struct{} { return a.done }
func (a *actor) Err() error            { return a.err }

func (a *actor) Stop(kill bool) {
	a.once[0].Do(func() { close(a.stopped) })
	if kill {
		a.once[1].Do(func() { close(a.killed) })
	}
}

func (s *stage) Start(spec service.Service, out io.Writer) (Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starts = append(s.starts, fmt.Sprintf("%s@%v", spec.Name, time.Since(s.began)))
	if err := s.err[spec.Name]; err != nil {
		return nil, err
	}
	if a := s.running[spec.Name]; a != nil && spec.Shell != "check" {
		select {
		case <-a.done:
		default:
			return nil, errors.New("it runs already")
		}
	}
	s.pid++
	a := &actor{pid: s.pid, out: out, stopped: make(chan struct{}), killed: make(chan struct{}), done: make(chan struct{})}
	act := s.act[spec.Name]
	if spec.Shell == "check" {
		act = s.act["check"]
	} else {
		s.running[spec.Name] = a
	}
	if act == nil {
		act = func(a *actor) error { <-a.stopped; return errors.New("signal: terminated") }
	}
	go func() {
		a.err = act(a)
		close(a.done)
	}()
	return a, nil
}

// began returns the starts so far, and forgets them.
func (s *stage) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := strings.Join(s.starts, " ")
	s.starts = nil
	return list
}

func named(name string, change ...func(*service.Service)) service.Service {
	s := service.Service{Name: name, Shell: "serve"}.WithDefaults()
	for _, c := range change {
		c(&s)
	}
	return s
}

func always(s *service.Service) { s.Restart = service.Always }
func never(s *service.Service)  { s.Restart = service.Never }

func after(names ...string) func(*service.Service) {
	return func(s *service.Service) { s.After = names }
}

// inBubble runs a test on virtual time, and ends what it has started.
func inBubble(t *testing.T, test func(t *testing.T, s *stage, m *Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		m := New(s)
		test(t, s, m)
		m.Apply(nil)
		time.Sleep(time.Hour) // all that is left ends, or the bubble says what does not
	})
}

func states(m *Manager) string {
	var list []string
	for _, s := range m.Report(0).Services {
		list = append(list, s.Name+"="+string(s.State))
	}
	return strings.Join(list, " ")
}

func wants(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got  %s\nwant %s", what, got, want)
	}
}

// TestBackoff holds how a service that keeps ending is started again: ever later, up
// to its cap, and soon again once it has been ready for a while.
func TestBackoff(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage, m *Manager) {
		var lives atomic.Int64
		s.act["web"] = func(a *actor) error {
			select {
			case <-time.After(time.Duration(lives.Load())):
			case <-a.stopped:
			}
			return errors.New("exit status 3")
		}
		m.Apply([]service.Service{named("web", func(s *service.Service) { s.MaxBackoff = 10 * time.Second })})
		time.Sleep(40*time.Second + time.Millisecond)
		wants(t, "starts", s.taken(), "web@0s web@1s web@3s web@7s web@15s web@25s web@35s")
		wants(t, "states", states(m), "web=backing-off")
		status := m.Report(0).Services[0]
		if status.LastEnd != "exit status 3" || status.Failures != 7 || status.Starts != 7 || status.PID != 0 || !status.NextAt.Equal(s.began.Add(45*time.Second)) {
			t.Errorf("status %+v", status)
		}
		lives.Store(int64(settling + steady))
		time.Sleep(30 * time.Second)
		wants(t, "starts after it was steady", s.taken(), "web@45s web@57s web@1m9s")
	})
}

// TestRestartPolicies holds what follows an end, by the policy.
func TestRestartPolicies(t *testing.T) {
	for _, c := range []struct {
		policy service.Restart
		end    error
		state  string
		starts int
	}{
		{service.Always, nil, "web=backing-off", 2},
		{service.Always, errors.New("exit status 1"), "web=backing-off", 2},
		{service.OnFailure, nil, "web=done", 1},
		{service.OnFailure, errors.New("exit status 1"), "web=backing-off", 2},
		{service.Never, nil, "web=done", 1},
		{service.Never, errors.New("exit status 1"), "web=failed", 1},
	} {
		t.Run(fmt.Sprintf("%s after %v", c.policy, c.end), func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *stage, m *Manager) {
				s.act["web"] = func(*actor) error { return c.end }
				m.Apply([]service.Service{named("web", func(s *service.Service) { s.Restart = c.policy })})
				time.Sleep(2 * time.Second)
				wants(t, "state", states(m), c.state)
				if n := m.Report(0).Services[0].Starts; n != c.starts {
					t.Errorf("%d starts, want %d", n, c.starts)
				}
				if !m.Restart("web") {
					t.Error("it cannot be started again")
				}
				synctest.Wait()
				if n := m.Report(0).Services[0].Starts; n != c.starts+1 {
					t.Errorf("%d starts after one that was asked for, want %d", n, c.starts+1)
				}
			})
		})
	}
}

// TestOrder holds that a service starts when the ones are ready that it starts after.
func TestOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage, m *Manager) {
		ready := make(chan struct{})
		s.act["check"] = func(*actor) error {
			select {
			case <-ready:
				return nil
			default:
				return errors.New("exit status 1")
			}
		}
		m.Apply([]service.Service{
			named("web", after("cache", "db")), named("cache"), named("once", never, after("web")),
			named("db", func(s *service.Service) { s.Ready.Check, s.Ready.Command = service.CheckCommand, "check" }),
		})
		time.Sleep(5 * time.Second)
		wants(t, "states", states(m), "web=waiting cache=ready once=waiting db=starting")
		if got := m.Report(0).Services[0].WaitsFor; got != "db, which is starting" {
			t.Errorf("it waits for %q", got)
		}
		close(ready)
		time.Sleep(5 * time.Second)
		wants(t, "states", states(m), "web=ready cache=ready once=ready db=ready")
		var order []string
		for _, start := range strings.Fields(s.taken()) {
			if name, _, _ := strings.Cut(start, "@"); name != "db" && name != "cache" {
				order = append(order, name)
			}
		}
		wants(t, "order", strings.Join(order, " "), "web once")
	})
}

// TestNotReadyInTime holds that a service is ended that is not ready in time, and
// started again.
func TestNotReadyInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage, m *Manager) {
		s.act["check"] = func(*actor) error { return errors.New("exit status 1") }
		// It also does not end when asked.
		s.act["web"] = func(a *actor) error { <-a.killed; return errors.New("signal: killed") }
		m.Apply([]service.Service{named("web", always, func(s *service.Service) {
			s.Ready = service.Ready{Check: service.CheckCommand, Command: "check", Timeout: 5 * time.Second, Interval: time.Second}
		})})
		time.Sleep(6 * time.Second)
		wants(t, "state", states(m), "web=stopping")
		time.Sleep(stopGrace + 500*time.Millisecond)
		wants(t, "state", states(m), "web=starting")
		if end := m.Report(0).Services[0].LastEnd; !strings.Contains(end, "not ready in time") || !strings.Contains(end, "exit status 1") {
			t.Errorf("it ended of %q", end)
		}
	})
}

// TestReadyHTTP holds what counts as an answer of a service that is ready.
func TestReadyHTTP(t *testing.T) {
	for status, want := range map[int]bool{200: true, 204: true, 302: true, 404: false, 503: false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				t.Errorf("asked for %s", r.URL)
			}
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(status)
		}))
		u := &unit{spec: named("web")}
		u.spec.Port = server.Listener.Addr().(*net.TCPAddr).Port
		u.spec.Ready.Check, u.spec.Ready.Path = service.CheckHTTP, "/healthz"
		if err := u.try(t.Context()); (err == nil) != want {
			t.Errorf("after %d: %v", status, err)
		}
		server.Close()
		u.spec.Ready.Check = service.CheckPort
		if err := u.try(t.Context()); err == nil {
			t.Error("a port is ready that nobody listens on")
		}
	}
}

// TestApply holds that what has not changed goes on, and that a successor starts
// when its predecessor has ended.
func TestApply(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage, m *Manager) {
		s.act["slow"] = func(a *actor) error {
			<-a.stopped
			time.Sleep(3 * time.Second)
			return nil
		}
		m.Apply([]service.Service{named("web"), named("slow"), named("old")})
		time.Sleep(2 * time.Second)
		wants(t, "states", states(m), "web=ready slow=ready old=ready")
		web := s.running["web"]
		s.taken()
		m.Apply([]service.Service{named("web"), named("slow", always), named("new")})
		time.Sleep(900 * time.Millisecond)
		wants(t, "starts", s.taken(), "new@2s")
		wants(t, "states", states(m), "web=ready slow=waiting new=starting")
		time.Sleep(3 * time.Second)
		wants(t, "starts", s.taken(), "slow@5s")
		if s.running["web"] != web {
			t.Error("what had not changed was started again")
		}
		select {
		case <-s.running["old"].done:
		default:
			t.Error("what was taken off the list runs on")
		}
		// One that comes back waits for what is left of it.
		m.Apply(nil)
		m.Apply([]service.Service{named("slow")})
		time.Sleep(2 * time.Second)
		wants(t, "starts", s.taken(), "")
		time.Sleep(2 * time.Second)
		wants(t, "starts", s.taken(), "slow@8.9s")
	})
}

// TestAwait holds for how long a request waits for a service.
func TestAwait(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage, m *Manager) {
		crashes := 1
		s.act["web"] = func(a *actor) error {
			if crashes--; crashes >= 0 {
				return errors.New("exit status 1")
			}
			<-a.stopped
			return nil
		}
		s.act["bad"] = func(*actor) error { return errors.New("exit status 1") }
		s.act["check"] = func(*actor) error { return nil }
		s.act["gone"] = s.act["bad"]
		m.Apply([]service.Service{named("web", func(s *service.Service) {
			s.Ready = service.Ready{Check: service.CheckCommand, Command: "check", Timeout: time.Minute, Interval: time.Second}
		}), named("bad"), named("gone", never), named("stuck", after("bad"))})
		for name, want := range map[string]service.State{"web": service.IsReady, "gone": service.Failed} {
			if status, ok := m.Await(t.Context(), name); !ok || status.State != want {
				t.Errorf("%s: %+v, %t", name, status, ok)
			}
		}
		time.Sleep(time.Minute)
		began := time.Now()
		if status, _ := m.Await(t.Context(), "bad"); status.State != service.BackingOff || time.Since(began) > 0 {
			t.Errorf("after %s of waiting for one that keeps ending: %+v", time.Since(began), status)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if status, ok := m.Await(ctx, "stuck"); !ok || status.State != service.Waiting || time.Since(began) != 5*time.Second {
			t.Errorf("after %s: %+v, %t", time.Since(began), status, ok)
		}
		if _, ok := m.Await(t.Context(), "unknown"); ok {
			t.Error("an unknown service is there")
		}
	})
}

// TestAwaitAfterRestart: from the moment that a service is started again, nothing
// that it was before counts.
func TestAwaitAfterRestart(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage, m *Manager) {
		var ends atomic.Bool
		ends.Store(true)
		s.act["gone"] = func(a *actor) error {
			if ends.Load() {
				return errors.New("exit status 1")
			}
			<-a.stopped
			return nil
		}
		s.act["bad"] = s.act["gone"]
		m.Apply([]service.Service{named("web"), named("gone", never), named("bad")})
		time.Sleep(time.Minute)
		wants(t, "states", states(m), "web=ready gone=failed bad=backing-off")
		ends.Store(false)
		for _, name := range []string{"web", "gone", "bad"} {
			before, _ := m.Await(t.Context(), name)
			m.Restart(name)
			if status, _ := m.Await(t.Context(), name); status.State != service.IsReady || status.Starts != before.Starts+1 {
				t.Errorf("%s was %+v, and after a restart it is %+v", name, before, status)
			}
		}
	})
}

// TestEvents holds that what happens is told of, and that a service that ends all
// day does not fill the event log.
func TestEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage, m *Manager) {
		s.act["bad"] = func(*actor) error { return errors.New("exit status 1\x1b[31m") }
		m.Apply([]service.Service{named("bad")})
		time.Sleep(500 * time.Millisecond)
		var got []string
		for _, e := range m.Report(0).Events {
			got = append(got, string(e.Type)+" "+e.Detail)
		}
		want := []string{"started ", "crashed exit status 1?[31m", "backing_off it is started again in 1s, after 1 failures in a row"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		time.Sleep(24 * time.Hour)
		r := m.Report(0)
		if n := len(r.Events); n > 60 {
			t.Errorf("%d events of a day of failures", n)
		}
		last := r.Events[len(r.Events)-1]
		if again := m.Report(last.Seq).Events; len(again) != 0 {
			t.Errorf("after the last: %v", again)
		}
	})
}

// TestLogIsBounded holds what is kept of what a service writes.
func TestLogIsBounded(t *testing.T) {
	l := &log{}
	fmt.Fprint(l, "one\ntwo\npart")
	fmt.Fprint(l, "ial\n\n")
	var got []string
	for _, line := range l.after(0, service.MaxLines) {
		got = append(got, line.Text)
	}
	if want := []string{"one", "two", "partial", ""}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if tail := l.after(1, 2); len(tail) != 2 || tail[0].Text != "partial" {
		t.Errorf("the last two are %v", tail)
	}
	for range 100 {
		fmt.Fprint(l, strings.Repeat("x", 3*service.MaxLine+1))
		for range 300 {
			fmt.Fprintln(l, "y")
		}
		lines, bytes := l.after(0, 1<<30), 0
		for _, line := range lines {
			if len(line.Text) > service.MaxLine {
				t.Fatalf("a line of %d bytes", len(line.Text))
			}
			bytes += len(line.Text)
		}
		if len(lines) > service.MaxLines || bytes > service.MaxLogBytes || bytes != l.bytes {
			t.Fatalf("%d lines of %d bytes, counted as %d", len(lines), bytes, l.bytes)
		}
	}
}
