package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// apiKey is every server's first key.
const apiKey = "e2b_0123456789abcdef0123456789abcdef01234567"

// Bounds that nothing in order comes near, on a quiet machine; patience is for others.
const (
	startWithin = 30 * time.Second
	stopWithin  = 30 * time.Second
	goneWithin  = 20 * time.Second // after a pause or kill, until the host shows nothing of it
	endWithin   = 20 * time.Second // of a runtime, until the record says so
	pollEvery   = 20 * time.Millisecond
)

// httpClient ignores proxies: everything is on this machine.
var httpClient = &http.Client{Transport: &http.Transport{
	MaxIdleConnsPerHost: keptConnections(),
	TLSClientConfig:     &tls.Config{RootCAs: authority().pool},
}}

// server is a drowse server with a state directory and a port of its own, or several that
// are one service.
type server struct {
	args   []string // more of its command line
	peer   []string // and what it needs as one of several
	binary string   // other than drowseBinary
	env    []string // more of its environment
	t      testing.TB
	home   string // its state directory; see dir
	cwd    string // where it is started; here if empty
	addr   string
	log    *logBuffer
	client *client.Client

	store  string // URL of its database; empty for SQLite
	cmd    *exec.Cmd
	exited chan error // has room for one; what Wait returned

	members   []*server // that it stands for; see inPlaceOfOne
	listeners []string  // addresses of each of these, and those at which clients reach them all
	balancers []*balancer

	mu  sync.Mutex
	ids []string // of all sandboxes that create made
}

// startServer starts a server and sees to it that nothing is left of it, or of
// its sandboxes, at the end of the test.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	s := inPlaceOfOne(t, args)
	if s == nil {
		s = newServer(t, stateDir(t))
	}
	s.args = args
	t.Cleanup(s.cleanUp)
	s.start()
	return s
}

// stateDir makes a state directory, and removes it at the end of the test.
func stateDir(t testing.TB) string {
	t.Helper()
	// The paths of sockets below it must be short.
	dir, err := os.MkdirTemp("", "dw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeStateDir(t, dir) })
	return dir
}

func startServerIn(t testing.TB, dir string) *server {
	t.Helper()
	s := newServer(t, dir)
	t.Cleanup(s.cleanUp)
	s.start()
	return s
}

// newServer returns a server that is not started yet. There are never several of it.
func newServer(t testing.TB, dir string) *server {
	t.Helper()
	skipWithSeveral(t, "a server that the test sets up itself")
	return serverIn(t, dir)
}

func serverIn(t testing.TB, dir string) *server {
	t.Helper()
	addr := freeAddress(t)
	c, err := client.New(client.Options{URL: "http://" + addr, APIKey: apiKey, HTTPClient: httpClient})
	if err != nil {
		t.Fatal(err)
	}
	return &server{t: t, home: dir, addr: addr, store: storeOf(t, dir), log: &logBuffer{}, client: c}
}

// addresses are those that freeAddress has returned.
var addresses sync.Map

// freeAddress returns a loopback address that nobody listens on. Nobody else
// is in this network namespace. The port is none that the kernel gives to
// clients: one that dials again and again while no server is there would, one
// day, get the server's own port and connect to itself. Nobody gets one twice: a server
// that is being started does not listen yet.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		defer ln.Close()
		addr := ln.Addr().String()
		if _, given := addresses.LoadOrStore(addr, true); !given {
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// command is the server's command line.
func (s *server) command() *exec.Cmd {
	cmd := exec.Command(cmp.Or(s.binary, drowseBinary), "serve", "--listen", s.addr, "--state-dir", s.home, "--trial=false")
	cmd.Args = slices.Concat(cmd.Args, s.peer, s.args)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "DROWSE_API_KEY=" + apiKey}, s.env...)
	if level := os.Getenv("DROWSE_LOG_LEVEL"); level != "" {
		cmd.Env = append(cmd.Env, "DROWSE_LOG_LEVEL="+level)
	}
	// So that all tests can be run with it.
	if early := os.Getenv("DROWSE_EARLY_WAKE"); early != "" {
		cmd.Env = append(cmd.Env, "DROWSE_EARLY_WAKE="+early)
	}
	if deltas := os.Getenv("DROWSE_DELTA_PAUSES"); deltas != "" {
		cmd.Env = append(cmd.Env, "DROWSE_DELTA_PAUSES="+deltas)
	}
	if s.store != "" {
		cmd.Env = append(cmd.Env, "DROWSE_STORE="+s.store)
	}
	// Most tests are about images and what is left of a runtime.
	cmd.Env = append(cmd.Env, "DROWSE_LIGHT_SLEEP="+cmp.Or(os.Getenv("DROWSE_LIGHT_SLEEP"), "0"))
	cmd.Dir = s.cwd
	cmd.Stdout, cmd.Stderr = s.log, s.log
	// The server must not outlive a test program that crashed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second // for its output
	return cmd
}

// stores are the databases of state directories, in a run of all tests with PostgreSQL.
var stores sync.Map

// storeOf returns the URL of the database of a state directory; empty for SQLite.
func storeOf(t testing.TB, dir string) string {
	if os.Getenv("DROWSE_TEST_STORE") != "postgres" {
		return ""
	}
	if url, ok := stores.Load(dir); ok {
		return url.(string)
	}
	url := pgtest.Shared(t).NewDatabase(t)
	stores.Store(dir, url)
	return url
}

// start starts the server and waits until it answers.
func (s *server) start() {
	s.t.Helper()
	if s.members != nil {
		s.startMembers()
		return
	}
	httpClient.CloseIdleConnections() // to the one before
	s.takeBase()
	begin := time.Now()
	s.cmd, s.exited = s.command(), make(chan error, 1)
	if err := startCommand(s.cmd); err != nil {
		s.t.Fatalf("start server: %v", err)
	}
	cmd, exited := s.cmd, s.exited
	go func() { exited <- cmd.Wait() }()
	for {
		if s.client.Health(s.t.Context()) == nil {
			s.t.Logf("server answers %s after its start", since(begin))
			s.keepBase()
			return
		}
		select {
		case err := <-s.exited:
			s.cmd = nil
			s.t.Fatalf("server ended while it started: %v", err)
		case <-time.After(pollEvery):
		}
		if time.Since(begin) > startWithin*patience {
			s.t.Fatalf("server does not answer within %s", startWithin*patience)
		}
	}
}

// theBase is the template base that the first server made. The others get it by
// hard links: to make it takes most of a second of a core.
var theBase struct {
	sync.Mutex
	dir  string // "" until a server has made it
	made string // where that server had it: its manifest says so
}

// usesTheBase says whether the server would make the same base as most.
func (s *server) usesTheBase() bool {
	return s.binary == "" && len(s.env) == 0 && !slices.Contains(s.args, "--share-opt")
}

func (s *server) takeBase() {
	theBase.Lock()
	defer theBase.Unlock()
	to := filepath.Join(s.home, "templates")
	if _, err := os.Lstat(to); theBase.dir == "" || !s.usesTheBase() || !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if out, err := exec.Command("cp", "-al", theBase.dir, to).CombinedOutput(); err != nil {
		// On another file system it makes its own, like the first.
		s.t.Logf("the server makes its own base: %s", out)
		_ = os.RemoveAll(to)
		return
	}
	// The manifest names the directories of the server that made the base, which go
	// with it. It is replaced, not changed: others have links to the file.
	for _, name := range glob(filepath.Join(to, "*", "template.json")) {
		data, err := os.ReadFile(name)
		if err == nil {
			data = bytes.ReplaceAll(data, []byte(theBase.made+"/"), []byte(to+"/"))
			err = errors.Join(os.Remove(name), os.WriteFile(name, data, 0o600))
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *server) keepBase() {
	theBase.Lock()
	defer theBase.Unlock()
	if theBase.dir != "" || !s.usesTheBase() || len(s.args) > 0 {
		return
	}
	to := filepath.Join(programs, "templates")
	if out, err := exec.Command("cp", "-al", filepath.Join(s.home, "templates"), to).CombinedOutput(); err != nil {
		// It is on a file system of its own; another server keeps it.
		s.t.Logf("the base is not kept: %.300s", out)
		_ = os.RemoveAll(to)
		return
	}
	theBase.dir, theBase.made = to, filepath.Join(s.home, "templates")
}

// spawner starts commands from one thread that never ends: the kernel sends
// the parent-death signal when the thread ends that started the child.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func startCommand(cmd *exec.Cmd) error {
	done := make(chan error)
	spawner() <- func() { done <- cmd.Start() }
	return <-done
}

// stop ends the server in order and returns how it ended.
func (s *server) stop() error {
	s.t.Helper()
	return s.signal(syscall.SIGTERM)
}

// crash ends the server as a power cut would.
func (s *server) crash() {
	s.t.Helper()
	var exit *exec.ExitError
	if err := s.signal(syscall.SIGKILL); !errors.As(err, &exit) {
		s.t.Fatalf("server ended with %v, want killed", err)
	}
}

func (s *server) signal(sig syscall.Signal) error {
	s.t.Helper()
	for _, m := range s.each() {
		if err := m.cmd.Process.Signal(sig); err != nil {
			s.t.Fatalf("signal server: %v", err)
		}
	}
	httpClient.CloseIdleConnections()
	late := time.After(stopWithin * patience)
	var ended error
	for _, m := range s.each() {
		select {
		case err := <-m.exited:
			m.cmd = nil
			ended = cmp.Or(err, ended)
		case <-late:
			s.t.Fatalf("server still runs %s after %s", stopWithin*patience, sig)
		}
	}
	s.unbalance()
	return ended
}

// cleanUp kills what still lives through the server, and stops it.
func (s *server) cleanUp() {
	defer func() {
		if s.t.Failed() {
			s.t.Logf("log of the server on %s:\n%s", s.addr, s.log.tail(150))
		}
	}()
	if !s.runs() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	list, err := s.client.List(ctx, client.ListOptions{})
	if err != nil {
		s.t.Errorf("clean up: %v", err)
	}
	for _, info := range list {
		if err := s.client.Kill(ctx, info.ID); err != nil && !errors.Is(err, client.ErrNotFound) {
			s.t.Errorf("clean up: %v", err)
		}
	}
	// Snapshots live on, with the files that they need.
	snaps := client.NewSnapshots(s.client)
	kept, err := snaps.List(ctx, "")
	if err != nil {
		s.t.Errorf("clean up: %v", err)
	}
	for _, snap := range kept {
		if err := snaps.Delete(ctx, snap.ID); err != nil && !errors.Is(err, client.ErrNotFound) {
			s.t.Errorf("clean up: snapshot %s: %v", snap.ID, err)
		}
	}
	for _, id := range s.ids {
		err := poll(goneWithin, func() error { return s.left(id, true) })
		if err != nil {
			s.t.Errorf("killed sandbox %s: %v", id, err)
			for _, m := range s.each() {
				discard(m.home, id)
			}
		}
	}
	for _, m := range s.each() {
		if m.cmd != nil {
			_ = m.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	late := time.After(stopWithin * patience)
	for _, m := range s.each() {
		if m.cmd == nil {
			continue
		}
		select {
		case err := <-m.exited:
			if err != nil {
				s.t.Errorf("server ended with %v after SIGTERM", err)
			}
		case <-late:
			s.t.Errorf("server still runs %s after SIGTERM", stopWithin*patience)
			_ = m.cmd.Process.Kill()
			<-m.exited
		}
		m.cmd = nil
	}
	s.unbalance()
	httpClient.CloseIdleConnections()
}

// removeStateDir removes a state directory. What the server should have taken
// away before is taken away, and is an error.
func removeStateDir(t testing.TB, dir string) {
	if left := footprint(dir, dir); len(left) > 0 && t.Failed() {
		// It ended too early to clean up. Their list would hide why.
		t.Logf("left behind: %d things, like %s", len(left), left[0])
	} else if len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
	clear := func() error { return destroy(dir) }
	if err := clear(); err != nil {
		t.Errorf("remove %s: %v", dir, err)
	}
}

// answer is that of the control plane to a raw request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// raw makes a request to the control plane as it is told to.
func (s *server) raw(ctx context.Context, method, path string, header http.Header, body io.Reader) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, body)
	if err != nil {
		return answer{}, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, data}, err
}

// call does an API request of the E2B dialect and decodes the answer.
func (s *server) call(ctx context.Context, method, path, body string, into any) {
	s.t.Helper()
	a, err := s.raw(ctx, method, path, http.Header{"X-Api-Key": {apiKey}, "Content-Type": {"application/json"}}, strings.NewReader(body))
	if err != nil || a.status/100 != 2 {
		s.t.Fatalf("%s %s: %d %s, %v", method, path, a.status, a.body, err)
	}
	if into != nil {
		if err := json.Unmarshal(a.body, into); err != nil {
			s.t.Fatalf("%s %s: %s: %v", method, path, a.body, err)
		}
	}
}

// details returns what the control plane says of a sandbox, byte for byte.
func (s *server) details(ctx context.Context, id string) map[string]json.RawMessage {
	s.t.Helper()
	got, err := s.raw(ctx, http.MethodGet, "/sandboxes/"+id, http.Header{"X-Api-Key": {apiKey}}, nil)
	if err != nil || got.status != http.StatusOK {
		s.t.Fatalf("get sandbox %s: status %d, %v: %s", id, got.status, err, got.body)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(got.body, &fields); err != nil {
		s.t.Fatal(err)
	}
	return fields
}

// create makes a sandbox with nothing in it.
func (s *server) create(ctx context.Context, o client.CreateOptions) *client.Sandbox {
	s.t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Minute
	}
	sb, err := s.client.Create(ctx, o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.ids = append(s.ids, sb.ID)
	s.mu.Unlock()
	return sb
}

// pause pauses a sandbox and returns how long it took.
func (s *server) pause(ctx context.Context, id string) time.Duration {
	s.t.Helper()
	begin := time.Now()
	if err := s.client.Pause(ctx, id); err != nil {
		s.t.Fatal(err)
	}
	return time.Since(begin)
}

// kill ends a sandbox and returns how long that took.
func (s *server) kill(ctx context.Context, t testing.TB, id string) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := s.client.Kill(ctx, id); err != nil {
		t.Errorf("kill: %v", err)
	}
	return since(begin)
}

// connect wakes a sandbox.
func (s *server) connect(ctx context.Context, id string) {
	s.t.Helper()
	c, err := s.client.Connect(ctx, id, 10*time.Minute)
	if err != nil {
		s.t.Fatal(err)
	}
	if !c.Resumed {
		s.t.Errorf("connect to paused sandbox %s did not resume it", id)
	}
}

// run runs a command to its end and returns its output.
func run(ctx context.Context, t testing.TB, sb *client.Sandbox, args ...string) (client.Exit, string) {
	t.Helper()
	var out bytes.Buffer
	exit, err := sb.Run(ctx, client.Command{Args: args, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("run %q: %v (output so far: %s)", args, err, out.String())
	}
	return exit, out.String()
}

// metric returns the value of a metric without labels, of all servers together.
func (s *server) metric(ctx context.Context, name string) (sum float64, err error) {
	for _, m := range s.each() {
		value, err := m.ownMetric(ctx, name)
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, nil
}

func (s *server) ownMetric(ctx context.Context, name string) (value float64, err error) {
	resp, err := s.raw(ctx, http.MethodGet, "/metrics", http.Header{"X-Api-Key": {apiKey}}, nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(resp.body)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			_, err := fmt.Sscan(rest, &value)
			return value, err
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// sleepers are sandboxes that pause at their timeout and wake by traffic.
var sleeper = client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true)}

// patience is how many times longer than it is allowed something may take before
// a test gives it up. Machines are busy: tests hold that things happen, benchmarks
// how long they take.
var patience = testmode.Scaled(3)

// deadline returns a context for one test. It ends well before the go command
// would end the program, so that the test cleans up after itself.
func deadline(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	d *= patience
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, fmt.Errorf("the test took longer than %s", d))
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until check returns nil, and returns how long that took.
func eventually(t testing.TB, within time.Duration, what string, check func() error) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := poll(within, check); err != nil {
		t.Fatalf("%s: not within %s: %v", what, within*patience, err)
	}
	return time.Since(begin)
}

// poll calls check until it returns nil, and returns its last error if it does
// not within the time, stretched by patience.
func poll(within time.Duration, check func() error) error {
	within *= patience
	begin := time.Now()
	for {
		err := check()
		if err == nil || time.Since(begin) > within {
			return err
		}
		time.Sleep(pollEvery)
	}
}

func since(begin time.Time) time.Duration { return time.Since(begin).Round(time.Millisecond) }

// logBuffer keeps what a server writes.
type logBuffer struct{ testmode.Output }

// tail returns the last lines, none of them too long to read.
func (b *logBuffer) tail(lines int) string {
	all := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	all = all[max(0, len(all)-lines):]
	for i, line := range all {
		all[i] = fmt.Sprintf("%.1000s", line)
	}
	return strings.Join(all, "\n")
}

// longest returns the length of the longest line.
func (b *logBuffer) longest() int {
	longest := 0
	for line := range strings.Lines(b.String()) {
		longest = max(longest, len(line))
	}
	return longest
}

// count returns how many lines hold all of the texts.
func (b *logBuffer) count(texts ...string) int {
	n := 0
lines:
	for line := range strings.Lines(b.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		n++
	}
	return n
}

// databaseFile reports whether a file of the state directory may change at any
// time.
func databaseFile(path string) bool { return strings.HasPrefix(filepath.Base(path), "drowse.db") }
