package interpreter

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnswers(t *testing.T) {
	s := newServer(t)
	s.host.hidden = "bash"
	for _, c := range []struct {
		name, method, path string
		body               any
		status             int
		text               string
	}{
		{"health", "GET", "/health", nil, 200, `"OK"`},
		{"with a query", "GET", "/health?source=ci", nil, 200, `"OK"`},
		{"unknown path", "GET", "/nothing", nil, 404, "no such endpoint: /nothing"},
		{"wrong method", "GET", "/execute", nil, 405, "method GET is not allowed on /execute"},
		{"context and language", "POST", "/execute", object{"code": "1", "context_id": "x", "language": "python"}, 400,
			"Only one of context_id or language can be provided"},
		{"unknown context", "POST", "/execute", object{"code": "1", "context_id": "x"}, 404, "Context x not found"},
		{"restart of an unknown context", "POST", "/contexts/x/restart", nil, 404, "Context x not found"},
		{"removal of an unknown context", "DELETE", "/contexts/x", nil, 404, "Context x not found"},
		{"no code", "POST", "/execute", object{"language": "python"}, 422, `{"detail":"code: field required"}`},
		{"code that is no text", "POST", "/execute", object{"code": 1}, 422,
			`{"detail":"body: json: cannot unmarshal number into Go struct field executeRequest.code of type string"}`},
		{"no JSON", "POST", "/execute", "nothing", 422, `{"detail":"body: invalid character 'o' in literal null (expecting 'u')"}`},
		{"no variable", "POST", "/execute", object{"code": "1", "env_vars": object{"a=b": "c"}}, 422, `{"detail":"env_vars has a name that no variable can have: \"a=b\""}`},
		{"R", "POST", "/execute", object{"code": "1", "language": " R "}, 500,
			"language 'r' is not supported here: it needs R with IRkernel; there are python, javascript, typescript and bash"},
		{"Java", "POST", "/contexts", object{"language": "java"}, 500,
			"language 'java' is not supported here: it needs a JDK with a Java kernel; there are python, javascript, typescript and bash"},
		{"unknown language", "POST", "/contexts", object{"language": "cobol"}, 500,
			"there is no kernel 'cobol': use python, javascript, typescript or bash"},
		{"missing program", "POST", "/execute", object{"code": "1", "language": "bash"}, 500, "language 'bash' needs bash, which is not installed here"},
	} {
		status, text := s.call(c.method, c.path, c.body)
		equal(t, c.name+": status", status, c.status)
		equal(t, c.name+": text", text, c.text)
	}
}

func (s *interpreterServer) contexts() []contextView {
	s.t.Helper()
	_, body := s.call("GET", "/contexts", nil)
	var list []contextView
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		s.t.Fatalf("contexts %q: %v", body, err)
	}
	return list
}

func (s *interpreterServer) create(body object) contextView {
	s.t.Helper()
	status, text := s.call("POST", "/contexts", body)
	var c contextView
	if err := json.Unmarshal([]byte(text), &c); err != nil || status != http.StatusOK {
		s.t.Fatalf("create: %d %q", status, text)
	}
	return c
}

func (s *interpreterServer) runIn(context contextView, code string) outcome {
	s.t.Helper()
	return s.collect(s.start(s.t.Context(), object{"code": code, "context_id": context.ID}))
}

func TestContexts(t *testing.T) { withEach(t, testContexts) }

func testContexts(t *testing.T, s *interpreterServer) {
	first := s.contexts()
	if len(first) != 2 || first[0].Language != "python" || first[1].Language != "javascript" || first[0].Cwd != "/home/user" {
		t.Fatalf("default contexts: %+v", first)
	}
	dir := t.TempDir()
	made := s.create(object{"cwd": dir})
	equal(t, "made", made, contextView{made.ID, "python", dir})
	s.create(object{"language": nil, "cwd": nil})
	equal(t, "shell", strings.Join(s.run("bash", "echo 1").stdout, ""), "1\n")
	list := s.contexts()
	equal(t, "number", len(list), 5)
	equal(t, "order", list[2], made)
	equal(t, "lazily made default", list[4].Language, "bash")

	equal(t, "directory", s.runIn(made, "import os; x = 1; os.getcwd()").text(), any(dir))
	equal(t, "default is another", s.run("python", "'x' in globals()").text(), any("False"))
	equal(t, "default by id", s.runIn(first[0], "'default'").text(), any("default"))

	status, text := s.call("DELETE", "/contexts/"+made.ID, nil)
	equal(t, "removal", []any{status, text}, []any{200, "null"})
	status, text = s.call("POST", "/execute", object{"code": "1", "context_id": made.ID})
	equal(t, "removed", []any{status, text}, []any{404, "Context " + made.ID + " not found"})
	s.call("DELETE", "/contexts/"+first[0].ID, nil)
	equal(t, "a new default", s.run("python", "'new'").text(), any("new"))

	status, text = s.call("POST", "/execute", object{"code": "1", "context_id": s.create(object{"cwd": "/does/not/exist"}).ID})
	if status != 500 || !strings.Contains(text, "no such file or directory") {
		t.Errorf("missing directory: %d %q", status, text)
	}
}

func TestRestart(t *testing.T) { withEach(t, testRestart) }

func testRestart(t *testing.T, s *interpreterServer) {
	c := s.create(object{})
	equal(t, "first", s.runIn(c, "x = 1").count, 1)
	equal(t, "second", s.runIn(c, "x").count, 2)
	running := s.start(t.Context(), object{"code": "print('begun')\nimport time; time.sleep(1000)", "context_id": c.ID})
	s.awaitOutput(running, "begun\n")
	status, text := s.call("POST", "/contexts/"+c.ID+"/restart", nil)
	equal(t, "restart", []any{status, text}, []any{200, "null"})
	o := s.collect(running)
	if len(o.errors) != 1 || o.errors[0]["name"] != "ContextRestarting" {
		t.Errorf("the running cell: %v", o.errors)
	}
	o = s.runIn(c, "'x' in globals()")
	equal(t, "state", o.text(), any("False"))
	equal(t, "count", o.count, 1)

	running = s.start(t.Context(), object{"code": "print('begun')\nimport time; time.sleep(1000)", "context_id": c.ID})
	s.awaitOutput(running, "begun\n")
	s.call("DELETE", "/contexts/"+c.ID, nil)
	o = s.collect(running)
	if len(o.errors) != 1 || o.errors[0]["name"] != "ExecutionAborted" {
		t.Errorf("the cell of a removed context: %v", o.errors)
	}
}

func (s *interpreterServer) awaitOutput(messages <-chan object, text string) {
	s.t.Helper()
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); {
		switch m := s.next(messages); m["type"] {
		case typeStdout:
			equal(s.t, "output", m["text"], any(text))
			return
		case typeError:
			s.t.Fatalf("instead of output %q: %v", text, m)
		}
	}
	s.t.Fatalf("no output %q", text)
}

func TestVariables(t *testing.T) { withEach(t, testVariables) }

func testVariables(t *testing.T, s *interpreterServer) {
	for language, code := range map[string]string{
		"python":     "import os\nprint(os.environ.get('GLOBAL'), os.environ.get('OWN'))",
		"javascript": "console.log(process.env.GLOBAL ?? 'None', process.env.OWN ?? 'None')",
		"bash":       `echo "${GLOBAL-None}" "${OWN-None}"`,
	} {
		run := func(variables object) string {
			body := object{"code": code, "language": language}
			if variables != nil {
				body["env_vars"] = variables
			}
			return strings.Join(s.collect(s.start(t.Context(), body)).stdout, "")
		}
		equal(t, language+": global", run(nil), "global None\n")
		equal(t, language+": of the run", run(object{"GLOBAL": "other", "OWN": "a 'b' \"c\"\nd"}), "other a 'b' \"c\"\nd\n")
		equal(t, language+": afterwards", run(nil), "global None\n")
	}
}

// interrupted are cells that have no end, and show that the state is kept. The
// one of bash speaks from the process it waits for: a terminal's interrupt
// that comes while bash makes that process meets neither of them.
var interrupted = []interruptedCell{
	{"python", "python", "kept = 'kept'", "print('begun')\nimport time; time.sleep(1000)", "print(kept)", "kept\n"},
	{"python loop", "python", "", "print('begun')\nwhile True: pass", "print(kept)", "kept\n"},
	{"python await", "python", "", "import asyncio\nprint('begun')\nawait asyncio.sleep(1000)", "print(kept)", "kept\n"},
	{"python child", "python", "", "print('begun')\n!sleep 1000", "print(kept)", "kept\n"},
	{"javascript await", "javascript", "var kept = 'kept'", "await null; console.log('begun'); await new Promise((done) => setTimeout(done, 1e6))", "console.log(kept)", "kept\n"},
	{"javascript loop", "javascript", "", "console.log('begun'); for (;;) {}", "console.log(kept)", "kept\n"},
	{"bash", "bash", "kept=kept", "while true; do sh -c 'echo begun; exec sleep 1000'; done", "echo $kept", "kept\n"},
}

type interruptedCell struct{ name, language, before, code, after, want string }

// A client that goes away interrupts its cell; the kernel and its state stay.
func TestDisconnectInterrupts(t *testing.T) { withEach(t, testDisconnectInterrupts) }

func testDisconnectInterrupts(t *testing.T, s *interpreterServer) {
	for _, c := range interrupted {
		s.interrupt(c)
	}
}

func (s *interpreterServer) interrupt(c interruptedCell) {
	s.t.Helper()
	if c.before != "" {
		s.run(c.language, c.before)
	}
	ctx, leave := context.WithCancel(s.t.Context())
	s.awaitOutput(s.start(ctx, object{"code": c.code, "language": c.language}), "begun\n")
	leave()
	o := s.run(c.language, c.after)
	equal(s.t, c.name, strings.Join(o.stdout, ""), c.want)
	equal(s.t, c.name+": errors", o.errors, []object(nil))
}

// What will not be interrupted loses its kernel.
func TestStubbornCell(t *testing.T) { withEach(t, testStubbornCell) }

func testStubbornCell(t *testing.T, s *interpreterServer) {
	ctx, leave := context.WithCancel(t.Context())
	code := "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun')\nwhile True: pass"
	s.awaitOutput(s.start(ctx, object{"code": code}), "begun\n")
	leave()
	equal(t, "next", s.run("python", "'signal' in globals()").text(), any("False"))
}

func TestCellsOfOneContextTakeTurns(t *testing.T) { withEach(t, testCellsOfOneContextTakeTurns) }

func testCellsOfOneContextTakeTurns(t *testing.T, s *interpreterServer) {
	gate := filepath.Join(t.TempDir(), "gate")
	wait := "import os, time\nprint('begun')\nwhile not os.path.exists(" + `"` + gate + `"` + "): time.sleep(0.01)\norder = ['first']"
	first := s.start(t.Context(), object{"code": wait})
	s.awaitOutput(first, "begun\n")
	second := s.start(t.Context(), object{"code": "order + ['second']"})
	// Quiet streams are kept alive, the one that waits for its turn too.
	equal(t, "waiting", s.next(second), object{"type": typeKeepalive})
	equal(t, "running", s.next(first), object{"type": typeKeepalive})
	equal(t, "another context", s.run("javascript", "'free'").text(), any("free"))
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.collect(first)
	equal(t, "second", s.collect(second).text(), any("['first', 'second']"))
}

// A client that reads nothing holds up its cell, and no other context.
func TestSlowReader(t *testing.T) { withEach(t, testSlowReader) }

func testSlowReader(t *testing.T, s *interpreterServer) {
	progress := filepath.Join(t.TempDir(), "progress")
	gate := filepath.Join(t.TempDir(), "gate")
	// Slow enough that Jupyter's kernel, which is stopped some time after there
	// is too much, cannot have printed all of it by then.
	code := "import os, time\nf = open('" + progress + "', 'w')\nfor i in range(200):\n    print('x' * 200_000)\n" +
		"    f.seek(0); f.write(str(i)); f.flush()\n    if not os.path.exists('" + gate + "'): time.sleep(0.1)"
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	res := s.send(ctx, http.MethodPost, "/execute", object{"code": code})
	defer res.Body.Close()
	read := func() string {
		data, err := os.ReadFile(progress)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(data)
	}
	before := "none"
	for deadline := time.Now().Add(waitLimit); read() == "" || read() != before; time.Sleep(500 * time.Millisecond) {
		if before = read(); time.Now().After(deadline) {
			t.Fatalf("the cell was not held up: at line %s", before)
		}
	}
	if before == "199" {
		t.Fatal("the cell ran to its end")
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	equal(t, "another context", s.run("javascript", "'free'").text(), any("free"))
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "lines", strings.Count(string(all), `\n`), 200)
}

func TestKernelThatEnds(t *testing.T) { withEach(t, testKernelThatEnds) }

func testKernelThatEnds(t *testing.T, s *interpreterServer) {
	o := s.run("python", "import os\nprint('last words')\nos._exit(7)")
	if s.host.jupyter == nil { // IPython keeps them for a moment
		equal(t, "output", strings.Join(o.stdout, ""), "last words\n")
	}
	if len(o.errors) != 1 || o.errors[0]["name"] != "UnexpectedEndOfExecution" ||
		o.errors[0]["value"] != "The kernel has ended (exit status 7); the next execution starts a new one" {
		t.Errorf("errors %v", o.errors)
	}
	o = s.run("python", "1")
	equal(t, "next", []any{o.text(), o.count}, []any{"1", 1})
}

// What is no message ends a kernel.
func TestEndlessMessage(t *testing.T) {
	s := newServer(t)
	o := s.run("python", "import os\nos.write(4, b'x' * (17 << 20))")
	if len(o.errors) != 1 || o.errors[0]["name"] != "UnexpectedEndOfExecution" {
		t.Errorf("after an endless message: %v", o.errors)
	}
	equal(t, "next", s.run("python", "2").text(), any("2"))
}

// Output between cells goes nowhere, and blocks nobody.
func TestOutputBetweenCells(t *testing.T) { withEach(t, testOutputBetweenCells) }

func testOutputBetweenCells(t *testing.T, s *interpreterServer) {
	gate := filepath.Join(t.TempDir(), "gate")
	s.run("python", "import subprocess\np = subprocess.Popen('for i in $(seq 100000); do echo background line $i; done; touch "+gate+"', shell=True)")
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(gate); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the background job is blocked")
		}
	}
	equal(t, "next", strings.Join(s.run("python", "print('next')").stdout, ""), "next\n")
}

func TestCharactersAreNotSplit(t *testing.T) {
	s := newServer(t)
	// Two of three bytes, and the rest after the first were read.
	o := s.run("python", "import os, time\nos.write(1, b'\\xe2\\x82'); time.sleep(0.3); n = os.write(1, b'\\xac\\n')\nn = os.write(1, b'\\xe2')")
	equal(t, "output", strings.Join(o.stdout, "|"), "€\n|\ufffd")

	res := s.send(t.Context(), http.MethodPost, "/execute", object{"code": "print('é€😀<&>')"})
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(all, []byte(`\u00e9\u20ac\ud83d\ude00<&>`)) {
		t.Errorf("stream %q", all)
	}
}
