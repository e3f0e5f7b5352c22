package sandbox0

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb/filesystem/filesystemconnect"
	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const goodKey = apitest.GoodKey

var soon = testmode.Patience() // for what should come at once

// world is a handler with what is behind it.
type world struct {
	*apitest.World
	inside *inside
	rows   rows
}

// rows is a store that learns of the fake supervisor's sandboxes when something is
// stored of them.
type rows struct {
	*memstore.Store
	fake *apitest.Fake
}

func (r rows) AddContext(ctx context.Context, c store.CodeContext) (string, error) {
	if sb, err := r.fake.Find(ctx, c.Sandbox); err == nil {
		sb.Rev = 0
		_ = r.Commit(ctx, sb, nil) // fails for one that is known
	}
	return r.Store.AddContext(ctx, c)
}

func newWorld(t *testing.T, change ...func(*Options)) *world {
	t.Helper()
	w := &world{World: apitest.NewWorld(t)}
	w.inside = newInside(t, w.Fake)
	w.rows = rows{memstore.Open(memstore.NewData(), memstore.Hooks{}), w.Fake}
	builds, snapshots := apitest.NewBuilds(), apitest.NewSnapshots(w.Fake)
	snapshots.Built = builds
	o := Options{
		Sandboxes: w.inside, Templates: apitest.NewTemplates(w.Fake), Snapshots: snapshots, Builds: builds, Volumes: w.Fake, Services: apitest.NewServices(w.Fake), Contexts: w.rows,
		Auth: apitest.Keyring{}, Log: slog.New(slog.NewTextHandler(w.Log, nil)),
	}
	for _, c := range change {
		c(&o)
	}
	w.HTTP = New(t.Context(), o)
	return w
}

// data returns what a successful answer holds.
func data(a apitest.Answer, status int) map[string]any {
	a.T.Helper()
	o := a.Is(status).Object()
	if o["success"] != true {
		a.T.Fatalf("no success: %s", a.Body)
	}
	d, _ := o["data"].(map[string]any)
	return d
}

// fails checks an error, and returns its message.
func fails(a apitest.Answer, status int, code string, words ...string) string {
	a.T.Helper()
	o := a.Is(status).Object()
	e, _ := o["error"].(map[string]any)
	if o["success"] != false || e == nil || e["code"] != code {
		a.T.Fatalf("want the code %s: %s", code, a.Body)
	}
	message, _ := e["message"].(string)
	for _, word := range words {
		if !strings.Contains(a.Body, word) {
			a.T.Errorf("no %q in %s", word, a.Body)
		}
	}
	return message
}

// claim makes a sandbox and returns its id.
func (w *world) claim(body string) string {
	w.T.Helper()
	return data(w.Do("POST", all, body), http.StatusCreated)["sandbox_id"].(string)
}

func (w *world) sandbox(id string) map[string]any {
	w.T.Helper()
	return data(w.Do("GET", all+"/"+id, ""), http.StatusOK)
}

// inside is the fake supervisor, whose sandboxes have one agent and interpreter
// for all.
type inside struct {
	*apitest.Fake
	agent, code *httptest.Server
	processes   *processes

	mu   sync.Mutex
	cuts map[string]chan struct{}
	open int
	left int // accesses until all sandboxes have gone to another server; 0 for never
}

func newInside(t *testing.T, f *apitest.Fake) *inside {
	in := &inside{Fake: f, cuts: map[string]chan struct{}{}, processes: &processes{t: t}}
	mux := http.NewServeMux()
	mux.Handle(processconnect.NewProcessHandler(in.processes))
	mux.Handle(filesystemconnect.NewFilesystemHandler(files{}))
	mux.HandleFunc("/files", files{}.transfer)
	in.agent = httptest.NewServer(mux)
	in.code = httptest.NewServer(&kernels{there: map[string]string{}})
	t.Cleanup(func() {
		in.processes.killAll()
		in.agent.CloseClientConnections()
		in.agent.Close()
		in.code.CloseClientConnections()
		in.code.Close()
	})
	return in
}

// Acquire wakes a sandbox that sleeps, where that is allowed.
func (in *inside) Acquire(ctx context.Context, id string, access supervisor.Access) (*supervisor.Lease, error) {
	sb, err := in.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	if sb.Record.State != lifecycle.Running {
		if _, err := lifecycle.Step(sb.Record, lifecycle.AccessRequested{Meta: lifecycle.Meta{Op: "op", Cause: lifecycle.CauseAccess}}, in.Now); err != nil {
			return nil, err
		}
		if sb, err = in.Resume(ctx, id, supervisor.WakeRequest{Timeout: 5 * time.Minute, Actor: access.Actor}); err != nil {
			return nil, err
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.left == 1 {
		return nil, store.ErrElsewhere("sandbox "+id, "srv_b")
	}
	in.left = max(in.left-1, 0)
	if in.cuts[id] == nil {
		in.cuts[id] = make(chan struct{})
	}
	in.open++
	var once sync.Once
	return &supervisor.Lease{
		Generation: sb.Record.Generation, Cut: in.cuts[id],
		Why: func() error { return errdef.New(errdef.Unavailable, "put_to_sleep", "the sandbox was put to sleep") },
		Release: func() {
			once.Do(func() { in.mu.Lock(); defer in.mu.Unlock(); in.open-- })
		},
		Progress: func(int) {},
		Dial: func(ctx context.Context, port int) (net.Conn, error) {
			switch port {
			case agentapi.Port:
				return (&net.Dialer{}).DialContext(ctx, "tcp", in.agent.Listener.Addr().String())
			case agentapi.CodePort:
				return (&net.Dialer{}).DialContext(ctx, "tcp", in.code.Listener.Addr().String())
			}
			return nil, syscall.ECONNREFUSED
		},
	}, nil
}

// leaveAfter has all sandboxes go to another server before the n-th access from now; never if n is 0.
func (in *inside) leaveAfter(n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.left = n
}

// Pause cuts all that is open.
func (in *inside) Pause(ctx context.Context, id string, q supervisor.PauseRequest) error {
	in.cut(id)
	return in.Fake.Pause(ctx, id, q)
}

// Kill cuts all that is open.
func (in *inside) Kill(ctx context.Context, id, actor string) error {
	in.cut(id)
	return in.Fake.Kill(ctx, id, actor)
}

func (in *inside) cut(id string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.cuts[id] != nil {
		close(in.cuts[id])
		delete(in.cuts, id)
	}
}

// processes is an agent's service whose processes run on this machine.
type processes struct {
	processconnect.UnimplementedProcessHandler
	t     *testing.T
	mu    sync.Mutex
	all   []*child
	typed string // into terminals
}

type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	tag    string
	config *process.ProcessConfig
	done   chan struct{}
	exit   int32

	mu   sync.Mutex
	subs map[chan *process.ProcessEvent]bool
}

func (ps *processes) killAll() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, c := range ps.all {
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

// count is how many were started.
func (ps *processes) count() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return len(ps.all)
}

// lose ends all processes as a boot does: nothing is known of them afterwards.
func (ps *processes) lose() {
	ps.killAll()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.all = nil
}

func (ps *processes) find(s *process.ProcessSelector) (*child, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for i := len(ps.all) - 1; i >= 0; i-- {
		if ps.all[i].tag == s.GetTag() {
			return ps.all[i], nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no process %q", s.GetTag()))
}

func (c *child) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (c *child) publish(e *process.ProcessEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for sub := range c.subs {
		sub <- e
	}
}

func (c *child) subscribe() chan *process.ProcessEvent {
	sub := make(chan *process.ProcessEvent, 1000)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subs[sub] = true
	return sub
}

// Write implements io.Writer for one of the outputs.
type pipe struct {
	c    *child
	wrap func([]byte) *process.ProcessEvent_DataEvent
}

func (p pipe) Write(b []byte) (int, error) {
	p.c.publish(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: p.wrap(append([]byte{}, b...))}})
	return len(b), nil
}

func (ps *processes) Start(ctx context.Context, req *connect.Request[process.StartRequest], out *connect.ServerStream[process.StartResponse]) error {
	cfg := req.Msg.GetProcess()
	c := &child{cmd: exec.Command(cfg.GetCmd(), cfg.GetArgs()...), tag: req.Msg.GetTag(), config: cfg, done: make(chan struct{}), subs: map[chan *process.ProcessEvent]bool{}}
	c.cmd.Dir = cfg.GetCwd()
	c.cmd.Env = []string{"PATH=/usr/bin:/bin"}
	for name, value := range cfg.GetEnvs() {
		c.cmd.Env = append(c.cmd.Env, name+"="+value)
	}
	c.cmd.Stdout = pipe{c, func(b []byte) *process.ProcessEvent_DataEvent {
		return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: b}}
	}}
	c.cmd.Stderr = pipe{c, func(b []byte) *process.ProcessEvent_DataEvent {
		return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stderr{Stderr: b}}
	}}
	c.stdin, _ = c.cmd.StdinPipe()
	sub := c.subscribe()
	if err := c.cmd.Start(); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	ps.mu.Lock()
	ps.all = append(ps.all, c)
	ps.mu.Unlock()
	go func() {
		_ = c.cmd.Wait()
		c.exit = int32(c.cmd.ProcessState.ExitCode())
		close(c.done)
		c.publish(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{ExitCode: c.exit, Exited: c.exit >= 0}}})
	}()
	return c.follow(ctx, sub, func(e *process.ProcessEvent) error { return out.Send(&process.StartResponse{Event: e}) })
}

func (ps *processes) Connect(ctx context.Context, req *connect.Request[process.ConnectRequest], out *connect.ServerStream[process.ConnectResponse]) error {
	c, err := ps.find(req.Msg.GetProcess())
	if err != nil {
		return err
	}
	sub := c.subscribe()
	if !c.alive() {
		sub <- &process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{ExitCode: c.exit}}}
	}
	return c.follow(ctx, sub, func(e *process.ProcessEvent) error { return out.Send(&process.ConnectResponse{Event: e}) })
}

func (c *child) follow(ctx context.Context, sub chan *process.ProcessEvent, send func(*process.ProcessEvent) error) error {
	defer func() { c.mu.Lock(); defer c.mu.Unlock(); delete(c.subs, sub) }()
	if err := send(&process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: uint32(c.cmd.Process.Pid)}}}); err != nil {
		return err
	}
	for {
		select {
		case e := <-sub:
			if err := send(e); err != nil || e.GetEnd() != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (ps *processes) List(context.Context, *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	res := &process.ListResponse{}
	for _, c := range ps.all {
		if c.alive() {
			res.Processes = append(res.Processes, &process.ProcessInfo{Config: c.config, Pid: uint32(c.cmd.Process.Pid), Tag: &c.tag})
		}
	}
	return connect.NewResponse(res), nil
}

func (ps *processes) SendInput(_ context.Context, req *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	c, err := ps.find(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if typed := req.Msg.GetInput().GetPty(); typed != nil {
		ps.mu.Lock()
		ps.typed += string(typed)
		ps.mu.Unlock()
		return connect.NewResponse(&process.SendInputResponse{}), nil
	}
	if _, err := c.stdin.Write(req.Msg.GetInput().GetStdin()); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

// Update takes any size of a terminal.
func (ps *processes) Update(_ context.Context, req *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	_, err := ps.find(req.Msg.GetProcess())
	return connect.NewResponse(&process.UpdateResponse{}), err
}

func (ps *processes) SendSignal(_ context.Context, req *connect.Request[process.SendSignalRequest]) (*connect.Response[process.SendSignalResponse], error) {
	c, err := ps.find(req.Msg.GetProcess())
	if err == nil && !c.alive() {
		err = connect.NewError(connect.CodeNotFound, fmt.Errorf("it has ended"))
	}
	if err != nil {
		return nil, err
	}
	_ = c.cmd.Process.Signal(syscall.Signal(req.Msg.GetSignal()))
	return connect.NewResponse(&process.SendSignalResponse{}), nil
}

// kernels is an interpreter in which code prints itself; "wait" waits for its
// client to go, and "fail" fails.
type kernels struct {
	mu    sync.Mutex
	seq   int
	there map[string]string
}

func (k *kernels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Language string            `json:"language"`
		Code     string            `json:"code"`
		Context  string            `json:"context_id"`
		Env      map[string]string `json:"env_vars"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	k.mu.Lock()
	defer k.mu.Unlock()
	id := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/contexts/"), "/restart")
	switch {
	case r.URL.Path == "/contexts" && r.Method == "POST":
		if body.Language == "cobol" {
			http.Error(w, "there is no kernel for cobol", http.StatusBadRequest)
			return
		}
		k.seq++
		id := fmt.Sprintf("k%d", k.seq)
		k.there[id] = body.Language
		fmt.Fprintf(w, `{"id":%q}`, id)
	case r.URL.Path == "/contexts":
		list := []map[string]string{}
		for id := range k.there {
			list = append(list, map[string]string{"id": id})
		}
		_ = json.NewEncoder(w).Encode(list)
	case r.URL.Path == "/execute":
		language, known := k.there[body.Context]
		if !known {
			http.NotFound(w, r)
			return
		}
		k.mu.Unlock()
		defer k.mu.Lock()
		say := func(m map[string]any) {
			_ = json.NewEncoder(w).Encode(m)
			_ = http.NewResponseController(w).Flush()
		}
		say(map[string]any{"type": "number_of_executions"})
		switch body.Code {
		case "wait":
			<-r.Context().Done()
			return
		case "flood":
			say(map[string]any{"type": "stdout", "text": strings.Repeat("x", maxInterpreterLine+1)})
		case "fail":
			say(map[string]any{"type": "error", "name": "E", "value": "v", "traceback": "Traceback: E\n"})
		default:
			say(map[string]any{"type": "stdout", "text": language + ":" + body.Code + ":" + body.Env["A"] + "\n"})
			say(map[string]any{"type": "stderr", "text": "err\n"})
			say(map[string]any{"type": "result", "is_main_result": true, "text": "42"})
		}
		say(map[string]any{"type": "end_of_execution"})
	case k.there[id] == "":
		http.NotFound(w, r)
	case r.Method == "DELETE":
		delete(k.there, id)
	}
}
