package fakeserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb/filesystem/filesystemconnect"
	pb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/interpreter"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

const agentPort = agentapi.Port

// shell is the command of a terminal that reads what is typed.
const shell = "/bin/bash"

// firstPTY is above any pid of the host.
const firstPTY = 5_000_000

var errNoCommand = errors.New("not found in PATH")

type cutKey struct{}

func withCut(ctx context.Context, cut <-chan struct{}) context.Context {
	return context.WithValue(ctx, cutKey{}, cut)
}

// agent is the fake of what runs inside: the process service and the files
// API. Absolute paths of files are below root.
type agent struct {
	processconnect.UnimplementedProcessHandler
	box        *box
	root, home string
	mux        *http.ServeMux
	code       *interpreter.Server
	ended      func() // called when a command has

	mu        sync.Mutex
	processes map[uint32]*process
	lastPTY   uint32
}

// process is a host process, or the fake shell of a terminal, which has none.
type process struct {
	pid    uint32
	name   string
	since  time.Time
	user   string
	tty    bool
	events chan *pb.ProcessEvent // closed after the end
	gone   chan struct{}         // closed when nobody listens any more

	mu    sync.Mutex
	stdin io.WriteCloser
	size  *pb.PTY_Size
	line  []byte
}

func newAgent(b *box, root, home string, ended func()) *agent {
	a := &agent{box: b, root: root, home: home, mux: http.NewServeMux(), ended: ended, processes: map[uint32]*process{}, lastPTY: firstPTY}
	path, h := processconnect.NewProcessHandler(a)
	a.mux.Handle(path, h)
	a.mux.Handle(filesystemconnect.NewFilesystemHandler(files{agent: a}))
	a.mux.HandleFunc("GET /files", a.download)
	a.mux.HandleFunc("POST /files", a.upload)
	a.code = interpreter.New(kernels{a}, func(string, ...any) {})
	return a
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(agentapi.HeaderAccessToken) != a.box.token {
		answer(w, http.StatusUnauthorized, map[string]any{"code": 401, "message": "the access token is missing or wrong"})
		return
	}
	a.mux.ServeHTTP(w, r)
}

// holds returns a hold for every command.
func (a *agent) holds() []awake.Hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []awake.Hold
	for pid, p := range a.processes {
		list = append(list, awake.Hold{
			ID: fmt.Sprintf("process-%d", pid), Kind: awake.HoldProcess, Detail: p.name, Since: p.since, LastProgress: p.since, Counts: true,
		})
	}
	return list
}

// signalAll signals the process groups of all commands.
func (a *agent) signalAll(sig syscall.Signal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for pid := range a.processes {
		a.signalLocked(pid, sig)
	}
}

// signal signals the process group of a command, if it is still there.
func (a *agent) signal(pid uint32, sig syscall.Signal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.signalLocked(pid, sig)
}

func (a *agent) signalLocked(pid uint32, sig syscall.Signal) {
	if p := a.processes[pid]; p != nil && !p.tty {
		_ = syscall.Kill(-int(pid), sig)
	}
}

func (a *agent) path(r *http.Request) string { return a.place(r.URL.Query().Get("path")) }

// place returns where on the host a path of the sandbox is.
func (a *agent) place(p string) string {
	if filepath.IsAbs(p) {
		return filepath.Join(a.root, filepath.Clean(p))
	}
	return filepath.Join(a.home, filepath.Clean("/"+p))
}

func (a *agent) download(w http.ResponseWriter, r *http.Request) {
	info, err := os.Stat(a.path(r))
	switch {
	case err != nil:
		answer(w, http.StatusNotFound, map[string]any{"code": 404, "message": "path '" + r.URL.Query().Get("path") + "' does not exist"})
	case info.IsDir():
		answer(w, http.StatusBadRequest, map[string]any{"code": 400, "message": "path '" + r.URL.Query().Get("path") + "' is a directory"})
	default:
		http.ServeFile(w, r, a.path(r))
	}
}

func (a *agent) upload(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Type") != "application/octet-stream" {
		answer(w, http.StatusBadRequest, map[string]any{"code": 400, "message": "want octets"})
		return
	}
	path := a.path(r)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		var body []byte
		if body, err = io.ReadAll(r.Body); err == nil {
			err = os.WriteFile(path, body, 0o644)
		}
	}
	if err != nil {
		answer(w, http.StatusInternalServerError, map[string]any{"code": 500, "message": err.Error()})
		return
	}
	answer(w, http.StatusOK, []map[string]any{{"name": filepath.Base(path), "path": path, "type": "file"}})
}

func (a *agent) Start(ctx context.Context, req *connect.Request[pb.StartRequest], stream *connect.ServerStream[pb.StartResponse]) error {
	user := "user"
	r := http.Request{Header: req.Header()}
	if name, _, ok := r.BasicAuth(); ok {
		user = name
	}
	if user != "user" && user != "root" {
		return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("user '%s' does not exist", user))
	}
	p, err := a.spawn(req.Msg, user)
	if err != nil {
		refused := connect.NewError(connect.CodeInvalidArgument, err)
		switch {
		case errors.Is(err, errNoCommand):
			refused.Meta().Set(agentapi.HeaderStart, agentapi.StartNotFound)
		case errors.Is(err, os.ErrPermission):
			refused.Meta().Set(agentapi.HeaderStart, agentapi.StartNotExecutable)
		}
		return refused
	}
	if p.tty && req.Header().Get(agentapi.HeaderHangUp) == "" {
		return follow(ctx, p, stream.Send) // it stays
	}
	defer close(p.gone)
	// The deadline is the process's, whether or not the client stays.
	if deadline, ok := ctx.Deadline(); ok {
		time.AfterFunc(time.Until(deadline), func() { a.signal(p.pid, syscall.SIGKILL) })
	}
	return follow(ctx, p, stream.Send)
}

// Connect takes up a terminal, whose client must have left.
func (a *agent) Connect(ctx context.Context, req *connect.Request[pb.ConnectRequest], stream *connect.ServerStream[pb.ConnectResponse]) error {
	p, err := a.find(req.Msg.GetProcess())
	if err != nil {
		return err
	}
	return follow(ctx, p, func(r *pb.StartResponse) error { return stream.Send(&pb.ConnectResponse{Event: r.GetEvent()}) })
}

func (a *agent) List(context.Context, *connect.Request[pb.ListRequest]) (*connect.Response[pb.ListResponse], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	res := connect.NewResponse(&pb.ListResponse{})
	var terminals []string
	for _, pid := range slices.Sorted(maps.Keys(a.processes)) {
		p := a.processes[pid]
		res.Msg.Processes = append(res.Msg.Processes, &pb.ProcessInfo{Pid: pid, Config: &pb.ProcessConfig{Cmd: p.name}})
		if p.tty {
			terminals = append(terminals, fmt.Sprint(pid))
		}
	}
	res.Header().Set(agentapi.HeaderTerminals, strings.Join(terminals, " "))
	return res, nil
}

func follow(ctx context.Context, p *process, send func(*pb.StartResponse) error) error {
	start := &pb.ProcessEvent{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: p.pid}}}
	if err := send(&pb.StartResponse{Event: start}); err != nil {
		return err
	}
	cut, _ := ctx.Value(cutKey{}).(<-chan struct{})
	for {
		select {
		case event, ok := <-p.events:
			if !ok {
				return nil
			}
			// As the agent does: what was killed at its deadline did not just end.
			if deadline, bounded := ctx.Deadline(); bounded && event.GetEnd() != nil && !time.Now().Before(deadline) {
				return context.DeadlineExceeded
			}
			if err := send(&pb.StartResponse{Event: event}); err != nil {
				return err
			}
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *agent) spawn(req *pb.StartRequest, user string) (*process, error) {
	p := &process{name: req.Process.GetCmd(), since: time.Now().UTC(), user: user, events: make(chan *pb.ProcessEvent, 16), gone: make(chan struct{})}
	if req.Pty != nil {
		p.tty, p.size = true, req.Pty.GetSize()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.lastPTY++
		p.pid = a.lastPTY
		a.processes[p.pid] = p
		if p.name != shell {
			go func() { // a terminal with a command has that run, and end
				p.say(fmt.Sprintf("ran %s as %s, %s=%s, on %dx%d\r\n", strings.Join(append([]string{p.name}, req.Process.GetArgs()...), " "), user,
					"A", req.Process.GetEnvs()["A"], p.size.GetCols(), p.size.GetRows()))
				a.hangUp(p, 9, true, "exit status 9")
			}()
		}
		return p, nil
	}
	cmd, err := a.command(req, user)
	if err != nil {
		return nil, err
	}
	stdout, _ := cmd.StdoutPipe()
	stderr, _ := cmd.StderrPipe()
	if req.Stdin == nil || *req.Stdin {
		p.stdin, _ = cmd.StdinPipe()
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.pid = uint32(cmd.Process.Pid)
	a.mu.Lock()
	a.processes[p.pid] = p
	a.mu.Unlock()
	go a.supervise(p, cmd, stdout, stderr)
	return p, nil
}

func (a *agent) command(req *pb.StartRequest, user string) (*exec.Cmd, error) {
	name := req.Process.GetCmd()
	path, err := exec.LookPath(name)
	if strings.HasPrefix(name, "python") {
		err = exec.ErrNotFound
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("start '%s': %w", name, os.ErrPermission)
	case err != nil:
		return nil, fmt.Errorf("command '%s' %w", name, errNoCommand)
	}
	cmd := &exec.Cmd{Path: path, Args: append([]string{name}, req.Process.GetArgs()...), Dir: a.home}
	if req.Process.Cwd != nil {
		cmd.Dir = filepath.Join(a.root, *req.Process.Cwd)
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + a.home, "USER=" + user}
	for _, env := range []map[string]string{a.box.env, req.Process.GetEnvs()} {
		for k, v := range env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, nil
}

func (a *agent) supervise(p *process, cmd *exec.Cmd, stdout, stderr io.Reader) {
	var pumps sync.WaitGroup
	pumps.Go(func() {
		p.pump(stdout, func(b []byte) *pb.ProcessEvent_DataEvent {
			return &pb.ProcessEvent_DataEvent{Output: &pb.ProcessEvent_DataEvent_Stdout{Stdout: b}}
		})
	})
	pumps.Go(func() {
		p.pump(stderr, func(b []byte) *pb.ProcessEvent_DataEvent {
			return &pb.ProcessEvent_DataEvent{Output: &pb.ProcessEvent_DataEvent_Stderr{Stderr: b}}
		})
	})
	pumps.Wait()
	_ = cmd.Wait()
	a.forget(p)
	state := cmd.ProcessState
	p.end(int32(state.ExitCode()), state.Exited(), state.String())
}

func (a *agent) forget(p *process) {
	a.mu.Lock()
	delete(a.processes, p.pid)
	a.mu.Unlock()
	a.ended()
}

func (p *process) pump(r io.Reader, wrap func([]byte) *pb.ProcessEvent_DataEvent) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			p.publish(&pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: wrap(bytes.Clone(buf[:n]))}})
		}
		if err != nil {
			return
		}
	}
}

func (p *process) publish(event *pb.ProcessEvent) {
	select {
	case p.events <- event:
	case <-p.gone:
	}
}

func (p *process) end(code int32, exited bool, status string) {
	p.publish(&pb.ProcessEvent{Event: &pb.ProcessEvent_End{
		End: &pb.ProcessEvent_EndEvent{ExitCode: code, Exited: exited, Status: status}}})
	close(p.events)
}

func (a *agent) find(sel *pb.ProcessSelector) (*process, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.processes[sel.GetPid()]; p != nil {
		return p, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d is not there", sel.GetPid()))
}

func (a *agent) SendInput(_ context.Context, req *connect.Request[pb.SendInputRequest]) (*connect.Response[pb.SendInputResponse], error) {
	p, err := a.find(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	switch {
	case p.tty:
		a.typed(p, req.Msg.GetInput().GetPty())
	case p.stdin == nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("no stdin"))
	default:
		if _, err := p.stdin.Write(req.Msg.GetInput().GetStdin()); err != nil {
			return nil, connect.NewError(connect.CodeFailedPrecondition, err)
		}
	}
	return connect.NewResponse(&pb.SendInputResponse{}), nil
}

func (a *agent) CloseStdin(_ context.Context, req *connect.Request[pb.CloseStdinRequest]) (*connect.Response[pb.CloseStdinResponse], error) {
	p, err := a.find(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if p.stdin == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("no stdin"))
	}
	_ = p.stdin.Close()
	return connect.NewResponse(&pb.CloseStdinResponse{}), nil
}

func (a *agent) SendSignal(_ context.Context, req *connect.Request[pb.SendSignalRequest]) (*connect.Response[pb.SendSignalResponse], error) {
	p, err := a.find(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if p.tty {
		a.hangUp(p, -1, false, "signal: killed")
	} else {
		a.signal(p.pid, syscall.Signal(req.Msg.GetSignal()))
	}
	return connect.NewResponse(&pb.SendSignalResponse{}), nil
}

func (a *agent) Update(_ context.Context, req *connect.Request[pb.UpdateRequest]) (*connect.Response[pb.UpdateResponse], error) {
	p, err := a.find(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.size = req.Msg.GetPty().GetSize()
	return connect.NewResponse(&pb.UpdateResponse{}), nil
}

// typed is the fake shell: it echoes, and understands "exit N", "size" and
// "whoami".
func (a *agent) typed(p *process, input []byte) {
	if p.name != shell {
		return // it ends by itself, with its own status
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range input {
		if c != '\r' && c != '\n' {
			p.line = append(p.line, c)
			continue
		}
		line := string(p.line)
		p.line = nil
		p.say(line + "\r\n")
		var code int32
		switch n, _ := fmt.Sscanf(line, "exit %d", &code); {
		case n == 1:
			go a.hangUp(p, code, true, fmt.Sprintf("exit status %d", code))
			return
		case line == "size":
			p.say(fmt.Sprintf("%dx%d\r\n", p.size.GetCols(), p.size.GetRows()))
		case line == "whoami":
			p.say(p.user + "\r\n")
		}
	}
}

func (p *process) say(text string) {
	p.publish(&pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: &pb.ProcessEvent_DataEvent{
		Output: &pb.ProcessEvent_DataEvent_Pty{Pty: []byte(text)}}}})
}

func (a *agent) hangUp(p *process, code int32, exited bool, status string) {
	a.mu.Lock()
	_, alive := a.processes[p.pid]
	delete(a.processes, p.pid)
	a.mu.Unlock()
	if alive {
		p.end(code, exited, status)
		a.ended()
	}
}
