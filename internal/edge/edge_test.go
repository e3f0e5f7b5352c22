package edge

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// fleet is one sandbox "ione" behind the Sandboxes interface, with a real
// server as each of its ports.
type fleet struct {
	upstream *httptest.Server
	dial     func(context.Context) (net.Conn, error) // to another server than upstream
	wait     func(context.Context) error             // before Acquire answers
	granted  func(*supervisor.Lease)                 // told of what Acquire answers

	mu       sync.Mutex
	sb       store.Sandbox
	cut      chan struct{}
	why      error // of the cut
	err      error // that Acquire returns
	acquired []supervisor.Access
	released int
}

var putToSleep = errdef.New(errdef.Unavailable, "put_to_sleep", "the sandbox was put to sleep").WithRemedy("wake it")

func newFleet(t *testing.T, h http.HandlerFunc) *fleet {
	f := &fleet{upstream: httptest.NewServer(h), cut: make(chan struct{}), why: putToSleep}
	t.Cleanup(f.upstream.Close)
	f.sb = store.Sandbox{ID: "ione", Config: store.Config{Secure: true}, Record: lifecycle.Record{State: lifecycle.Running, Generation: 1}}
	return f
}

const openPort = 8000

func (f *fleet) Acquire(ctx context.Context, _ string, a supervisor.Access) (*supervisor.Lease, error) {
	if f.wait != nil {
		if err := f.wait(ctx); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	f.acquired = append(f.acquired, a)
	var once sync.Once
	lease := &supervisor.Lease{
		Generation: 1, Cut: f.cut, Why: func() error { return f.why }, Progress: func(int) {}, Streams: func() {},
		Dial: func(ctx context.Context, port int) (net.Conn, error) {
			if port != openPort && port != agentapi.Port && port != agentapi.CodePort {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			if f.dial != nil {
				return f.dial(ctx)
			}
			return f.dialUpstream(ctx)
		},
		Release: func() { once.Do(func() { f.mu.Lock(); defer f.mu.Unlock(); f.released++ }) },
	}
	if f.granted != nil {
		f.granted(lease)
	}
	return lease, nil
}

func (f *fleet) dialUpstream(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", f.upstream.Listener.Addr().String())
}

func (f *fleet) Admission(id string) (leases.Admission, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id != f.sb.ID {
		return leases.Admission{}, errdef.New(errdef.NotFound, "sandbox_not_found", "no")
	}
	return leases.AdmissionTo(&f.sb), nil
}

func (f *fleet) List(context.Context) ([]store.Sandbox, error) { return []store.Sandbox{f.sb}, nil }
func (f *fleet) EnvdToken(string) string                       { return "envd-token" }
func (f *fleet) TrafficToken(string) string                    { return "traffic-token" }

func (f *fleet) CheckPreview(_ context.Context, id string, port int, token string) error {
	if token != fmt.Sprintf("preview-%s-%d", id, port) {
		return errdef.New(errdef.Forbidden, "preview_invalid", "no")
	}
	return nil
}

// seen returns the accesses so far and how many were given back.
func (f *fleet) seen() (acquired []supervisor.Access, released int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.acquired), f.released
}

func (f *fleet) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fleet) serve(t *testing.T) string {
	return f.serveWith(t, Options{})
}

// serveWith serves the sandbox with what o says beside it.
func (f *fleet) serveWith(t *testing.T, o Options) string {
	o.Sandboxes, o.Domain = f, "example.test"
	if o.Log == nil {
		o.Log = discardLog
	}
	if o.Control == nil {
		o.Control = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "control %s", r.URL.Path) })
	}
	return f.run(t, NewServer(o))
}

var discardLog = slog.New(slog.DiscardHandler)

// run serves until the test's end.
func (f *fleet) run(t *testing.T, s *Server) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // whatever is open is broken off
		_ = s.Shutdown(ctx)
		ln.Close()
		<-done
	})
	return "http://" + ln.Addr().String()
}

var escape = url.QueryEscape

// ask sends a request to the sandbox by headers.
func ask(t *testing.T, url, path string, port int, change func(*http.Request)) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(headerSandbox, "ione")
	req.Header.Set(headerPort, fmt.Sprint(port))
	if change != nil {
		change(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Seen-Host", r.Host)
	w.Header().Set("X-Seen-Forwarded", r.Header.Get("X-Forwarded-For"))
	fmt.Fprintf(w, "%s %s", r.Method, r.RequestURI)
}

func TestRoutes(t *testing.T) {
	for _, c := range []struct {
		host    string
		headers map[string]string
		path    string
		mine    bool
		want    target
		err     string
	}{
		{host: "8000-ione.sbx.test", mine: true, want: target{id: "ione", port: 8000, path: "/"}},
		{host: "8000-IONE.sbx.test:443", mine: true, want: target{id: "ione", port: 8000, path: "/"}},
		{host: "8000-ione-extra-parts.sbx.test", mine: true, want: target{id: "ione", port: 8000, path: "/"}},
		{host: "8000-ione.sbx.test", headers: map[string]string{headerSandbox: "itwo", headerPort: "1"}, mine: true, want: target{id: "ione", port: 8000, path: "/"}},
		{host: "api.sbx.test", mine: false},
		{host: "sbx.test", mine: false},
		{host: "8000-ione", mine: false},
		{host: "99999-ione.sbx.test", mine: true, err: "Invalid sandbox port"},
		{host: "0-ione.sbx.test", mine: true, err: "Invalid sandbox port"},
		{host: "8000-i_one.sbx.test", mine: true, err: "Invalid sandbox ID"},
		{host: "8000-.sbx.test", mine: true, err: "Invalid sandbox ID"},
		{host: "127.0.0.1:3000", mine: false},
		{host: "[::1]:3000", mine: false},
		{host: "localhost:3000", headers: map[string]string{headerSandbox: "ione", headerPort: "8000"}, mine: true, want: target{id: "ione", port: 8000, path: "/"}},
		{host: "[::1]:3000", headers: map[string]string{headerSandbox: "ione", headerPort: "8000"}, mine: true, want: target{id: "ione", port: 8000, path: "/"}},
		{host: "sandbox.sbx.test", headers: map[string]string{headerSandbox: "ione", headerPort: "8000"}, mine: true, want: target{id: "ione", port: 8000, path: "/"}},
		{host: "127.0.0.1", headers: map[string]string{headerSandbox: "ione"}, mine: true, err: "missing header"},
		{host: "127.0.0.1", headers: map[string]string{headerPort: "8000"}, mine: true, err: "missing header"},
		{host: "127.0.0.1", headers: map[string]string{headerSandbox: "ione", headerPort: "http"}, mine: true, err: "Invalid sandbox port"},
		{host: "127.0.0.1", headers: map[string]string{headerSandbox: "../etc", headerPort: "80"}, mine: true, err: "Invalid sandbox ID"},
		{host: "api.sbx.test", headers: map[string]string{headerSandbox: "ione", headerPort: "8000"}, mine: false},
		{host: "127.0.0.1", path: "/files?path=x&signature=v1_x", mine: true},
		{host: "127.0.0.1", path: "/files?path=x", mine: false},
		{host: "127.0.0.1", path: "/s/ione/8000/a%2Fb?c=d", mine: true, want: target{id: "ione", port: 8000, prefix: "/s/ione/8000", path: "/a%2Fb?c=d"}},
		{host: "example.test", path: "/s/ione/8000", mine: true, want: target{id: "ione", port: 8000, prefix: "/s/ione/8000", path: "/"}},
		{host: "127.0.0.1", path: "/s/ione?x", mine: true, err: "Invalid sandbox port"},
		{host: "127.0.0.1", path: "/s/../8000/", mine: true, err: "Invalid sandbox ID"},
		{host: "127.0.0.1", path: "/s/ione/8000/x", headers: map[string]string{headerSandbox: "itwo", headerPort: "1"}, mine: true, want: target{id: "itwo", port: 1, path: "/s/ione/8000/x"}},
		{host: "127.0.0.1", headers: map[string]string{"Novita-Sandbox-Id": "ione", "Novita-Sandbox-Port": "8000"}, mine: true, want: target{id: "ione", port: 8000, path: "/"}},
		{host: "127.0.0.1", headers: map[string]string{"Novita-Sandbox-Id": "ione"}, mine: true, err: "missing header: both Novita-Sandbox-Id"},
		{host: "127.0.0.1", headers: map[string]string{"Novita-Sandbox-Id": "ione", headerPort: "8000"}, mine: true, err: "missing header: both E2b-Sandbox-Id"},
		{host: "127.0.0.1", headers: map[string]string{"Novita-Sandbox-Id": "ione", "Novita-Sandbox-Port": "1", headerSandbox: "itwo", headerPort: "2"}, mine: true, want: target{id: "itwo", port: 2, path: "/"}},
		{host: "127.0.0.1", path: "/sandboxes/ione/connect", headers: map[string]string{"Novita-Sandbox-Id": "ione", "Novita-Sandbox-Port": "49983", headerAPIKey: "e2b_1"}, mine: false},
		{host: "127.0.0.1", headers: map[string]string{headerSandbox: "ione", headerPort: "8000", headerAPIKey: "e2b_1"}, mine: true, want: target{id: "ione", port: 8000, path: "/"}},
		{host: "api.sbx.test", headers: map[string]string{"Novita-Sandbox-Id": "ione", "Novita-Sandbox-Port": "8000"}, mine: false},
		{host: "127.0.0.1", path: "/health", headers: map[string]string{agentapi.HeaderAccessToken: "x"}, mine: true},
		{host: "127.0.0.1", path: "/files?path=x", headers: map[string]string{agentapi.HeaderAccessToken: "x"}, mine: true},
		{host: "127.0.0.1", path: "/process.Process/List", headers: map[string]string{agentapi.HeaderAccessToken: "x"}, mine: true},
		{host: "127.0.0.1", path: "/health", mine: false},
		{host: "127.0.0.1", path: "/health", headers: map[string]string{agentapi.HeaderAccessToken: "x", headerAPIKey: "e2b_1"}, mine: false},
		{host: "127.0.0.1", path: "/sandboxes", headers: map[string]string{agentapi.HeaderAccessToken: "x"}, mine: false},
		{host: "api.sbx.test", path: "/health", headers: map[string]string{agentapi.HeaderAccessToken: "x"}, mine: false},
		{host: "1-ithree.sbx.test", path: "/s/ione/8000/x", mine: true, want: target{id: "ithree", port: 1, path: "/s/ione/8000/x"}},
	} {
		t.Run(c.host+c.path, func(t *testing.T) {
			h := http.Header{}
			for k, v := range c.headers {
				h.Set(k, v)
			}
			r := &request{method: http.MethodGet, host: c.host, target: cmp.Or(c.path, "/"), header: header2{h}}
			if got := routes(r); got != c.mine {
				t.Errorf("Routes = %v, want %v", got, c.mine)
			}
			if !c.mine || r.way.find == nil {
				return
			}
			got, err := r.way.find(r, hostName(r.host))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("target %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestForwardsUnchanged(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	for _, path := range []string{"/", "/a//b/../c", "/a%2Fb?x=1;y=2&z=%zz", "/?q=a+b", "/%E4%BD%A0"} {
		resp := ask(t, url, path, openPort, func(r *http.Request) {
			r.Host = "localhost"
			r.Header.Set("X-Forwarded-For", "203.0.113.7")
		})
		if got, want := body(t, resp), "GET "+path; got != want {
			t.Errorf("the sandbox saw %q, want %q", got, want)
		}
		if h := resp.Header.Get("X-Seen-Host"); h != "localhost" {
			t.Errorf("it saw host %q", h)
		}
		if got := resp.Header.Get("X-Seen-Forwarded"); got != "203.0.113.7" {
			t.Errorf("it saw X-Forwarded-For %q", got)
		}
	}
	f.wantReleased(t)
}

func TestStreamsBothWays(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		in := bufio.NewScanner(r.Body)
		for in.Scan() { // each line is answered before the next is sent
			fmt.Fprintln(w, "got", in.Text())
			_ = rc.Flush()
		}
	})
	pr, pw := io.Pipe()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, f.serve(t)+"/", pr)
	req.Header.Set(headerSandbox, "ione")
	req.Header.Set(headerPort, fmt.Sprint(openPort))
	go fmt.Fprintln(pw, "line 0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out := bufio.NewScanner(resp.Body)
	for i := range 5 {
		if !out.Scan() || out.Text() != fmt.Sprintf("got line %d", i) {
			t.Fatalf("answer %d: %q, %v", i, out.Text(), out.Err())
		}
		fmt.Fprintf(pw, "line %d\n", i+1)
	}
	pw.Close()
}

// wantReleased waits for every lease to be given back: a client has its answer
// a little before.
func (f *fleet) wantReleased(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(testmode.Patience()); ; time.Sleep(time.Millisecond) {
		acquired, released := f.seen()
		if released == len(acquired) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d leases of %d released", released, len(acquired))
		}
	}
}

// TestAnswerBeforeTheBodyIsRead holds that a connection is never taken back
// while its last body is still being read.
func TestAnswerBeforeTheBodyIsRead(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	url := f.serve(t)
	for i := range 50 {
		size := i * i * 100
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/", io.LimitReader(zeros{}, int64(size)))
		req.Header.Set(headerSandbox, "ione")
		req.Header.Set(headerPort, fmt.Sprint(openPort))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue // the connection may break while the rest is sent
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent {
			t.Errorf("body of %d bytes: status %d", size, resp.StatusCode)
		}
	}
	f.wantReleased(t)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func wantJSON(t *testing.T, resp *http.Response, status int, message string) reply {
	t.Helper()
	var got reply
	if err := json.Unmarshal([]byte(body(t, resp)), &got); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != status || got.Code != status || !strings.Contains(got.Message, message) {
		t.Errorf("answer %d %+v, want %d %q", resp.StatusCode, got, status, message)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "application/json; charset=utf-8" {
		t.Errorf("content type %q", ct)
	}
	return got
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*http.Request)
		err     error
		status  int
		message string
		wait    string // Retry-After
		logged  string // its level
	}{
		{name: "unknown", change: func(r *http.Request) { r.Header.Set(headerSandbox, "inone") }, status: 502, message: "The sandbox was not found"},
		{name: "asleep for good", err: errdef.New(errdef.WrongState, "not_resumable", "x").WithRemedy("wake it"), status: 502, message: "The sandbox was not found running, because it is asleep: x: wake it"},
		{name: "ended meanwhile", err: errdef.New(errdef.NotFound, "sandbox_terminated", "x"), status: 502, message: "The sandbox was not found"},
		{name: "does not wake", err: errdef.New(errdef.Unavailable, "resume_failed", "it did not wake"), status: 503, message: "it did not wake", wait: "1", logged: "WARN"},
		{name: "damaged", err: errdef.New(errdef.Unavailable, "checkpoint_damaged", "it is damaged"), status: 503, message: "it is damaged", logged: "WARN"},
		{name: "no sandbox starts here", err: errdef.New(errdef.Unfit, "no_nftables", "no nftables"), status: 501, message: "no nftables", logged: "ERROR"},
		{name: "another process has the server", err: store.ErrFenced("one"), status: 503, message: "another process", wait: "1", logged: "WARN"},
		{name: "no room", err: errdef.New(errdef.Exhausted, "too_many_sandboxes", "too many"), status: 429, message: "too many", wait: "1"},
		{name: "closed port", change: func(r *http.Request) { r.Header.Set(headerPort, "9") }, status: 502, message: "The sandbox is running but port is not open"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t, echo)
			f.err = c.err
			log := make(lines, 10)
			resp := ask(t, f.serveWith(t, Options{Log: slog.New(slog.NewJSONHandler(log, nil))}), "/", openPort, c.change)
			wantJSON(t, resp, c.status, c.message)
			if wait := resp.Header.Get("Retry-After"); wait != c.wait {
				t.Errorf("Retry-After %q, want %q", wait, c.wait)
			}
			var line struct{ Level string }
			select {
			case text := <-log:
				if err := json.Unmarshal(text, &line); err != nil {
					t.Fatal(err)
				}
			default: // it is logged before it is answered
			}
			if line.Level != c.logged {
				t.Errorf("logged as %q, want %q", line.Level, c.logged)
			}
		})
	}
}

// TestASleeperSaysSinceWhen holds that the 502 of a sandbox that sleeps has what
// put it to sleep, and when.
func TestASleeperSaysSinceWhen(t *testing.T) {
	f := newFleet(t, echo)
	f.err = errdef.New(errdef.WrongState, "not_resumable", "x").WithRemedy("wake it").
		With("reason", lifecycle.CauseIdle).With("pausedAt", "2026-09-01T12:00:00.000000Z")
	var got struct {
		ErrorCode string `json:"error_code"`
		Reason    string `json:"reason"`
		PausedAt  string `json:"pausedAt"`
		EndedAt   string `json:"endedAt"`
		Remedy    string `json:"remedy"`
	}
	resp := ask(t, f.serve(t), "/", openPort, nil)
	if err := json.Unmarshal([]byte(body(t, resp)), &got); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 502 || got.ErrorCode != "not_resumable" || got.Reason != "idle" || got.PausedAt != "2026-09-01T12:00:00.000000Z" || got.EndedAt != "" || got.Remedy != "wake it" {
		t.Errorf("%s %+v", resp.Status, got)
	}
}

func TestBrowsersGetAPage(t *testing.T) {
	const firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
	f := newFleet(t, echo)
	f.err = errdef.New(errdef.NotFound, "x", "<script>")
	url := f.serve(t)
	for name, c := range map[string]struct {
		headers map[string]string
		page    bool
	}{
		"navigation":    {map[string]string{"User-Agent": firefox, "Accept": "text/html"}, true},
		"fetch":         {map[string]string{"User-Agent": firefox, "Sec-Fetch-Mode": "cors"}, false},
		"wants json":    {map[string]string{"User-Agent": firefox, "Accept": "application/json"}, false},
		"xhr":           {map[string]string{"User-Agent": firefox, "X-Requested-With": "XMLHttpRequest"}, false},
		"another agent": {map[string]string{"User-Agent": "curl/8"}, false},
	} {
		resp := ask(t, url, "/", openPort, func(r *http.Request) {
			for k, v := range c.headers {
				r.Header.Set(k, v)
			}
		})
		got := body(t, resp)
		if page := strings.HasPrefix(got, "<!doctype html>"); page != c.page || resp.StatusCode != 502 || strings.Contains(got, "<script>") {
			t.Errorf("%s: page %v, status %d", name, page, resp.StatusCode)
		}
	}
}

func TestReservedPathsStayInside(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	for _, path := range []string{"/init", "/init/", "//init", "/x/../init", "/freeze", "/fsthaw", "/upgrade", "/drowse/activity", "/drowse", "/./drowse/holds"} {
		resp := ask(t, url, path, agentapi.Port, nil)
		wantJSON(t, resp, http.StatusNotFound, "reserved")
	}
	if acquired, _ := f.seen(); len(acquired) > 0 {
		t.Error("a reserved path reached the sandbox")
	}
	// On the user's own ports they mean nothing.
	if resp := ask(t, url, "/init", openPort, nil); resp.StatusCode != http.StatusOK {
		t.Errorf("/init on a user port: %d", resp.StatusCode)
	}
}

func TestCredentialsBeforeWake(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	f.set(func() {
		f.sb.Record.State = lifecycle.Paused
		f.sb.Record.Settings.AutoResume = true
		f.sb.Config.PrivatePorts = true
	})
	for _, c := range []struct {
		port          int
		header, value string
		status        int
	}{
		{agentapi.Port, "", "", 403},
		{agentapi.Port, agentapi.HeaderAccessToken, "wrong", 403},
		{agentapi.Port, agentapi.HeaderAccessToken, "envd-token", 200},
		{openPort, "", "", 403},
		{openPort, headerTraffic, "wrong", 403},
		{openPort, headerTraffic, "traffic-token", 200},
	} {
		before, _ := f.seen()
		resp := ask(t, url, "/", c.port, func(r *http.Request) {
			if c.header != "" {
				r.Header.Set(c.header, c.value)
			}
		})
		if resp.StatusCode != c.status {
			t.Errorf("port %d, %s %q: status %d, want %d", c.port, c.header, c.value, resp.StatusCode, c.status)
		}
		after, _ := f.seen()
		if reached := len(after) > len(before); reached != (c.status == 200) {
			t.Errorf("port %d, %s %q: reached the sandbox %v", c.port, c.header, c.value, reached)
		}
	}
}

// TestEntrances: what an entrance does not let in neither wakes a sandbox nor
// reaches it, by whichever way and protocol it comes.
func TestEntrances(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	digest := sha256.Sum256([]byte("key"))
	f.set(func() {
		f.sb.Record.State = lifecycle.Paused
		f.sb.Record.Settings.AutoResume = true
		f.sb.Config.Entrances = []service.Entrance{{Name: "web", Port: openPort, Runtime: service.Command, Public: true, Routes: []service.Route{
			{ID: "open", Path: "/open", Methods: []string{"GET"}},
			{ID: "guarded", Path: "/open/x", Guard: service.Guard{Header: "X-Key", SHA256: hex.EncodeToString(digest[:])}},
		}}}
	})
	check := func(path, method, header, value string, status int, word string) {
		t.Helper()
		for _, at := range []string{path, "/s/ione/" + strconv.Itoa(openPort) + path} {
			before, _ := f.seen()
			resp := ask(t, url, at, openPort, func(r *http.Request) {
				r.Method = method
				if strings.HasPrefix(at, "/s/") {
					r.Header.Del(headerSandbox)
					r.Header.Del(headerPort)
				}
				if header != "" {
					r.Header.Set(header, value)
				}
			})
			body, _ := io.ReadAll(resp.Body)
			after, _ := f.seen()
			if resp.StatusCode != status || (len(after) > len(before)) != (status == 200) || status != 200 && !strings.Contains(string(body), word) {
				t.Errorf("%s %s with %s %q: status %d, want %d; %d accesses; %s", method, at, header, value, resp.StatusCode, status, len(after)-len(before), body)
			}
		}
	}
	check("/open", "GET", "", "", 200, "")
	check("/open/y?path=/open/x", "GET", "", "", 200, "")
	check("/other", "GET", "", "", 404, "no route")
	check("/other?x=/open", "GET", "", "", 404, "no route")
	check("/open", "POST", "", "", 405, "takes GET")
	check("/open/x", "GET", "", "", 401, "X-Key")
	check("/open/%78", "GET", "X-Key", "wrong", 401, "X-Key")
	check("/open/x", "GET", "X-Key", "key", 200, "")
	check("/open/../other", "GET", "", "", 400, "two ways")
	check("/open/x", "GET", headerTraffic, "traffic-token", 401, "X-Key")
	check("/other", "GET", "X-Access-Token", "preview-ione-8000", 404, "no route")
	// One that is not public is for whoever has the sandbox's token, or a link.
	f.set(func() { f.sb.Config.Entrances[0].Public = false })
	check("/open", "GET", "", "", 403, "traffic access token")
	check("/open", "GET", headerTraffic, "wrong", 403, "invalid")
	check("/other", "POST", headerTraffic, "traffic-token", 200, "")
	check("/open?drowse_preview=preview-ione-8000", "GET", "", "", 200, "")
	// With public traffic forbidden a route opens nothing.
	f.set(func() { f.sb.Config.Entrances[0].Public, f.sb.Config.PrivatePorts = true, true })
	check("/open", "GET", "", "", 403, "traffic access token")
	check("/open", "GET", headerTraffic, "traffic-token", 200, "")
	check("/other", "GET", headerTraffic, "traffic-token", 404, "no route")
}

// TestCodeBeforeWake: nobody wakes a secured sandbox with code that it will not
// run. What else clients of the code interpreter ask for has no token.
func TestCodeBeforeWake(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	f.set(func() {
		f.sb.Record.State = lifecycle.Paused
		f.sb.Record.Settings.AutoResume = true
	})
	for _, c := range []struct {
		path, token string
		refused     bool
	}{
		{agentapi.PathCode, "", true},
		{agentapi.PathCode, "wrong", true},
		{"/./%65xecute", "", true},
		{agentapi.PathCode, "envd-token", false},
		{"/contexts", "", false},
	} {
		resp := ask(t, url, c.path, agentapi.CodePort, func(r *http.Request) {
			r.Method = http.MethodPost
			if c.token != "" {
				r.Header.Set(agentapi.HeaderAccessToken, c.token)
			}
		})
		if refused := resp.StatusCode == http.StatusForbidden; refused != c.refused {
			t.Errorf("%s with token %q: status %d, want it refused: %v", c.path, c.token, resp.StatusCode, c.refused)
		}
	}
}

func TestSignedURLFindsItsSandbox(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	good := agentapi.Sign("/a b", agentapi.OperationRead, "user", "envd-token", nil)
	for sig, status := range map[string]int{good: 200, "v1_wrong": 400} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/files", nil)
		q := req.URL.Query()
		q.Set("path", "/a b")
		q.Set("username", "user")
		q.Set("signature", sig)
		req.URL.RawQuery = q.Encode()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("signature %s: status %d, want %d", sig, resp.StatusCode, status)
		}
	}
}

// TestTokenFindsItsSandbox: Novita's Python SDK names a sandbox that it connected
// to by its access token alone.
func TestTokenFindsItsSandbox(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	send := func(token string) (status int, body string) {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/health", nil)
		req.Header.Set(agentapi.HeaderAccessToken, token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	if status, body := send("envd-token"); status != http.StatusOK || body != "GET /health" {
		t.Errorf("the right token: %d %s", status, body)
	}
	if status, body := send("wrong"); status != http.StatusBadGateway || !strings.Contains(body, `"The sandbox was not found"`) {
		t.Errorf("a wrong token: %d %s", status, body)
	}
	// Once it has ended, its client learns that it has, and not that the token is wrong.
	f.set(func() { f.sb.ID = "itwo" })
	if status, body := send("envd-token"); status != http.StatusBadGateway || !strings.Contains(body, `"sandboxId":"ione"`) {
		t.Errorf("after its end: %d %s", status, body)
	}
}

// TestAKeyOpensTheAgent: CubeSandbox's client sends its API key to the agent, and
// no access token where it has code run. The key does not get inside.
func TestAKeyOpensTheAgent(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q %q", r.Header.Values(agentapi.HeaderAccessToken), r.Header.Values(headerAPIKey))
	})
	f.sb.Record.Settings.AutoResume, f.sb.Config.Key = true, "kone"
	url := f.serveWith(t, Options{MayUse: func(key, owner string) bool { return key == "good" && owner == "kone" }})
	http2 := &http.Transport{Protocols: new(http.Protocols)}
	http2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(http2.CloseIdleConnections)
	for _, c := range []struct {
		port       int
		key, token string
		inside     string // the tokens and the keys that the sandbox sees
		wakes      bool
	}{
		{agentapi.Port, "good", "", `["envd-token"] []`, true},
		{agentapi.CodePort, "good", "", `["envd-token"] []`, true},
		{agentapi.CodePort, "bad", "", `[] ["bad"]`, false},
		{agentapi.Port, "good", "mine", `["mine"] ["good"]`, false},
		{openPort, "good", "", `[] ["good"]`, true},
	} {
		for _, state := range []lifecycle.State{lifecycle.Running, lifecycle.Paused} {
			for name, transport := range map[string]http.RoundTripper{"HTTP/1.1": http.DefaultTransport, "HTTP/2": http2} {
				f.set(func() { f.sb.Record.State = state })
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url+agentapi.PathCode, nil)
				req.Header.Set(headerSandbox, "ione")
				req.Header.Set(headerPort, fmt.Sprint(c.port))
				req.Header.Set(headerAPIKey, c.key)
				if c.token != "" {
					req.Header.Set(agentapi.HeaderAccessToken, c.token)
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				got := body(t, resp)
				resp.Body.Close()
				if state == lifecycle.Paused && !c.wakes {
					if resp.StatusCode != http.StatusForbidden {
						t.Errorf("%s: port %d, key %q, token %q: woken, %d %s", name, c.port, c.key, c.token, resp.StatusCode, got)
					}
				} else if got != c.inside {
					t.Errorf("%s: port %d, key %q, token %q: inside there is %s, want %s", name, c.port, c.key, c.token, got, c.inside)
				}
			}
		}
	}
}

// TestCutBreaksOff holds that a client never takes half an answer for a whole
// one.
func TestCutBreaksOff(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	resp := ask(t, f.serve(t), "/", openPort, nil)
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || line != "first\n" {
		t.Fatalf("%q, %v", line, err)
	}
	close(f.cut)
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the stream ended as if it were complete")
	}
	f.wantReleased(t)
}

// TestCutDoesNotWaitForTheClient holds that a client which sends or reads
// nothing does not keep a lease that was cut.
func TestCutDoesNotWaitForTheClient(t *testing.T) {
	endless := func(w http.ResponseWriter, _ *http.Request) {
		for chunk := make([]byte, 1<<20); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		request string
	}{
		"sends half a body":                   {echo, "Content-Length: 1000\r\n\r\nhalf"},
		"sends half a body, is answered":      {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }, "Content-Length: 1000\r\n\r\nhalf"},
		"reads nothing":                       {endless, "\r\n"},
		"reads nothing and sends half a body": {endless, "Content-Length: 1000\r\n\r\nhalf"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, c.handler)
			conn, err := net.Dial("tcp", strings.TrimPrefix(f.serve(t), "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost\r\n%s: ione\r\n%s: %d\r\n%s", headerSandbox, headerPort, openPort, c.request)
			for acquired, _ := f.seen(); len(acquired) == 0; acquired, _ = f.seen() {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(100 * time.Millisecond) // until nothing moves any more
			close(f.cut)
			f.wantReleased(t)
			_ = conn.SetReadDeadline(time.Now().Add(testmode.Patience()))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open after the cut")
			}
		})
	}
}

// TestCutIsNoFailure: a runtime can be gone before it is noticed here that its
// generation was cut. The client is then told of the cut, as it is whenever a
// request is cut, and gets no answer that blames the sandbox.
func TestCutIsNoFailure(t *testing.T) {
	for name, dialed := range map[string]func() (net.Conn, error){
		"before it is connected": func() (net.Conn, error) { return nil, os.ErrClosed },
		"after": func() (net.Conn, error) {
			near, far := net.Pipe()
			far.Close()
			return near, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, echo)
			f.dial = func(context.Context) (net.Conn, error) {
				f.set(func() { close(f.cut); f.cut = make(chan struct{}) })
				return dialed()
			}
			url := f.serve(t)
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for range 100 {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set(headerSandbox, "ione")
				req.Header.Set(headerPort, strconv.Itoa(openPort))
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				if got := body(t, resp); resp.StatusCode != http.StatusBadGateway || !strings.Contains(got, `"error_code":"put_to_sleep"`) {
					t.Fatalf("%s %s", resp.Status, got)
				}
			}
		})
	}
}

func TestWhatCountsAsActivity(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	ask(t, url, "/health", agentapi.Port, nil)
	ask(t, url, "/health", openPort, nil)
	ask(t, url, "/events", openPort, func(r *http.Request) { r.Header.Set("Accept", "text/event-stream") })
	want := []supervisor.Access{{Port: agentapi.Port, Path: "/health", Probe: true}, {Port: openPort, Path: "/health"}, {Port: openPort, Path: "/events", Stream: true}}
	if got, _ := f.seen(); !slices.Equal(got, want) {
		t.Errorf("accesses %+v, want %+v", got, want)
	}
}

func TestUpgradePassesThrough(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "echo ", line)
		rw.Flush()
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.serve(t), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: localhost\r\n%s: ione\r\n%s: %d\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", headerSandbox, headerPort, openPort)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %+v, %v", resp, err)
	}
	fmt.Fprintln(conn, "hello")
	if line, err := br.ReadString('\n'); err != nil || line != "echo hello\n" {
		t.Errorf("%q, %v", line, err)
	}
}
