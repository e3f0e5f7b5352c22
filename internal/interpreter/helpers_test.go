package interpreter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// localHost runs kernels as children of the test, with the host's programs.
type localHost struct {
	t      *testing.T
	dir    string
	hidden string // a program that is said not to be there
}

func (h *localHost) Environment() (map[string]string, error) {
	return map[string]string{"PATH": os.Getenv("PATH"), "HOME": h.dir, "GLOBAL": "global"}, nil
}

func (h *localHost) Look(program string) (string, bool) {
	path, err := exec.LookPath(program)
	return path, err == nil && program != h.hidden
}

func (h *localHost) Start(c Command) (Process, error) {
	script := filepath.Join(h.dir, c.ScriptName)
	if err := os.WriteFile(script, c.Script, 0o644); err != nil {
		return nil, err
	}
	cmd := exec.Command(c.Path, append(c.Args, script)...)
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
	p := &localProcess{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
	}()
	return p, nil
}

type localProcess struct {
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

func (p *localProcess) Interrupt()            { p.signal(syscall.SIGINT) }
func (p *localProcess) Kill()                 { p.signal(syscall.SIGKILL) }
func (p *localProcess) Done() <-chan struct{} { return p.done }
func (p *localProcess) Status() string        { <-p.done; return p.cmd.ProcessState.String() }

// interpreterServer is a Server behind a real listener.
type interpreterServer struct {
	t    *testing.T
	host *localHost
	url  string
}

func newServer(t *testing.T) *interpreterServer {
	t.Helper()
	host := &localHost{t: t, dir: t.TempDir()}
	server := New(host)
	listener := httptest.NewServer(server)
	t.Cleanup(func() {
		server.Close()
		listener.Close()
	})
	return &interpreterServer{t, host, listener.URL}
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
const waitLimit = 2 * time.Minute

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
