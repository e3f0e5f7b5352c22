package sandbox0

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// shell is the body of a context that runs a script.
func shell(script string, wait bool) string {
	data, _ := json.Marshal(map[string]any{"type": "cmd", "cmd": map[string]any{"command": []string{"sh", "-c", script}}, "wait_until_done": wait})
	return string(data)
}

func (w *world) context(id, body string) map[string]any {
	w.T.Helper()
	return data(w.Do("POST", all+"/"+id+"/contexts", body), http.StatusCreated)
}

// await asks for a context until something holds of it.
func (w *world) await(id, ctx string, holds func(map[string]any) bool) map[string]any {
	w.T.Helper()
	for end := time.Now().Add(soon); ; time.Sleep(5 * time.Millisecond) {
		v := data(w.Do("GET", all+"/"+id+"/contexts/"+ctx, ""), 200)
		if holds(v) {
			return v
		}
		if time.Now().After(end) {
			w.T.Fatalf("it stays %v", v)
		}
	}
}

func ended(v map[string]any) bool { return v["running"] == false }

func (w *world) contexts(id string) (ids []string) {
	w.T.Helper()
	for _, one := range data(w.Do("GET", all+"/"+id+"/contexts", ""), 200)["contexts"].([]any) {
		ids = append(ids, one.(map[string]any)["id"].(string))
	}
	return ids
}

func TestCommand(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	v := w.context(id, shell("echo out; echo err >&2; exit 3", true))
	if v["stdout"] != "out\n" || v["stderr"] != "err\n" || v["exit_code"] != 3. || v["state"] != "crashed" || v["running"] != false || len(v["output_raw"].(string)) != 8 {
		t.Errorf("ended: %v", v)
	}
	for script, state := range map[string]string{"exit 0": "stopped", "kill -9 $$": "killed", "exit 137": "killed"} {
		if v := w.context(id, shell(script, true)); v["state"] != state {
			t.Errorf("%s: %v", script, v)
		}
	}
	v = w.context(id, `{"cmd":{"command":["sh","-c","echo $A; pwd"]},"env_vars":{"A":"b"},"cwd":"/","wait_until_done":true}`)
	if v["stdout"] != "b\n/\n" || v["type"] != "cmd" || v["cwd"] != "/" {
		t.Errorf("with an environment: %v", v)
	}
	if !w.drained() {
		t.Error("a lease is open though nothing runs")
	}
}

func TestCommandThatRuns(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	ctx := w.context(id, shell("while read x; do echo got $x; done; exit 5", false))["id"].(string)
	at := all + "/" + id + "/contexts/" + ctx
	if !slices.Equal(w.contexts(id), []string{ctx}) {
		t.Errorf("listed %v", w.contexts(id))
	}
	data(w.Do("POST", at+"/input", `{"data":"one\n"}`), 200)
	w.await(id, ctx, func(v map[string]any) bool { return v["stdout"] == "got one\n" && v["running"] == true })
	fails(w.Do("POST", at+"/exec", `{"data":"x"}`), http.StatusBadRequest, "invalid_request", "input")
	fails(w.Do("POST", at+"/resize", `{"rows":3,"cols":3}`), http.StatusConflict, "pty_unavailable")
	data(w.Do("POST", at+"/signal", `{"signal":"SIGTERM"}`), 200)
	w.await(id, ctx, ended)
	fails(w.Do("POST", at+"/input", `{"data":"one\n"}`), http.StatusGone, "process_finished")
	fails(w.Do("POST", at+"/signal", `{"signal":15}`), http.StatusGone, "process_finished")
	for _, bad := range []string{`{"signal":"NONE"}`, `{"signal":0}`, `{"signal":65}`, `{"signal":{}}`, `{"signal":1.5}`, `{}`} {
		fails(w.Do("POST", at+"/signal", bad), http.StatusBadRequest, "bad_request", "signal")
	}
	if v := data(w.Do("POST", at+"/restart", ""), 200); v["running"] != true || v["id"] != ctx {
		t.Errorf("restarted: %v", v)
	}
	data(w.Do("POST", at+"/input", `{"data":"two\n"}`), 200)
	w.await(id, ctx, func(v map[string]any) bool { return strings.HasSuffix(v["stdout"].(string), "got two\n") })
	data(w.Do("DELETE", at, ""), 200)
	fails(w.Do("GET", at, ""), http.StatusNotFound, "context_not_found")
	if len(w.contexts(id)) != 0 {
		t.Error("it is still listed")
	}
}

func TestContextsRefuse(t *testing.T) {
	w := newWorld(t)
	at := all + "/" + w.claim("") + "/contexts"
	for body, words := range map[string][]string{
		`{"type":"cmd"}`:                                                         {"cmd.command"},
		`{"type":"cmd","cmd":{"command":[]}}`:                                    {"cmd.command"},
		`{"type":"cmd","cmd":{"command":"ls"}}`:                                  {"cmd.command", "array"},
		`{"type":"cmd","cmd":{"command":["ls"]},"repl":{"input":"x"}}`:           {"repl.input"},
		`{"type":"repl","cmd":{"command":["ls"]}}`:                               {"cmd.command"},
		`{"type":"repl","pty_size":{"rows":1,"cols":1}}`:                         {"pty_size.rows"},
		`{"type":"repl","ttl_sec":5}`:                                            {"ttl_sec"},
		`{"type":"cmd","cmd":{"command":["ls"]},"pty_size":{"rows":1}}`:          {"pty_size"},
		`{"type":"cmd","cmd":{"command":["ls"]},"pty_size":{"rows":0,"cols":1}}`: {"pty_size.rows"},
		`{"idle_timeout_sec":5}`:                                                 {"idle_timeout_sec"},
		`{"type":"shell"}`:                                                       {"type"},
		`{"env_vars":{"A=":"b"}}`:                                                {"env_vars"},
		`{"repl":{"repl_config":{"a":1}}}`:                                       {"repl.repl_config"},
	} {
		fails(w.Do("POST", at, body), http.StatusBadRequest, "bad_request", words...)
	}
	fails(w.Do("POST", at, `{"cmd":{"command":["/no/such"]}}`), http.StatusBadRequest, "invalid_request", "/no/such")
	fails(w.Do("POST", at, `{"repl":{"alias":"cobol"}}`), http.StatusBadRequest, "invalid_request", "cobol")
	fails(w.Do("GET", at+"/ctx-x", ""), http.StatusNotFound, "context_not_found")
	fails(w.Do("GET", at+"/ctx-x/ws", ""), http.StatusNotFound, "context_not_found")
}

func TestREPL(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	for alias, language := range map[string]string{"": "python", "python": "python", "node": "javascript", "bash": "bash"} {
		ctx := w.context(id, fmt.Sprintf(`{"type":"repl","repl":{"alias":%q},"env_vars":{"A":"b"}}`, alias))
		at := all + "/" + id + "/contexts/" + ctx["id"].(string)
		v := data(w.Do("POST", at+"/exec", `{"data":"x"}`), 200)
		if out := language + ":x:b\n"; v["stdout"] != out+"42\n" || v["stderr"] != "err\n" || v["output_raw"] != out+"err\n42\n" {
			t.Errorf("%s: %v", alias, v)
		}
		if v := data(w.Do("POST", at+"/exec", `{"data":"fail"}`), 200); v["stderr"] != "Traceback: E\n" {
			t.Errorf("%s: %v", alias, v)
		}
		fails(w.Do("POST", at+"/exec", `{"data":"flood"}`), http.StatusRequestEntityTooLarge, "invalid_request", "8 MiB")
		data(w.Do("POST", at+"/restart", ""), 200)
		fails(w.Do("POST", at+"/signal", `{"signal":"INT"}`), http.StatusConflict, "process_not_running")
		fails(w.Do("POST", at+"/signal", `{"signal":"KILL"}`), http.StatusBadRequest, "invalid_request")
		data(w.Do("POST", at+"/input", `{"data":"later"}`), 200)
		w.await(id, ctx["id"].(string), func(v map[string]any) bool { return strings.Contains(v["stdout"].(string), ":later:") })
		data(w.Do("DELETE", at, ""), 200)
		fails(w.Do("POST", at+"/exec", `{"data":"x"}`), http.StatusNotFound, "context_not_found")
	}
	v := w.context(id, `{"repl":{"alias":"python","input":"first"},"wait_until_done":true}`)
	if v["stdout"] != "python:first:\n42\n" || v["running"] != true {
		t.Errorf("with a first input: %v", v)
	}
}

// TestMovedWithANewContext: a create whose sandbox goes to another server goes there too, or has made the
// context and says so; never both.
func TestMovedWithANewContext(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	others := &apitest.Others{}
	w.HTTP = others.Before(w.HTTP)
	at, body := all+"/"+id+"/contexts", `{"repl":{"alias":"python","input":"first"},"wait_until_done":true}`
	passed, made := 0, 0
	for n := 1; n < 20; n++ {
		before := len(w.contexts(id))
		others.Got = nil
		w.inside.leaveAfter(n)
		a := w.Do("POST", at, body)
		w.inside.leaveAfter(0)
		is := len(w.contexts(id)) - before
		if a.Status == http.StatusCreated {
			break
		}
		switch len(others.Got) {
		case 0:
			fails(a, http.StatusServiceUnavailable, "unavailable", "has left this server")
			made++
		case 1:
			passed++
		}
		if is+len(others.Got) != 1 {
			t.Errorf("after %d accesses: %d, passed on %q, %d contexts are made", n-1, a.Status, others.Got, is)
		}
	}
	if passed == 0 || made == 0 {
		t.Errorf("%d were passed on, and %d had made theirs", passed, made)
	}
}

// TestInputsOfAREPLAreBounded: what waits is refused past a number, and a signal
// interrupts all.
func TestInputsOfAREPLAreBounded(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	at := all + "/" + id + "/contexts/" + w.context(id, `{}`)["id"].(string)
	refused := false
	for end := time.Now().Add(soon); !refused && time.Now().Before(end); {
		a := w.Do("POST", at+"/input", `{"data":"wait"}`)
		refused = a.Status == http.StatusConflict
		if refused {
			fails(a, http.StatusConflict, "input_buffer_full")
		}
	}
	if !refused {
		t.Fatal("nothing was refused")
	}
	data(w.Do("POST", at+"/signal", `{"signal":"INT"}`), 200)
	for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		if w.Do("POST", at+"/exec", `{"data":"x"}`).Status == 200 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the interrupt freed nothing")
		}
	}
}

// TestSleep has contexts outlive a pause of memory: what the process prints
// afterwards is read on, by whoever asks first, and that wakes the sandbox.
func TestSleep(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	ctx := w.context(id, shell("while read x; do echo got $x; done; exit 5", false))["id"].(string)
	code := w.context(id, `{}`)["id"].(string)
	data(w.Do("POST", all+"/"+id+"/pause", ""), 200)
	if v := w.sandbox(id); v["status"] != "paused" || !w.drained() {
		t.Errorf("asleep: %v", v)
	}
	data(w.Do("POST", all+"/"+id+"/contexts/"+ctx+"/input", `{"data":"one\n"}`), 200)
	if v := w.sandbox(id); v["status"] != "running" || v["runtime_generation"] != 2. {
		t.Errorf("after an input: %v", v)
	}
	w.await(id, ctx, func(v map[string]any) bool { return v["stdout"] == "got one\n" })
	data(w.Do("POST", all+"/"+id+"/contexts/"+code+"/exec", `{"data":"x"}`), 200)
	// A boot leaves nothing of them but what the command had printed.
	data(w.Do("POST", all+"/"+id+"/pause", ""), 200)
	if !w.drained() {
		t.Fatal("a lease is open on a sandbox that sleeps")
	}
	w.inside.processes.lose()
	w.inside.code.Config.Handler.(*kernels).lose()
	if got := w.contexts(id); !slices.Equal(got, []string{ctx}) {
		t.Errorf("after a boot there are %v", got)
	}
	if v := data(w.Do("GET", all+"/"+id+"/contexts/"+ctx, ""), 200); v["running"] != false || v["exit_code"] != nil || v["stdout"] != "got one\n" {
		t.Errorf("after a boot it is %v", v)
	}
	fails(w.Do("POST", all+"/"+id+"/contexts/"+ctx+"/input", `{"data":"x"}`), http.StatusGone, "process_finished")
	if v := data(w.Do("POST", all+"/"+id+"/contexts/"+ctx+"/restart", ""), 200); v["running"] != true {
		t.Errorf("restarted: %v", v)
	}
	fails(w.Do("POST", all+"/"+id+"/contexts/"+code+"/exec", `{"data":"x"}`), http.StatusNotFound, "context_not_found")
}

func (k *kernels) lose() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.there = map[string]string{}
}

// drained waits until no lease is open.
func (w *world) drained() bool {
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		w.inside.mu.Lock()
		open := w.inside.open
		w.inside.mu.Unlock()
		if open == 0 {
			return true
		}
	}
	return false
}

// TestWaitEndsWithASleep: who waits for a command is told that the sandbox sleeps.
func TestWaitEndsWithASleep(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	answer := make(chan apitest.Answer)
	go func() { answer <- w.Do("POST", all+"/"+id+"/contexts", shell("exec sleep 100", true)) }()
	// Until the command runs inside, the pause may come first, and its start wake the
	// sandbox. A context is running from its first answer on.
	for end := time.Now().Add(soon); w.inside.processes.count() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the command does not run")
		}
	}
	data(w.Do("POST", all+"/"+id+"/pause", ""), 200)
	fails(<-answer, http.StatusServiceUnavailable, "unavailable", "put to sleep")
}

func TestAutoResumeOff(t *testing.T) {
	w := newWorld(t)
	id := w.claim(`{"config":{"auto_resume":false}}`)
	ctx := w.context(id, shell("exit 0", true))["id"].(string)
	data(w.Do("POST", all+"/"+id+"/pause", ""), 200)
	for _, r := range routes {
		if r.effect != enters {
			continue
		}
		path := strings.ReplaceAll(apitest.PathOf(r.pattern, sandboxParam, id), "x1", ctx) + queryOf(r, "/nowhere")
		fails(w.Do(r.method, path, bodyOf(r)), http.StatusServiceUnavailable, "unavailable", "autoResume is off")
	}
	if v := w.sandbox(id); v["status"] != "paused" {
		t.Errorf("it is %v", v)
	}
}

// queryOf is what a route on a file needs to know of it, where its body does not say it.
func queryOf(r route, path string) string {
	if !strings.HasPrefix(r.pattern, allFiles) || r.reads.Body != nil {
		return ""
	}
	return "?path=" + path
}

// TestEffects: every route that enters wakes a sandbox that sleeps, and no other
// does, but for a resume.
func TestEffects(t *testing.T) {
	for _, r := range routes {
		if !strings.Contains(r.pattern, "{"+sandboxParam+"}") || strings.HasSuffix(r.pattern, "/resume") {
			continue
		}
		w := newWorld(t)
		id := w.claim("")
		data(w.Do("POST", all+"/"+id+"/pause", ""), 200)
		a := w.Do(r.method, apitest.PathOf(r.pattern, sandboxParam, id)+queryOf(r, t.TempDir()+"/at/all"), bodyOf(r)) // the guest is this machine
		if woke := w.Fake.Sandboxes[id].Record.Generation == 2; woke != (r.effect == enters) {
			t.Errorf("%s %s: woken %v; %d %s", r.method, r.pattern, woke, a.Status, a.Body)
		}
	}
}

// TestRestartOfTheServer has contexts be after it what they were before.
func TestRestartOfTheServer(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	at := all + "/" + id + "/contexts/"
	restart := func() {
		w.HTTP = New(t.Context(), Options{Sandboxes: w.inside, Templates: apitest.NewTemplates(w.Fake), Snapshots: apitest.NewSnapshots(w.Fake), Builds: apitest.NewBuilds(), Volumes: w.Fake, Contexts: w.rows, Auth: apitest.Keyring{}})
	}
	made := []map[string]any{
		w.context(id, `{"cmd":{"command":["sh","-c","while read x; do echo got $x; done; exit 5"]},"env_vars":{"A":"b"},"cwd":"/"}`),
		w.context(id, `{"cmd":{"command":["cat"]},"pty_size":{"rows":10,"cols":20}}`),
		w.context(id, `{"repl":{"alias":"node"},"env_vars":{"A":"b"}}`),
		w.context(id, shell("exit 3", true)),
	}
	var ids []string
	for _, v := range made {
		ids = append(ids, v["id"].(string))
	}
	restart()
	for i, v := range data(w.Do("GET", all+"/"+id+"/contexts", ""), 200)["contexts"].([]any) {
		delete(made[i], "output_raw")
		delete(made[i], "stdout")
		delete(made[i], "stderr")
		if !reflect.DeepEqual(v, any(made[i])) {
			t.Errorf("context %d is %v, was %v", i, v, made[i])
		}
	}
	if made[3]["exit_code"] != 3. || made[3]["state"] != "crashed" {
		t.Errorf("it has ended as %v", made[3])
	}
	data(w.Do("POST", at+ids[0]+"/input", `{"data":"one\n"}`), 200)
	w.await(id, ids[0], func(v map[string]any) bool { return v["stdout"] == "got one\n" })
	data(w.Do("POST", at+ids[1]+"/input", `{"data":"x"}`), 200)
	data(w.Do("POST", at+ids[1]+"/resize", `{"rows":3,"cols":3}`), 200)
	if in := w.inside.processes.typed; in != "x" {
		t.Errorf("the terminal got %q", in)
	}
	if v := data(w.Do("POST", at+ids[2]+"/exec", `{"data":"x"}`), 200); v["stdout"] != "javascript:x:b\n42\n" {
		t.Errorf("the REPL said %v", v)
	}
	// One that is started again has not ended, and how it ends then is known once more.
	data(w.Do("POST", at+ids[3]+"/restart", ""), 200)
	w.await(id, ids[3], ended)
	data(w.Do("DELETE", at+ids[0], ""), 200)
	data(w.Do("POST", at+ids[1]+"/signal", `{"signal":"KILL"}`), 200)
	w.await(id, ids[1], ended)
	restart()
	if got := w.contexts(id); !slices.Equal(got, ids[1:]) {
		t.Fatalf("after another restart there are %v, want %v", got, ids[1:])
	}
	for i, state := range map[int]string{1: "killed", 3: "crashed"} {
		if v := data(w.Do("GET", at+ids[i], ""), 200); v["running"] != false || v["state"] != state {
			t.Errorf("context %d is %v, want it %s", i, v, state)
		}
	}
}

// TestContextsOfAnEarlierServer: what no row tells of is found by its process.
func TestContextsOfAnEarlierServer(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	ctx := w.context(id, shell("while read x; do echo got $x; done", false))["id"].(string)
	if err := w.rows.RemoveContext(t.Context(), id, ctx); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.HTTP = New(t.Context(), Options{Sandboxes: w.inside, Templates: apitest.NewTemplates(w.Fake), Snapshots: apitest.NewSnapshots(w.Fake), Builds: apitest.NewBuilds(), Volumes: w.Fake, Contexts: w.rows, Auth: apitest.Keyring{}})
		if got := w.contexts(id); !slices.Equal(got, []string{ctx}) {
			t.Fatalf("found %v", got)
		}
	}
	data(w.Do("POST", all+"/"+id+"/contexts/"+ctx+"/input", `{"data":"one\n"}`), 200)
	w.await(id, ctx, func(v map[string]any) bool { return v["stdout"] == "got one\n" && v["type"] == "cmd" })
}

// TestContextsAreBounded: the oldest that has ended makes room, and without one
// the next is refused.
func TestContextsAreBounded(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	first := w.context(id, shell("exit 0", true))["id"].(string)
	for range store.MostContexts {
		w.context(id, `{}`)
		if len(w.contexts(id)) == store.MostContexts {
			break
		}
	}
	w.context(id, `{}`)
	if slices.Contains(w.contexts(id), first) {
		t.Error("what had ended is still there")
	}
	fails(w.Do("POST", all+"/"+id+"/contexts", `{}`), http.StatusTooManyRequests, "quota_exceeded", "64")
}

// TestOutputIsBounded: of a long output the end is kept, and it says so.
func TestOutputIsBounded(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	v := w.context(id, shell("yes 0123456789abcde | head -c 6000000; echo the end", true))
	out := v["stdout"].(string)
	if len(out) > maxKept || len(out) < maxKept/2 || !strings.HasSuffix(out, "the end\n") || !strings.Contains(v["stderr"].(string), "not kept") {
		t.Errorf("%d bytes are kept, stderr %q", len(out), v["stderr"])
	}
	w.Fake.Kill(t.Context(), id, "")
	s := w.HTTP.(*server)
	s.contexts.tidy = time.Time{}
	s.contexts.clean()
	if left := s.Room.All().Kept; left != 0 {
		t.Errorf("%d bytes are kept of a sandbox that has ended", left)
	}
}

// TestCharactersStayWhole: a character that comes in two pieces is one.
func TestCharactersStayWhole(t *testing.T) {
	s := newWorld(t).HTTP.(*server)
	o := newOutput(s.Room.Output("k"))
	for i := range len("aä€😀z") {
		o.write(fromStdout, "aä€😀z"[i:i+1])
	}
	o.write(fromStderr, "\xff\xfe!")
	if _, out, errs := o.texts(); out != "aä€😀z" || !strings.HasSuffix(errs, "!") || !strings.HasPrefix(errs, "\uFFFD") {
		t.Errorf("%q, %q", out, errs)
	}
}

// dial opens the WebSocket of a context.
func (w *world) dial(path string) *websocket.Conn {
	w.T.Helper()
	srv := httptest.NewServer(w.HTTP)
	w.T.Cleanup(srv.Close)
	ctx, cancel := context.WithTimeout(w.T.Context(), soon)
	w.T.Cleanup(cancel)
	c, res, err := websocket.Dial(ctx, srv.URL+path, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + goodKey}}})
	if err != nil {
		w.T.Fatal(err, res)
	}
	w.T.Cleanup(func() { c.CloseNow() })
	return c
}

func say(t *testing.T, c *websocket.Conn, message string) {
	t.Helper()
	if err := c.Write(t.Context(), websocket.MessageText, []byte(message)); err != nil {
		t.Fatal(err)
	}
}

// hear reads messages until one is of a type, and returns the output before it.
func hear(t *testing.T, c *websocket.Conn, kind string) (last map[string]any, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for {
		_, data, err := c.Read(ctx)
		if err != nil {
			t.Fatalf("after %q: %v", output, err)
		}
		last = nil
		if err := json.Unmarshal(data, &last); err != nil {
			t.Fatal(err)
		}
		if last["type"] == "output" {
			output += last["source"].(string) + ":" + last["data"].(string)
		}
		if last["type"] == kind {
			return last, output
		}
	}
}

func TestSocketOfACommand(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	ctx := w.context(id, shell("echo ready; while read x; do echo got $x; [ $x = end ] && exit 4; done", false))["id"].(string)
	w.await(id, ctx, func(v map[string]any) bool { return v["stdout"] == "ready\n" })
	c := w.dial(all + "/" + id + "/contexts/" + ctx + "/ws")
	say(t, c, `{"type":"resize","rows":2,"cols":2}`)
	if m, _ := hear(t, c, "error"); !strings.Contains(m["error"].(string), "no terminal") {
		t.Errorf("resize: %v", m)
	}
	for _, bad := range []string{`{`, `[]`, `{"type":"sing"}`, `{"type":"signal"}`, `{"type":"signal","signal":"X"}`, `{"type":"resize","rows":-1}`, `7`} {
		say(t, c, bad)
		hear(t, c, "error")
	}
	say(t, c, `{"type":"input","data":"end\n"}`)
	m, _ := hear(t, c, "done")
	if m["exit_code"] != 4. || m["state"] != "crashed" {
		t.Errorf("done: %v", m)
	}
	if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("closed with %v", err)
	}
	// Who comes later sees all of it.
	m, output := hear(t, w.dial(all+"/"+id+"/contexts/"+ctx+"/ws"), "done")
	if output != "stdout:ready\ngot end\n" && output != "stdout:ready\nstdout:got end\n" || m["exit_code"] != 4. {
		t.Errorf("afterwards: %q, %v", output, m)
	}
}

func TestSocketOfAREPL(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	ctx := w.context(id, `{}`)["id"].(string)
	c := w.dial(all + "/" + id + "/contexts/" + ctx + "/ws")
	say(t, c, `{"type":"input","data":"x","request_id":"r1"}`)
	say(t, c, `{"type":"input","data":"fail","request_id":"r2"}`)
	m, output := hear(t, c, "done")
	if m["request_id"] != "r1" || m["exit_code"] != nil || !strings.HasPrefix(output, "stdout:python:x:\n") {
		t.Errorf("done: %v after %q", m, output)
	}
	if m, output := hear(t, c, "done"); m["request_id"] != "r2" || !strings.Contains(output, "Traceback") {
		t.Errorf("done: %v after %q", m, output)
	}
	say(t, c, `{"type":"input","data":"wait","request_id":"r3"}`)
	w.await(id, ctx, func(map[string]any) bool {
		return w.Do("POST", all+"/"+id+"/contexts/"+ctx+"/signal", `{"signal":"INT"}`).Status == 200
	})
	if m, _ := hear(t, c, "done"); m["request_id"] != "r3" {
		t.Errorf("interrupted: %v", m)
	}
	// The code of a client that has gone is interrupted, so that the next runs.
	say(t, c, `{"type":"input","data":"wait"}`)
	c.CloseNow()
	data(w.Do("POST", all+"/"+id+"/contexts/"+ctx+"/exec", `{"data":"x"}`), 200)
}

// TestSocketEndsWithASleep as streams at the edge do, and with the API key.
func TestSocketEndsWithASleep(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	ctx := w.context(id, shell("exec sleep 100", false))["id"].(string)
	c := w.dial(all + "/" + id + "/contexts/" + ctx + "/ws")
	data(w.Do("POST", all+"/"+id+"/pause", ""), 200)
	if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusServiceRestart || !strings.Contains(err.Error(), "put to sleep") {
		t.Errorf("closed with %v", err)
	}
	if !w.drained() {
		t.Error("a lease is open on a sandbox that sleeps")
	}
	if s := w.Fake.Sandboxes[id].Record.State; s != lifecycle.Paused {
		t.Errorf("it is %s", s)
	}
}
