package interpreter

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// localHost runs kernels as children of the test, with the host's programs.
type localHost struct {
	t            *testing.T
	dir          string
	hidden       string   // a program that is said not to be there
	jupyter      []string // where Jupyter's kernels are
	python       string   // another than the one in PATH
	noInterrupts bool     // by a signal
	stops        atomic.Int32
	copies       atomic.Int64
}

func (h *localHost) Environment() (map[string]string, error) {
	// A shell that is hung up on would write its history where HOME was.
	return map[string]string{"PATH": os.Getenv("PATH"), "HOME": h.dir, "GLOBAL": "global", "HISTFILE": "/dev/null"}, nil
}

func (h *localHost) Look(program string) (string, bool) {
	if program == "python3" && h.python != "" {
		return h.python, true
	}
	path, err := exec.LookPath(program)
	return path, err == nil && program != h.hidden
}

func (h *localHost) JupyterDirs() []string { return h.jupyter }

func (h *localHost) Copies() int64 { return h.copies.Load() }

func (h *localHost) Start(c Command) (Process, error) {
	file := filepath.Join(h.dir, c.FileName)
	if err := os.WriteFile(file, c.File, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(c.Path)
	for _, arg := range c.Args {
		cmd.Args = append(cmd.Args, strings.ReplaceAll(arg, FilePath, file))
	}
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Dir = c.Dir
	if c.Dir == defaultDir {
		cmd.Dir = h.dir
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = c.Files[0], c.Files[1], c.Files[2], c.Files[3:]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &localProcess{host: h, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
	}()
	return p, nil
}

type localProcess struct {
	host *localHost
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *localProcess) signal(sig syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

func (p *localProcess) Interrupt() {
	if !p.host.noInterrupts {
		p.signal(syscall.SIGINT)
	}
}
func (p *localProcess) Kill()                 { p.signal(syscall.SIGKILL) }
func (p *localProcess) Stop()                 { p.host.stops.Add(1); p.signal(syscall.SIGSTOP) }
func (p *localProcess) Continue()             { p.signal(syscall.SIGCONT) }
func (p *localProcess) Done() <-chan struct{} { return p.done }
func (p *localProcess) Status() string        { <-p.done; return p.cmd.ProcessState.String() }

// interpreterServer is a Server behind a real listener.
type interpreterServer struct {
	t    *testing.T
	host *localHost
	url  string
	log  *logs
}

// newServer returns a Server whose kernels are our own.
func newServer(t *testing.T) *interpreterServer {
	t.Helper()
	host := &localHost{t: t, dir: t.TempDir()}
	log := &logs{}
	server := New(host, log.add)
	listener := httptest.NewServer(server)
	t.Cleanup(func() {
		server.Close()
		listener.Close()
	})
	return &interpreterServer{t, host, listener.URL, log}
}

// newJupyterServer returns one whose kernels are Jupyter's.
func newJupyterServer(t *testing.T) *interpreterServer {
	t.Helper()
	s := newServer(t)
	s.host.jupyter = []string{filepath.Join(installed(t), "share/jupyter/kernels")}
	return s
}

// installed returns where script/kernels has installed what is tested with.
func installed(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(cmp.Or(os.Getenv("DROWSE_TEST_CACHE"), "/var/tmp/drowse-test-cache"), "kernels")
	if _, err := os.Stat(filepath.Join(dir, "installed")); err != nil {
		t.Fatalf("Jupyter's kernels are not installed: run script/kernels (%v)", err)
	}
	return dir
}

// withEach runs a test with our own kernels, and again with Jupyter's.
func withEach(t *testing.T, test func(*testing.T, *interpreterServer)) {
	for name, server := range map[string]func(*testing.T) *interpreterServer{"own": newServer, "jupyter": newJupyterServer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // much of it is waiting
			test(t, server(t))
		})
	}
}

// logs is what was logged.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.text, format+"\n", args...)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// call makes a request and returns the status and the body.
func (s *interpreterServer) call(method, path string, body any) (int, string) {
	s.t.Helper()
	res := s.send(context.Background(), method, path, body)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(data))
}

func (s *interpreterServer) send(ctx context.Context, method, path string, body any) *http.Response {
	s.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	if text, ok := body.(string); ok {
		data = []byte(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(data))
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

type object map[string]any

// waitLimit bounds every wait of a test: a machine that is busy is no failure.
var waitLimit = testmode.Scaled(2 * time.Minute)

// start begins an execution and returns its messages; the channel is closed at
// the end of the stream.
func (s *interpreterServer) start(ctx context.Context, body object) <-chan object {
	s.t.Helper()
	res := s.send(ctx, http.MethodPost, "/execute", body)
	if res.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(res.Body)
		res.Body.Close()
		s.t.Fatalf("execute %v: %s: %s", body, res.Status, data)
	}
	messages := make(chan object, 10000)
	go func() {
		defer close(messages)
		defer res.Body.Close()
		lines := bufio.NewReaderSize(res.Body, 1<<20)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			m := object{}
			if err := json.Unmarshal(line, &m); err != nil {
				s.t.Errorf("line %q: %v", line, err)
				return
			}
			messages <- m
		}
	}()
	return messages
}

// next waits for one message.
func (s *interpreterServer) next(messages <-chan object) object {
	s.t.Helper()
	select {
	case m, ok := <-messages:
		if !ok {
			s.t.Fatal("the stream has ended")
		}
		return m
	case <-time.After(waitLimit):
		s.t.Fatal("no message")
	}
	return nil
}

// outcome is what a cell did.
type outcome struct {
	count          int
	stdout, stderr []string
	main           object   // the value of the cell
	results        []object // all of them
	errors         []object
	types          []string // of all messages but keepalives, in order
}

func (o outcome) text() any { return o.main["text"] }

func (s *interpreterServer) collect(messages <-chan object) outcome {
	s.t.Helper()
	var o outcome
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); {
		m := s.next(messages)
		kind := m["type"].(string)
		if kind == typeKeepalive {
			continue
		}
		o.types = append(o.types, kind)
		switch kind {
		case typeCount:
			o.count = int(m["execution_count"].(float64))
		case typeStdout:
			o.stdout = append(o.stdout, m["text"].(string))
		case typeStderr:
			o.stderr = append(o.stderr, m["text"].(string))
		case typeError:
			o.errors = append(o.errors, m)
		case typeResult:
			o.results = append(o.results, m)
			if m["is_main_result"] == true {
				o.main = m
			}
		case typeEnd:
			return o
		}
	}
	s.t.Fatalf("the cell did not end; it sent %v", o.types)
	return o
}

// run runs a cell in the default context of a language.
func (s *interpreterServer) run(language, code string) outcome {
	s.t.Helper()
	return s.collect(s.start(context.Background(), object{"code": code, "language": language}))
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %#v, want %#v", what, got, want)
	}
}

// failingCell is a cell that fails, and how. A value that is not said may be any.
type failingCell struct{ name, code, kind, value, traceback string }

// wantFailures runs cells that fail, and one that does not after them. traceback
// compares a traceback with what is wanted of it.
func (s *interpreterServer) wantFailures(language string, cells []failingCell, traceback func(got, want string) bool) {
	t := s.t
	t.Helper()
	for _, c := range cells {
		o := s.run(language, c.code)
		if len(o.errors) != 1 {
			t.Errorf("%s: %d errors", c.name, len(o.errors))
			continue
		}
		e := o.errors[0]
		equal(t, c.name+": name", e["name"], any(c.kind))
		if c.value != "" {
			equal(t, c.name+": value", e["value"], any(c.value))
		}
		if got := e["traceback"].(string); !traceback(got, c.traceback) {
			t.Errorf("%s: traceback:\n%s", c.name, got)
		}
	}
	equal(t, "after all errors", s.run(language, "'alive'").text(), any("alive"))
}

// shellCell is a cell of Bash: what it prints, and the value of its error.
type shellCell struct{ name, code, stdout, failed string }

func (s *interpreterServer) wantShell(cells []shellCell) {
	t := s.t
	t.Helper()
	for _, c := range cells {
		o := s.run("bash", c.code)
		equal(t, c.name+": stdout", strings.Join(o.stdout, ""), c.stdout)
		failed := ""
		if len(o.errors) > 0 {
			failed = o.errors[0]["value"].(string)
		}
		equal(t, c.name+": error", failed, c.failed)
	}
}
