package mitos

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// agent is what answers in the sandboxes of a test.
type agent struct {
	processconnect.UnimplementedProcessHandler
	mu      sync.Mutex
	tokens  []string
	started []*processpb.StartRequest
	signals []processpb.Signal
	stored  map[string][]byte // whole files only
	run     func(ctx context.Context, req *processpb.StartRequest, send func(*processpb.ProcessEvent) error) error
	execute func(w http.ResponseWriter, r *http.Request)
}

func (a *agent) Start(ctx context.Context, req *connect.Request[processpb.StartRequest], out *connect.ServerStream[processpb.StartResponse]) error {
	a.mu.Lock()
	a.started = append(a.started, req.Msg)
	a.mu.Unlock()
	return a.run(ctx, req.Msg, func(e *processpb.ProcessEvent) error { return out.Send(&processpb.StartResponse{Event: e}) })
}

func (a *agent) SendSignal(_ context.Context, req *connect.Request[processpb.SendSignalRequest]) (*connect.Response[processpb.SendSignalResponse], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.signals = append(a.signals, req.Msg.Signal)
	return connect.NewResponse(&processpb.SendSignalResponse{}), nil
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.tokens = append(a.tokens, r.Header.Get(agentapi.HeaderAccessToken))
	a.mu.Unlock()
	switch r.URL.Path {
	case agentapi.PathCode:
		a.execute(w, r)
	case "/files":
		a.files(w, r)
	default:
		_, handler := processconnect.NewProcessHandler(a)
		handler.ServeHTTP(w, r)
	}
}

func (a *agent) files(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	if r.Method == http.MethodPost {
		if strings.HasPrefix(path, "/full") { // says so without reading
			w.WriteHeader(http.StatusInsufficientStorage)
			fmt.Fprint(w, `{"code":507,"message":"the disk is full"}`)
			return
		}
		data, err := io.ReadAll(r.Body)
		if err == nil {
			a.mu.Lock()
			a.stored[path] = data
			a.mu.Unlock()
		}
		fmt.Fprint(w, `[]`)
		return
	}
	a.mu.Lock()
	data, there := a.stored[path]
	a.mu.Unlock()
	if !there {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"code":404,"message":%q}`, "path '"+path+"' does not exist\x1b[2J\nforged line")
		return
	}
	if strings.HasPrefix(path, "/short") {
		w.Header().Set("Content-Length", "1000000")
	}
	w.Write(data)
}

func started(pid uint32) *processpb.ProcessEvent {
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Start{Start: &processpb.ProcessEvent_StartEvent{Pid: pid}}}
}

func wrote(text string) *processpb.ProcessEvent {
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Data{Data: &processpb.ProcessEvent_DataEvent{Output: &processpb.ProcessEvent_DataEvent_Stdout{Stdout: []byte(text)}}}}
}

func ended(code int32, status string) *processpb.ProcessEvent {
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_End{End: &processpb.ProcessEvent_EndEvent{ExitCode: code, Status: status, Exited: code >= 0}}}
}

// inhabit has an agent answer in all sandboxes, until cut is called.
func (w *world) inhabit(a *agent) (cut func(error)) {
	w.T.Helper()
	a.stored = map[string][]byte{}
	srv := httptest.NewServer(a)
	w.T.Cleanup(srv.Close)
	ends := make(chan struct{})
	var why error
	w.in.dial = &supervisor.Lease{
		Dial: func(ctx context.Context, _ int) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
		},
		Progress: func(int) {}, Cut: ends, Why: func() error { return why }, Release: func() {},
	}
	return func(err error) { why = err; close(ends) }
}

// call is a stream of the RPC service.
func (w *world) call(method, sandbox string, sent []byte, header ...string) *httptest.ResponseRecorder {
	w.T.Helper()
	return w.do(apitest.GoodKey, post, "/sandbox.v1.Sandbox/"+method, string(sent),
		append([]string{"X-Sandbox-Id", sandbox, "Content-Type", typeStream}, header...)...)
}

// messages reads the frames of an answer; the last is the end.
func messages(t *testing.T, rec *httptest.ResponseRecorder) (list []map[string]any, end map[string]any) {
	t.Helper()
	if rec.Code != http.StatusOK || rec.Header().Get("Content-Type") != typeStream {
		t.Fatalf("%d %s %s", rec.Code, rec.Header(), rec.Body)
	}
	for data := rec.Body.Bytes(); len(data) > 0; {
		n := binary.BigEndian.Uint32(data[1:])
		var m map[string]any
		if err := json.Unmarshal(data[5:5+n], &m); err != nil || end != nil {
			t.Fatalf("frame %q: %v; before it %v", data[:5+n], err, end)
		}
		if data[0] == flagEnd {
			end = m
		} else {
			list = append(list, m)
		}
		data = data[5+n:]
	}
	if end == nil {
		t.Fatalf("the stream has no end: %v", list)
	}
	return list, end
}

// rpcFails wants an error in the RPC's form.
func rpcFails(t *testing.T, rec *httptest.ResponseRecorder, status int, code, text string) {
	t.Helper()
	if got := object(t, rec, status); got["code"] != code || !strings.Contains(got["message"].(string), text) || len(got) != 2 {
		t.Fatalf("got %v, want %s and %q", got, code, text)
	}
}

func TestExec(t *testing.T) {
	w := newWorld(t)
	a := &agent{run: func(_ context.Context, req *processpb.StartRequest, send func(*processpb.ProcessEvent) error) error {
		if strings.Contains(req.Process.Cmd, "missing") {
			return connect.NewError(connect.CodeNotFound, fmt.Errorf("no program\n%s", req.Process.Cmd))
		}
		send(started(7))
		send(wrote("out"))
		return send(ended(-1, "signal: killed"))
	}}
	w.inhabit(a)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	list, end := messages(t, w.call("ExecStream", "a", framed(`{"command":"x | y","env":[{"key":"A","value":"b"}],"cwd":"/tmp","timeoutSeconds":"5"}`)))
	if len(list) != 2 || list[0]["stdout"] != base64.StdEncoding.EncodeToString([]byte("out")) || list[1]["exit"].(map[string]any)["exitCode"] != 137.0 || len(end) != 0 {
		t.Errorf("got %v, %v", list, end)
	}
	messages(t, w.call("ExecStream", "a", framed(`{"command":"prog","args":["-c","$x"]}`)))
	if got := fmt.Sprintf("%s %s %s %s", a.started[0].Process.Cmd, a.started[0].Process.Args, a.started[0].Process.Envs, a.started[0].Process.GetCwd()); got != "/bin/sh [-c x | y] map[A:b] /tmp" {
		t.Errorf("ran %s", got)
	}
	if got := fmt.Sprintf("%s %s %v", a.started[1].Process.Cmd, a.started[1].Process.Args, a.started[1].GetStdin()); got != "prog [-c $x] false" {
		t.Errorf("ran %s", got)
	}
	id, _ := w.in.Named(apitest.KeyID, "a")
	for i, got := range a.tokens {
		if got != w.Fake.EnvdToken(id) {
			t.Errorf("request %d has the token %q", i, got)
		}
	}
	for _, got := range w.in.acquired {
		if got.Port != agentapi.Port || !got.Stream || got.Probe || got.Actor != apitest.Actor {
			t.Errorf("access %+v", got)
		}
	}
	list, _ = messages(t, w.call("ExecStream", "a", framed(`{"command":"missing","args":["x"]}`)))
	if said := list[0]["exit"].(map[string]any)["error"]; said != "no program missing" && !strings.Contains(fmt.Sprint(said), "no program") || strings.Contains(fmt.Sprint(said), "\n") {
		t.Errorf("a command that was not started: %v", list)
	}
}

// TestMovedBeforeAFrame: a call that answers in frames goes with its sandbox to another server, with all
// that it has sent; what else keeps it out is told as it is.
func TestMovedBeforeAFrame(t *testing.T) {
	w := newWorld(t)
	w.inhabit(&agent{run: func(_ context.Context, _ *processpb.StartRequest, send func(*processpb.ProcessEvent) error) error {
		send(started(7))
		return send(ended(0, ""))
	}})
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	others := &apitest.Others{}
	w.HTTP = others.Before(w.HTTP)
	sent := framed(`{"command":"x"}`)
	if list, _ := messages(t, w.call("ExecStream", "a", sent)); len(list) != 1 || len(others.Got) != 0 {
		t.Errorf("where it is here: %v, passed on %q", list, others.Got)
	}
	id, _ := w.in.Named(apitest.KeyID, "a")
	if err := w.Fake.Pause(t.Context(), id, supervisor.PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	w.in.moved = errdef.New(errdef.Unavailable, "wake_queue_full", "many wait")
	if rpcFails(t, w.call("ExecStream", "a", sent), http.StatusServiceUnavailable, "internal", "many wait"); len(others.Got) != 0 {
		t.Errorf("where it does not get in, passed on %q", others.Got)
	}
	w.in.moved = store.ErrElsewhere("sandbox a", "srv_b")
	for _, method := range []string{"ExecStream", "RunCodeStream", "ReadFile", "WriteFile"} {
		others.Got = nil
		if rec := w.call(method, "a", sent); rec.Code != http.StatusNoContent || !slices.Equal(others.Got, []string{"srv_b " + string(sent)}) {
			t.Errorf("%s: %d %s, passed on %q", method, rec.Code, rec.Body, others.Got)
		}
	}
}

// TestExecPastItsDeadline: the SDK knows a deadline by the code 124.
func TestExecPastItsDeadline(t *testing.T) {
	w := newWorld(t)
	w.inhabit(&agent{run: func(ctx context.Context, _ *processpb.StartRequest, send func(*processpb.ProcessEvent) error) error {
		send(started(7))
		<-ctx.Done() // by the timeout that was sent with the request
		return connect.NewError(connect.CodeDeadlineExceeded, ctx.Err())
	}})
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	list, end := messages(t, w.call("ExecStream", "a", framed(`{"command":"sleep","timeoutSeconds":1}`)))
	if len(list) != 1 || list[0]["exit"].(map[string]any)["exitCode"] != 124.0 || len(end) != 0 {
		t.Errorf("got %v, %v", list, end)
	}
}

// open begins an exec in the sandbox a, on a server of its own.
func (w *world) open(sent []byte) (res *http.Response, leave func()) {
	w.T.Helper()
	srv := httptest.NewServer(w.HTTP)
	w.T.Cleanup(srv.Close)
	ctx, leave := context.WithCancel(w.T.Context())
	w.T.Cleanup(leave)
	req, err := http.NewRequestWithContext(ctx, post, srv.URL+service+"ExecStream", bytes.NewReader(sent))
	if err != nil {
		w.T.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + apitest.GoodKey}, "X-Sandbox-Id": {"a"}, "Content-Type": {typeStream}}
	if res, err = http.DefaultClient.Do(req); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { res.Body.Close() })
	return res, leave
}

// TestExecCut: a stream that a pause ends says so, and the command is left to sleep.
func TestExecCut(t *testing.T) {
	w := newWorld(t)
	a := &agent{}
	cut := w.inhabit(a)
	a.run = func(ctx context.Context, _ *processpb.StartRequest, send func(*processpb.ProcessEvent) error) error {
		send(started(7))
		send(wrote("begun"))
		<-ctx.Done()
		return ctx.Err()
	}
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	res, _ := w.open(framed(`{"command":"x"}`))
	first := make([]byte, len(frame(0, output{Stdout: []byte("begun")})))
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatal(err)
	}
	cut(errdef.New(errdef.Unavailable, "put_to_sleep", "the sandbox was put to sleep"))
	rest, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	rec.Header().Set("Content-Type", res.Header.Get("Content-Type"))
	rec.Write(append(first, rest...))
	list, end := messages(t, rec)
	if e, _ := end["error"].(map[string]any); len(list) != 1 || e["code"] != "internal" || !strings.Contains(fmt.Sprint(e["message"]), "put to sleep") {
		t.Errorf("got %v, %v", list, end)
	}
	if len(a.signals) > 0 {
		t.Errorf("a signal would have woken it: %v", a.signals)
	}
}

// TestExecLeft: when the client goes, the command is killed.
func TestExecLeft(t *testing.T) {
	w := newWorld(t)
	a := &agent{run: func(ctx context.Context, _ *processpb.StartRequest, send func(*processpb.ProcessEvent) error) error {
		send(started(7))
		send(wrote("begun"))
		<-ctx.Done()
		return ctx.Err()
	}}
	w.inhabit(a)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	res, leave := w.open(framed(`{"command":"x"}`))
	if _, err := io.ReadFull(res.Body, make([]byte, frameHead)); err != nil {
		t.Fatal(err)
	}
	leave()
	for end := time.Now().Add(testmode.Patience()); ; time.Sleep(5 * time.Millisecond) {
		a.mu.Lock()
		killed := len(a.signals) == 1 && a.signals[0] == processpb.Signal_SIGNAL_SIGKILL
		a.mu.Unlock()
		if killed {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the command was not killed: %v", a.signals)
		}
	}
}

func TestFiles(t *testing.T) {
	w := newWorld(t)
	a := &agent{}
	w.inhabit(a)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	for _, path := range []string{"/x", "../../etc/passwd", "/a?path=/b&username=root#c", "/a\x00b", "a%2fb", "/ü/ /\n", ""} {
		open, _ := json.Marshal(map[string]any{"open": map[string]any{"path": path, "mode": 420}})
		data := strings.Repeat("data of "+path, 10_000)
		sent := append(framed(string(open)), frame(0, chunk{Data: []byte(data)})...)
		list, end := messages(t, w.call("WriteFile", "a", sent))
		if len(list) != 1 || list[0]["bytesWritten"] != float64(len(data)) || len(end) != 0 {
			t.Errorf("%q: %v, %v", path, list, end)
		}
		if string(a.stored[path]) != data || len(a.stored) != 1 {
			t.Errorf("%q was written as something else", path)
		}
		ask, _ := json.Marshal(map[string]string{"path": path})
		list, end = messages(t, w.call("ReadFile", "a", framed(string(ask))))
		var got []byte
		for _, m := range list {
			piece, err := base64.StdEncoding.DecodeString(fmt.Sprint(m["data"]))
			if err != nil && m["data"] != nil {
				t.Fatal(err)
			}
			if m["data"] != nil {
				got = append(got, piece...)
			}
		}
		if string(got) != data || list[len(list)-1]["eof"] != true || len(end) != 0 {
			t.Errorf("%q: read %d bytes of %d, %v", path, len(got), len(data), end)
		}
		delete(a.stored, path)
	}
	rec := w.call("ReadFile", "a", framed(`{"path":"/none"}`))
	rpcFails(t, rec, http.StatusNotFound, "not_found", "does not exist")
	if strings.ContainsAny(object(t, rec, http.StatusNotFound)["message"].(string), "\x1b\n") {
		t.Errorf("the guest's words reach the client as they are: %s", rec.Body)
	}
	a.stored["/short"] = []byte("cut")
	if _, end := messages(t, w.call("ReadFile", "a", framed(`{"path":"/short"}`))); end["error"] == nil {
		t.Error("a file that was cut short is whole")
	}
}

// TestWritesThatFail: what is not a whole file is not one inside.
func TestWritesThatFail(t *testing.T) {
	w := newWorld(t)
	a := &agent{}
	w.inhabit(a)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	whole := append(framed(`{"open":{"path":"/x"}}`), frame(0, chunk{Data: make([]byte, 100_000)})...)
	for name, sent := range map[string][]byte{
		"cut":            whole[:len(whole)-1],
		"not base64":     append(framed(`{"open":{"path":"/x"}}`, `{"data":"aGVs"}`), raw(`{"data":"!"}`)...),
		"another field":  append(framed(`{"open":{"path":"/x"}}`, `{"data":"aGVs"}`), raw(`{"surprise":"!"}`)...),
		"no open":        framed(`{"data":"aGVs"}`),
		"unknown field":  framed(`{"open":{"path":"/x","owner":"root"}}`),
		"an odd mode":    framed(`{"open":{"path":"/x","mode":4095}}`),
		"nothing at all": {},
	} {
		rpcFails(t, w.call("WriteFile", "a", sent), http.StatusBadRequest, "invalid_input", "")
		if len(a.stored) > 0 {
			t.Errorf("%s: there is a file of %d bytes", name, len(a.stored["/x"]))
		}
	}
	// Refused before it has all come.
	rpcFails(t, w.call("WriteFile", "a", append(framed(`{"open":{"path":"/full"}}`), frame(0, chunk{Data: make([]byte, 2_000_000)})...)),
		http.StatusTooManyRequests, "rate_limited", "the disk is full")
}

func TestRunCode(t *testing.T) {
	w := newWorld(t)
	a := &agent{}
	w.inhabit(a)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	var asked map[string]string
	a.execute = func(rw http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&asked)
		fmt.Fprintln(rw, `{"type":"number_of_executions","execution_count":1}`)
		fmt.Fprintln(rw, `{"type":"stdout","text":"o\u00fct","timestamp":"x"}`)
		fmt.Fprintln(rw, `{"type":"result","is_main_result":false,"png":"aW1n","json":{"a":[1]},"extra":{"x/y":"z"}}`)
		fmt.Fprintln(rw, `{"type":"result","is_main_result":true,"text":"42"}`)
		fmt.Fprintln(rw, `{"type":"error","name":"E","value":"v","traceback":"l1\nl2"}`)
		fmt.Fprintln(rw, `{"type":"end_of_execution"}`)
	}
	list, end := messages(t, w.call("RunCodeStream", "a", framed(`{"code":"6*7","language":"python","timeoutSeconds":5}`)))
	text, _ := json.Marshal(list)
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	want := fmt.Sprintf(`[{"stdout":%q},{"result":{"data":{"application/json":%q,"image/png":%q,"x/y":%q}}},{"result":{"data":{"text/plain":%q},"text":"42"}},{"error":{"name":"E","traceback":["l1","l2"],"value":"v"}},{"exitCode":1}]`,
		b64("oüt"), b64(`{"a":[1]}`), b64("aW1n"), b64("z"), b64("42"))
	if string(text) != want || len(end) != 0 || asked["code"] != "6*7" || asked["language"] != "python" {
		t.Errorf("got  %s %v\nwant %s; asked %v", text, end, want, asked)
	}
	if got := w.in.acquired[0]; got.Port != agentapi.CodePort || !got.Stream {
		t.Errorf("access %+v", got) // a cell has an end when it pleases
	}
	for name, answer := range map[string]struct {
		execute func(http.ResponseWriter, *http.Request)
		status  int // 200 for an error within the stream
		code    string
	}{
		"no end": {func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, `{"type":"stdout","text":"x"}`) }, 200, "internal"},
		"no JSON": {func(rw http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(rw, `{"type":"stdout","text":"x"}`+"\n<html>")
		}, 200, "internal"},
		"a long line": {func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, strings.Repeat("x", maxLine+1)) }, 429, "rate_limited"},
		"refused": {func(rw http.ResponseWriter, _ *http.Request) {
			http.Error(rw, "there is no kernel", http.StatusInternalServerError)
		}, 503, "internal"},
		"unknown": {func(rw http.ResponseWriter, _ *http.Request) {
			http.Error(rw, strings.Repeat("y", 1<<20), http.StatusNotFound)
		}, 404, "not_found"},
	} {
		a.execute = answer.execute
		rec := w.call("RunCodeStream", "a", framed(`{"code":"1"}`))
		if answer.status != http.StatusOK {
			rpcFails(t, rec, answer.status, answer.code, "")
			if rec.Body.Len() > 2000 {
				t.Errorf("%s: %d bytes of the guest's words", name, rec.Body.Len())
			}
			continue
		}
		if _, end := messages(t, rec); end["error"].(map[string]any)["code"] != answer.code {
			t.Errorf("%s: %v", name, end)
		}
	}
}

// TestMessages: what comes as a message that is none, or says something that nobody
// knows, gets an error by name, and nothing is run.
func TestMessages(t *testing.T) {
	w := newWorld(t)
	a := &agent{run: func(context.Context, *processpb.StartRequest, func(*processpb.ProcessEvent) error) error { return nil }}
	w.inhabit(a)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	good := framed(`{"command":"x"}`)
	for name, sent := range map[string][]byte{
		"nothing": nil, "half a head": good[:3], "a head alone": good[:5], "cut": good[:len(good)-1], "more": append(append([]byte{}, good...), 'x'),
		"two": append(append([]byte{}, good...), good...), "flags": append([]byte{64}, good[1:]...), "null": framed(`null`), "an array": framed(`[]`), "a text": framed(`"x"`),
	} {
		rec := w.call("ExecStream", "a", sent)
		if got := object(t, rec, http.StatusBadRequest); got["code"] != "invalid_input" && got["code"] != "invalid_json" {
			t.Errorf("%s: %v", name, got)
		}
	}
	rpcFails(t, w.call("ExecStream", "a", append([]byte{1}, good[1:]...)), http.StatusNotImplemented, "unimplemented", "compressed")
	rpcFails(t, w.call("ExecStream", "a", good, "Connect-Content-Encoding", "gzip"), http.StatusNotImplemented, "unimplemented", "gzip")
	rpcFails(t, w.call("ExecStream", "a", raw(`{"command":`)), http.StatusBadRequest, "invalid_json", "")
	rpcFails(t, w.call("ExecStream", "a", framed(`{"command":"`+strings.Repeat("x", 2<<20)+`"}`)), http.StatusRequestEntityTooLarge, "body_too_large", "")
	for method, whole := range map[string]string{"ExecStream": `{"command":"x"`, "RunCodeStream": `{"code":"x"`, "ReadFile": `{"path":"x"`} {
		rpcFails(t, w.call(method, "a", framed(whole+`,"surprise":1}`)), http.StatusBadRequest, "invalid_input", "surprise")
		rpcFails(t, w.call(method, "a", framed(`{}`)), http.StatusBadRequest, "invalid_input", "required")
		rpcFails(t, w.call(method, "", framed(whole+`}`)), http.StatusBadRequest, "invalid_input", "no sandbox")
		rpcFails(t, w.call(method, "b", framed(whole+`}`)), http.StatusNotFound, "not_found", `"b"`)
		rpcFails(t, w.call(method, "a", framed(whole+`}`), "X-Sandbox-Id", "b"), http.StatusBadRequest, "invalid_input", "2 headers")
		rec := w.do(apitest.GoodKey, post, "/sandbox.v1.Sandbox/"+method, whole+"}", "X-Sandbox-Id", "a", "Content-Type", typeUnary)
		rpcFails(t, rec, http.StatusBadRequest, "invalid_input", typeStream)
		rec = w.do(apitest.OwnKey, post, "/sandbox.v1.Sandbox/"+method, string(framed(whole+"}")), "X-Sandbox-Id", "a", "Content-Type", typeStream)
		rpcFails(t, rec, http.StatusNotFound, "not_found", "")
		rec = w.do("e2b_wrong", post, "/sandbox.v1.Sandbox/"+method, string(framed(whole+"}")), "X-Sandbox-Id", "a", "Content-Type", typeStream)
		rpcFails(t, rec, http.StatusUnauthorized, "unauthorized", "")
	}
	for method, whole := range map[string]string{"List": `{"parent":"x"`, "Stat": `{"path":"x"`, "Mkdir": `{"path":"x"`, "Remove": `{"path":"x"`} {
		ask := func(body string) *httptest.ResponseRecorder {
			return w.do(apitest.GoodKey, post, "/sandbox.v1.Sandbox/"+method, body, "X-Sandbox-Id", "a", "Content-Type", typeUnary)
		}
		rpcFails(t, ask(whole+`,"surprise":1}`), http.StatusBadRequest, "invalid_input", "surprise")
		rpcFails(t, ask(""), http.StatusBadRequest, "invalid_input", "required")
	}
	for _, bad := range []string{`"timeoutSeconds":0`, `"timeoutSeconds":-1`, `"timeoutSeconds":1.5`, `"env":[{"key":"A=B","value":""}]`, `"env":[{"value":"x"}]`, `"env":[{"key":"a","surprise":1}]`, `"env":{"a":"b"}`, `"args":"x"`} {
		rpcFails(t, w.call("ExecStream", "a", framed(`{"command":"x",`+bad+`}`)), http.StatusBadRequest, "invalid_input", "")
	}
	rpcFails(t, w.call("ExecStream", "a", framed(`{"command":"x","timeoutSeconds":86401}`)), http.StatusBadRequest, "timeout_too_large", "86400")
	for _, page := range []string{"pageSize", "pageToken", "filter"} {
		rec := w.do(apitest.GoodKey, post, "/sandbox.v1.Sandbox/List", `{"parent":"/","`+page+`":"x"}`, "X-Sandbox-Id", "a", "Content-Type", typeUnary)
		rpcFails(t, rec, http.StatusNotImplemented, "unimplemented", page)
	}
	rec := w.do(apitest.GoodKey, post, "/sandbox.v1.Sandbox/Watch", `{}`, "X-Sandbox-Id", "a", "Content-Type", typeUnary)
	rpcFails(t, rec, http.StatusNotImplemented, "unimplemented", "Watch")
	rec = w.do(apitest.GoodKey, post, "/sandbox.v1.Sandbox/Surprise", `{}`, "X-Sandbox-Id", "a", "Content-Type", typeUnary)
	rpcFails(t, rec, http.StatusNotFound, "not_found", "")
	if len(a.started) > 0 {
		t.Errorf("ran %v", a.started)
	}
}

// TestAsleep: what may not wake a sandbox says what may.
func TestAsleep(t *testing.T) {
	w := newWorld(t)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	object(t, w.do(apitest.GoodKey, post, "/v1/pause", `{"sandbox":"a"}`), http.StatusOK)
	rpcFails(t, w.call("ExecStream", "a", framed(`{"command":"x"}`)), http.StatusConflict, "not_resumable", "call resume() first")
}
