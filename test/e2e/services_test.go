package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var serviceSleeps = flag.Int("services.sleeps", testmode.Choose(2, 4), "how often TestServices lets its sandbox sleep without memory")

// application is a web application that counts its starts in a file, and takes a
// moment to come up.
const application = `
import http.server, os, time
starts = 1
try: starts += int(open("starts").read())
except FileNotFoundError: pass
open("starts", "w").write(str(starts))
time.sleep(0.5)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{starts} {os.getpid()} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *said): print("asked for", self.path, flush=True)
print("serving", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
`

// withServices are a web application, a server of static files that starts after it,
// and a worker that starts after both.
func withServices() client.CreateOptions {
	return client.CreateOptions{
		OnTimeout: client.Pause, PauseMode: client.Filesystem, AutoResume: new(true),
		Services: []client.Service{
			{Name: "worker", Shell: `while true; do date +%N >> worked; sleep 0.1; done`, After: []string{"app", "static"}, Restart: client.RestartAlways},
			{Name: "static", Command: []string{"python3", "-m", "http.server", "8001"}, Port: 8001, After: []string{"app"}, Resume: true},
			{Name: "app", Command: []string{"python3", "-c", application}, Port: 8000, Ready: client.ReadyCheck{HTTP: "/healthz"}, Resume: true, Route: "/"},
		},
	}
}

// port returns what is answered to a request to a port of a sandbox.
func (s *server) port(ctx context.Context, id string, port int, path string) answer {
	s.t.Helper()
	a, err := s.raw(ctx, http.MethodGet, fmt.Sprintf("/s/%s/%d%s", id, port, path), nil, nil)
	if err != nil {
		s.t.Fatalf("port %d%s: %v", port, path, err)
	}
	return a
}

// TestServices lets a sandbox with services sleep without its memory, again and
// again. A request wakes it and is answered, as soon as the service is ready that it
// is for; the others come up in their order. A wake with memory starts none anew, and
// the loss of the runtime, or of the server, is no more than a sleep.
func TestServices(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute+time.Duration(*serviceSleeps)*10*time.Second)
	s := startServer(t)
	sb := s.create(ctx, withServices())
	asked := func(starts int, path string) string {
		t.Helper()
		a := s.port(ctx, sb.ID, 8000, path)
		fields := strings.Fields(string(a.body))
		if a.status != http.StatusOK || len(fields) != 3 || fields[0] != fmt.Sprint(starts) || fields[2] != path {
			t.Fatalf("start %d: %d %s", starts, a.status, a.body)
		}
		return fields[1]
	}
	pid := asked(1, "/create")
	work := s.works(ctx, sb, "")
	for n := range *serviceSleeps {
		pauseFiles(ctx, s, sb.ID)
		if a := s.port(ctx, sb.ID, 8002, "/"); a.status != http.StatusBadGateway || !strings.Contains(string(a.body), "not_resumable") {
			t.Errorf("a port of no service: %d %s", a.status, a.body)
		}
		began := time.Now()
		switch n % 3 {
		case 0:
			asked(n+2, fmt.Sprintf("/sleep/%d", n))
		case 1: // a service that starts after another
			if a := s.port(ctx, sb.ID, 8001, "/"); a.status != http.StatusOK {
				t.Fatalf("files: %d %s", a.status, a.body)
			}
		default: // a command, which needs no service
			run(ctx, t, sb, "true")
		}
		t.Logf("sleep %d: answered after %s", n, time.Since(began).Round(time.Millisecond))
		asked(n+2, "/again")
		work = s.works(ctx, sb, work)
	}
	starts := *serviceSleeps + 1

	t.Run("memory", func(t *testing.T) {
		pid = asked(starts, "/before")
		s.pause(ctx, sb.ID)
		if again := asked(starts, "/after"); again != pid {
			t.Errorf("process %s after a wake with memory, was %s", again, pid)
		}
		work = s.works(ctx, sb, work)
	})
	t.Run("server", func(t *testing.T) {
		s.crash()
		s.start()
		if again := asked(starts, "/after"); again != pid {
			t.Errorf("process %s after a crash of the server, was %s", again, pid)
		}
		pauseFiles(ctx, s, sb.ID)
		s.crash()
		s.start()
		starts++
		asked(starts, "/after")
	})
	t.Run("runtime", func(t *testing.T) {
		work = s.works(ctx, sb, work)
		if err := unix.Kill(s.process(sb.ID, "runsc-sandbox"), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, endWithin, "the fall back", func() error { return s.is(ctx, sb.ID, client.Paused) })
		a := s.port(ctx, sb.ID, 8000, "/") // what it wrote since is lost, with its count
		if a.status != http.StatusOK {
			t.Errorf("after the loss of the runtime: %d %s", a.status, a.body)
		}
	})
}

// works waits until the worker of a sandbox has worked since it had written
// something, and returns what it has written.
func (s *server) works(ctx context.Context, sb *client.Sandbox, before string) (now string) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, "work", func() error {
		list, err := client.NewServices(s.client, sb.ID).List(ctx)
		if err != nil {
			return err
		}
		for _, one := range list {
			if one.Status == nil || one.Status.State != client.ServiceReady {
				return fmt.Errorf("%s: %+v", one.Service.Name, one.Status)
			}
		}
		var status map[string]time.Time = map[string]time.Time{}
		for _, one := range list {
			status[one.Service.Name] = one.Status.StartedAt
		}
		if status["static"].Before(status["app"]) || status["worker"].Before(status["static"]) {
			return fmt.Errorf("they started in the wrong order: %v", status)
		}
		_, now = run(ctx, s.t, sb, "cat", "worked")
		if now == before {
			return errors.New("the worker has not worked")
		}
		return nil
	})
	return now
}

// TestServiceCrashes has services that keep ending, or never get ready: they are
// started again ever later, say so, keep no sandbox awake and let no request hang.
func TestServiceCrashes(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{
		OnIdle: client.Pause, IdleTimeout: 20 * time.Second,
		Services: []client.Service{
			{Name: "bad", Shell: "echo it is bad; sleep 1000 & exit 3", Port: 8000},
			{Name: "missing", Command: []string{"no-such-program"}, Restart: client.RestartNever},
			{Name: "after", Shell: "exec sleep 1000", After: []string{"bad"}},
		},
	})
	services := client.NewServices(s.client, sb.ID)
	status := func(name string) client.ServiceStatus {
		t.Helper()
		one, err := services.Get(ctx, name)
		if err != nil || one.Status == nil {
			t.Fatalf("%s: %+v, %v", name, one, err)
		}
		return *one.Status
	}
	a := s.port(ctx, sb.ID, 8000, "/")
	if a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "service_not_ready") || !strings.Contains(string(a.body), "exit status 3") {
		t.Errorf("a request to it: %d %s", a.status, a.body)
	}
	if st := status("bad"); st.State != client.ServiceBackingOff && st.State != client.ServiceStarting || st.Failures < 3 || st.LastEnd != "exit status 3" {
		t.Errorf("bad: %+v", st)
	}
	if st := status("missing"); st.State != client.ServiceFailed || !strings.Contains(st.LastEnd, "no-such-program") {
		t.Errorf("missing: %+v", st)
	}
	if st := status("after"); st.State != client.ServiceWaiting || !strings.HasPrefix(st.WaitsFor, "bad, which is ") {
		t.Errorf("after: %+v", st)
	}
	lines, err := services.Log(ctx, "bad", 0, 2)
	if err != nil || len(lines) != 2 || lines[0].Text != "it is bad" || !strings.Contains(lines[1].Text, "exit status 3") {
		t.Errorf("log %+v, %v", lines, err)
	}
	if text := s.why(ctx, sb.ID); !strings.Contains(text, "backing-off") && !strings.Contains(text, "starting") {
		t.Errorf("why says nothing of it:\n%s", text)
	}
	eventually(t, 30*time.Second, "the events", func() error {
		for kind, want := range map[string]string{"service.started": "bad", "service.crashed": "bad: exit status 3", "service.backing_off": "bad: it is started again in "} {
			list := s.entries(ctx, sb.ID, kind)
			if !slices.ContainsFunc(list, func(e client.Event) bool { return strings.HasPrefix(e.Detail, want) }) {
				return fmt.Errorf("no %s with %q among %+v", kind, want, list)
			}
		}
		return nil
	})
	// Nothing is left of what ended, and what is repaired is started at once.
	if _, out := run(ctx, t, sb, "pgrep", "-cx", "sleep"); strings.TrimSpace(out) != "0" {
		t.Errorf("%s processes are left of it", out)
	}
	if _, err := services.Set(ctx, client.Service{Name: "bad", Command: []string{"python3", "-m", "http.server", "8000"}, Port: 8000}); err != nil {
		t.Fatal(err)
	}
	if a := s.port(ctx, sb.ID, 8000, "/"); a.status != http.StatusOK {
		t.Errorf("once repaired: %d %s", a.status, a.body)
	}
	eventually(t, 30*time.Second, "what starts after it", func() error {
		if st := status("after"); st.State != client.ServiceReady {
			return fmt.Errorf("it is %+v", st)
		}
		return nil
	})
	if _, err := services.Set(ctx, client.Service{Name: "bad", Shell: "exit 1"}); err != nil {
		t.Fatal(err)
	}
	// It ends every few seconds, and that is no work.
	if x := s.explain(ctx, sb.ID); slices.ContainsFunc(x.Holds, func(h client.Hold) bool { return h.Kind == client.HoldProcess }) {
		t.Errorf("services hold it awake: %+v", x.Holds)
	}
	s.idled(ctx, sb.ID, 1)
}
