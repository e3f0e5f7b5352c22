package cli_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/fakeserver"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// patience is for what should come at once.
var patience = testmode.Patience()

// agent is an MCP client of drowse mcp, which has a fake server.
type agent struct {
	t       *testing.T
	drowse  *client.Client
	url     string // of the fake server
	session *mcp.ClientSession
	server  *exec.Cmd // drowse mcp, where it is there for signals

	mu      sync.Mutex
	reports []string // of progress
	news    chan struct{}
}

// newAgent starts a fake server. connect then brings a client to it.
func newAgent(t *testing.T) *agent {
	t.Helper()
	fake := fakeserver.New(key, t.TempDir())
	srv := httptest.NewServer(fake)
	t.Cleanup(func() {
		fake.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	c, err := client.New(client.Options{URL: srv.URL, APIKey: key})
	if err != nil {
		t.Fatal(err)
	}
	return &agent{t: t, drowse: c, url: srv.URL, news: make(chan struct{}, 1)}
}

func (a *agent) connect(transport mcp.Transport) error {
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			a.mu.Lock()
			a.reports = append(a.reports, r.Params.Message)
			a.mu.Unlock()
			select {
			case a.news <- struct{}{}:
			default:
			}
		},
	})
	session, err := c.Connect(a.t.Context(), transport, nil)
	if err == nil {
		a.session = session
		a.t.Cleanup(func() { _ = session.Close() })
	}
	return err
}

// command is drowse mcp, as an agent starts it.
func (a *agent) command(env ...string) *exec.Cmd {
	cmd := exec.Command("drowse", "mcp")
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0", "DROWSE_URL="+a.url, "DROWSE_API_KEY="+key), env...)
	cmd.Stderr = os.Stderr
	return cmd
}

func overStdio(t *testing.T) *agent {
	t.Helper()
	a := newAgent(t)
	if err := a.connect(&mcp.CommandTransport{Command: a.command()}); err != nil {
		t.Fatal(err)
	}
	return a
}

// serveHTTP starts drowse mcp --http, and returns its address.
func (a *agent) serveHTTP(args ...string) string {
	a.t.Helper()
	cmd := a.command("DROWSE_API_KEY=")
	cmd.Args = append(cmd.Args, append([]string{"--http", "127.0.0.1:0"}, args...)...)
	cmd.Stderr = nil
	stderr, err := cmd.StderrPipe()
	if err != nil {
		a.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.server = cmd
	a.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stderr).ReadString('\n')
	found := regexp.MustCompile(`http://(\S+)/mcp;`).FindStringSubmatch(line)
	if err != nil || found == nil {
		a.t.Fatalf("it said %q, %v", line, err)
	}
	return found[1]
}

// withKey sends an API key with each request.
type withKey string

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

func overHTTP(t *testing.T) *agent {
	t.Helper()
	a := newAgent(t)
	at := &mcp.StreamableClientTransport{Endpoint: "http://" + a.serveHTTP() + "/mcp", HTTPClient: &http.Client{Transport: withKey(key)}}
	if err := a.connect(at); err != nil {
		t.Fatal(err)
	}
	return a
}

type args map[string]any

// call calls a tool that must succeed, and returns its output.
func (a *agent) call(tool string, in args) args {
	a.t.Helper()
	out, failed := a.try(a.t.Context(), tool, in)
	if failed {
		a.t.Fatalf("%s %v failed: %v", tool, in, out)
	}
	return out
}

// fails calls a tool that must not succeed, and returns the error.
func (a *agent) fails(tool string, in args) args {
	a.t.Helper()
	out, failed := a.try(a.t.Context(), tool, in)
	if !failed {
		a.t.Fatalf("%s %v succeeded: %v", tool, in, out)
	}
	failure, ok := out["error"].(map[string]any)
	if !ok || failure["message"] == "" {
		a.t.Fatalf("%s %v failed without an error: %v", tool, in, out)
	}
	return failure
}

// try calls a tool. The text of each result must be JSON, and the structured
// content the same where there is one.
func (a *agent) try(ctx context.Context, tool string, in args) (out args, failed bool) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	params := &mcp.CallToolParams{Name: tool, Arguments: in}
	params.SetProgressToken(tool)
	res, err := a.session.CallTool(ctx, params)
	if err != nil {
		a.t.Fatalf("%s %v: %v", tool, in, err)
	}
	text := res.Content[0].(*mcp.TextContent).Text
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		a.t.Fatalf("%s %v: %q is no JSON: %v", tool, in, text, err)
	}
	if res.StructuredContent != nil {
		structured, err := json.Marshal(res.StructuredContent)
		again, err2 := json.Marshal(out)
		if err != nil || err2 != nil || string(structured) != string(again) {
			a.t.Errorf("%s %v: the text %s is not the structured content %s", tool, in, again, structured)
		}
	}
	return out, res.IsError
}

// create makes a sandbox and returns its id.
func (a *agent) create() string {
	a.t.Helper()
	return a.call("create_sandbox", args{})["sandbox"].(string)
}

func (a *agent) awaitReport(pattern string) {
	a.t.Helper()
	re := regexp.MustCompile(pattern)
	after := time.After(patience)
	for {
		a.mu.Lock()
		for _, r := range a.reports {
			if re.MatchString(r) {
				a.mu.Unlock()
				return
			}
		}
		reports := fmt.Sprintf("%q", a.reports)
		a.mu.Unlock()
		select {
		case <-a.news:
		case <-after:
			a.t.Fatalf("no report matched %s: %s", pattern, reports)
		}
	}
}

// gone waits until no process of this machine has marker in its command line.
func (a *agent) gone(marker string) {
	a.t.Helper()
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		out, err := exec.Command("pgrep", "-f", marker).Output()
		if err != nil && len(out) == 0 {
			return
		}
		if time.Since(begin) > patience {
			a.t.Fatalf("a process with %s is still there: %s", marker, out)
		}
	}
}

func TestMCP(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(*testing.T) *agent{"stdio": overStdio, "http": overHTTP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := connect(t)
			a.life()
			a.work()
			a.files()
		})
	}
}

// life has every tool for the life of a sandbox called once.
func (a *agent) life() {
	t := a.t
	made := a.call("create_sandbox", args{"metadata": args{"for": "life"}})
	id := made["sandbox"].(string)
	if made["state"] != "running" || made["wakes_itself"] != true || !strings.Contains(made["next"].(string), "pause") {
		t.Errorf("created: %v", made)
	}
	a.create()
	listed := a.call("list_sandboxes", args{"limit": 1, "metadata": args{"for": "life"}})
	if list := listed["sandboxes"].([]any); len(list) != 1 || list[0].(map[string]any)["sandbox"] != id || listed["left_out"] != 0.0 {
		t.Errorf("list of one by its label: %v", listed)
	}
	if listed := a.call("list_sandboxes", args{"limit": 1}); len(listed["sandboxes"].([]any)) != 1 || listed["left_out"] != 1.0 {
		t.Errorf("list of one of two: %v", listed)
	}
	held := a.call("hold", args{"sandbox": id, "reason": "to think", "seconds": 60})
	x := a.call("why", args{"sandbox": id})
	if holds := x["holds"].([]any); x["busy"] != true || len(holds) != 1 || holds[0].(map[string]any)["detail"] != "to think" {
		t.Errorf("held: %v", x)
	}
	a.call("release_hold", args{"sandbox": id, "hold": held["hold"]})
	if x := a.call("why", args{"sandbox": id}); x["busy"] != false || len(x["events"].([]any)) == 0 {
		t.Errorf("released: %v", x)
	}
	if link := a.call("preview_url", args{"sandbox": id, "port": 8000, "path": "/docs"}); !strings.HasPrefix(link["url"].(string), "http") {
		t.Errorf("preview: %v", link)
	}
	snap := a.call("snapshot", args{"sandbox": id, "name": "before"})
	if made := a.call("create_sandbox", args{"snapshot": "before"}); made["state"] != "running" {
		t.Errorf("created from the snapshot %v: %v", snap, made)
	}
	if back := a.call("restore", args{"sandbox": id, "snapshot": "before"}); back["undo"] == nil || back["sandbox"].(map[string]any)["sandbox"] != id {
		t.Errorf("restored: %v", back)
	}
	listed = a.call("list_snapshots", args{"sandbox": id, "limit": 1})
	if list := listed["snapshots"].([]any); len(list) != 1 || list[0].(map[string]any)["undo"] != true || listed["left_out"] != 1.0 {
		t.Errorf("snapshots: %v", listed)
	}
	a.call("delete_snapshot", args{"snapshot": snap["snapshot"]})
	if failure := a.fails("restore", args{"sandbox": id, "snapshot": "before"}); !strings.Contains(failure["next_step"].(string), "list_snapshots") {
		t.Errorf("restored to one that was deleted: %v", failure)
	}
	if list := a.call("list_templates", args{})["templates"].([]any); len(list) == 0 || !slices.Contains(list[0].(map[string]any)["names"].([]any), any("base")) {
		t.Errorf("templates: %v", list)
	}
	children := a.call("fork", args{"sandbox": id, "count": 2})["children"].([]any)
	if len(children) != 2 || children[1].(map[string]any)["sandbox"].(map[string]any)["state"] != "running" {
		t.Errorf("children: %v", children)
	}
	if paused := a.call("pause", args{"sandbox": id}); paused["state"] != "paused" || paused["sleep"] != "deep" {
		t.Errorf("paused: %v", paused)
	}
	if failure := a.fails("hold", args{"sandbox": id, "reason": "too late"}); failure["sandbox_state"] != "paused" || !strings.Contains(failure["next_step"].(string), "resume") {
		t.Errorf("hold on one that sleeps: %v", failure)
	}
	if woken := a.call("resume", args{"sandbox": id}); woken["state"] != "running" {
		t.Errorf("resumed: %v", woken)
	}
	a.call("kill", args{"sandbox": id})
	if failure := a.fails("exec", args{"sandbox": id, "command": "true"}); !strings.HasPrefix(failure["sandbox_state"].(string), "terminated") || failure["next_step"] == "" {
		t.Errorf("exec in one that has ended: %v", failure)
	}
	if x := a.call("why", args{"sandbox": id}); !strings.Contains(x["ended"].(string), "Killed") {
		t.Errorf("why of one that has ended: %v", x)
	}
	if failure := a.fails("kill", args{"sandbox": "i0nothing"}); failure["sandbox_state"] != "not found" || !strings.Contains(failure["next_step"].(string), "list_sandboxes") {
		t.Errorf("kill of none: %v", failure)
	}
	if failure := a.fails("create_sandbox", args{"template": "base", "snapshot": "any"}); failure["code"] != "invalid_argument" {
		t.Errorf("create from two: %v", failure)
	}
	if failure := a.fails("create_sandbox", args{"template": "full"}); failure["code"] != "too_many_sandboxes" {
		t.Errorf("create over a limit: %v", failure)
	}
}

// work runs commands and code: how they end, wake, time out and are bounded.
func (a *agent) work() {
	t := a.t
	id := a.create()
	out := a.call("exec", args{"sandbox": id, "command": "echo out; echo $X >&2; cat; exit 3", "env": args{"X": "err"}, "stdin": "in"})
	if out["exit_code"] != 3.0 || out["stdout"] != "out\nin" || out["stderr"] != "err\n" || out["slept_before"] != false {
		t.Errorf("exec: %v", out)
	}
	a.awaitReport(`^stdout: out\n`)
	a.awaitReport(`^stderr: err\n$`)
	out = a.call("exec", args{"sandbox": id, "command": "kill -TERM $$"})
	if out["exit_code"] != 143.0 {
		t.Errorf("exec of one that a signal ends: %v", out)
	}
	a.call("pause", args{"sandbox": id})
	if out := a.call("exec", args{"sandbox": id, "command": "echo awake"}); out["stdout"] != "awake\n" || out["slept_before"] != true {
		t.Errorf("exec over sleep: %v", out)
	}
	marker := "marker-timeout-" + id
	out = a.call("exec", args{"sandbox": id, "command": "echo begun; exec -a " + marker + " sleep 600", "timeout_seconds": 0.5})
	if out["timed_out"] != true || !strings.HasPrefix("begun\n", out["stdout"].(string)) || out["exit_code"] != nil {
		t.Errorf("exec past its time: %v", out)
	}
	a.gone(marker)
	out = a.call("exec", args{"sandbox": id, "command": "echo begin; seq 100000; echo end", "max_output_bytes": 1000})
	text, cut := out["stdout"].(string), out["stdout_cut_bytes"].(float64)
	if len(text) > 1100 || !strings.HasPrefix(text, "begin\n1\n") || !strings.HasSuffix(text, "\n100000\nend\n") || cut < 500_000 || !strings.Contains(text, fmt.Sprintf("[%.0f bytes cut here]", cut)) {
		t.Errorf("long output: %d bytes, %.0f cut: %q", len(text), cut, text)
	}
	hostile := "printf 'a\\033[31mred\\033[0m\\033]0;title\\007 \\342\\200\\256back \\363\\240\\201\\201hid\\r\\nnext \\377\"}]}\\n'"
	if out := a.call("exec", args{"sandbox": id, "command": hostile}); out["stdout"] != "ared back hid\nnext \ufffd\"}]}\n" {
		t.Errorf("hostile output: %q", out["stdout"])
	}
	marker = "marker-background-" + id
	if out := a.call("exec", args{"sandbox": id, "command": "exec -a " + marker + " sleep 600", "background": true}); out["exit_code"] != nil || out["pid"] == nil {
		t.Errorf("in the background: %v", out)
	} else {
		a.call("exec", args{"sandbox": id, "command": fmt.Sprintf("kill -KILL %.0f", out["pid"])})
		a.gone(marker)
	}
	if failure := a.fails("exec", args{"sandbox": id, "command": "true", "user": "nobody-here"}); failure["sandbox_state"] != "running" {
		t.Errorf("exec as a user who is not there: %v", failure)
	}

	a.call("run_code", args{"sandbox": id, "code": "x=41", "language": "bash"})
	if out := a.call("run_code", args{"sandbox": id, "code": "echo $((x+1)); echo oh >&2; false", "language": "bash"}); out["stdout"] != "42\n" || out["stderr"] != "oh\n" || out["exception"].(map[string]any)["name"] != "ExitStatus" {
		t.Errorf("code: %v", out)
	}
	if out := a.call("run_code", args{"sandbox": id, "code": "echo begun; sleep 600", "language": "bash", "timeout_seconds": 1}); out["timed_out"] != true || !strings.HasPrefix("begun\n", out["stdout"].(string)) {
		t.Errorf("code past its time: %v", out)
	}
	if failure := a.fails("run_code", args{"sandbox": id, "code": "1", "language": "cobol"}); !strings.Contains(failure["message"].(string), "cobol") {
		t.Errorf("code in no language: %v", failure)
	}
}

// files writes, reads and lists.
func (a *agent) files() {
	t := a.t
	id := a.create()
	a.call("write_file", args{"sandbox": id, "path": "dir/a.txt", "content": "grüße\n"})
	if out := a.call("read_file", args{"sandbox": id, "path": "dir/a.txt"}); out["content"] != "grüße\n" || out["altered"] != false || out["next_offset"] != nil {
		t.Errorf("read: %v", out)
	}
	out := a.call("read_file", args{"sandbox": id, "path": "dir/a.txt", "max_bytes": 3})
	if out["content"] != "gr" || out["next_offset"] != 2.0 {
		t.Errorf("a part, which ends within a character: %v", out)
	}
	if out := a.call("read_file", args{"sandbox": id, "path": "dir/a.txt", "offset": 2}); out["content"] != "üße\n" {
		t.Errorf("the rest: %v", out)
	}
	a.call("write_file", args{"sandbox": id, "path": "raw", "content": "AAEb/w==", "encoding": "base64"})
	if out := a.call("read_file", args{"sandbox": id, "path": "raw"}); out["altered"] != true {
		t.Errorf("bytes as text: %v", out)
	}
	if out := a.call("read_file", args{"sandbox": id, "path": "raw", "encoding": "base64"}); out["content"] != "AAEb/w==" || out["bytes"] != 4.0 {
		t.Errorf("bytes: %v", out)
	}
	a.fails("write_file", args{"sandbox": id, "path": "raw", "content": "!", "encoding": "base64"})
	list := a.call("list_files", args{"sandbox": id, "path": ".", "depth": 2})["entries"].([]any)
	var paths []string
	for _, e := range list {
		paths = append(paths, e.(map[string]any)["path"].(string)+" "+e.(map[string]any)["type"].(string))
	}
	if got := strings.Join(paths, ","); got != "/home/user/dir directory,/home/user/dir/a.txt file,/home/user/raw file" {
		t.Errorf("listed: %s", got)
	}
	a.call("pause", args{"sandbox": id})
	a.call("read_file", args{"sandbox": id, "path": "raw"})
	if failure := a.fails("read_file", args{"sandbox": id, "path": "nowhere"}); failure["sandbox_state"] != "running" || !strings.Contains(failure["message"].(string), "does not exist") {
		t.Errorf("read of none: %v", failure)
	}
}

// TestMCPCancel cancels calls, and ends the server with calls in progress: what they
// started ends in the sandbox.
func TestMCPCancel(t *testing.T) {
	t.Parallel()
	overPipes := func(t *testing.T) (*agent, func()) {
		a := newAgent(t)
		cmd := a.command()
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		if err := a.connect(&mcp.IOTransport{Reader: out, Writer: in}); err != nil {
			t.Fatal(err)
		}
		a.server = cmd
		return a, func() { _ = in.Close() }
	}
	terminate := func(a *agent) { _ = a.server.Process.Signal(syscall.SIGTERM) }
	for name, begin := range map[string]func(*testing.T, func()) (a *agent, end func()){
		"stdio, cancel":    func(t *testing.T, cancel func()) (*agent, func()) { return overStdio(t), cancel },
		"stdio, hang up":   func(t *testing.T, _ func()) (*agent, func()) { return overPipes(t) },
		"stdio, terminate": func(t *testing.T, _ func()) (*agent, func()) { a, _ := overPipes(t); return a, func() { terminate(a) } },
		"http, cancel":     func(t *testing.T, cancel func()) (*agent, func()) { return overHTTP(t), cancel },
		"http, terminate":  func(t *testing.T, _ func()) (*agent, func()) { a := overHTTP(t); return a, func() { terminate(a) } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a, end := begin(t, cancel)
			id := a.create()
			marker := "marker-cancel-" + id
			done := make(chan error, 1)
			go func() {
				params := &mcp.CallToolParams{Name: "exec", Arguments: args{"sandbox": id, "command": "echo begun; exec -a " + marker + " sleep 600"}}
				params.SetProgressToken("1")
				_, err := a.session.CallTool(ctx, params)
				done <- err
			}()
			a.awaitReport(`^stdout: begun\n$`)
			end()
			a.gone(marker)
			cancel()
			select {
			case <-done:
			case <-time.After(patience):
				t.Error("the call never ended")
			}
			if x, err := a.drowse.Explain(t.Context(), id); err != nil || x.State != client.Running {
				t.Errorf("afterwards: %v, %v", x, err)
			}
		})
	}
}

// TestMCPNotWoken calls tools on a sandbox that only a resume wakes.
func TestMCPNotWoken(t *testing.T) {
	t.Parallel()
	a := overStdio(t)
	sb, err := a.drowse.Create(t.Context(), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.call("pause", args{"sandbox": sb.ID})
	for tool, in := range map[string]args{
		"exec": {"command": "true"}, "run_code": {"code": "1"}, "read_file": {"path": "a"}, "write_file": {"path": "a", "content": ""}, "list_files": {"path": "."},
	} {
		in["sandbox"] = sb.ID
		if failure := a.fails(tool, in); failure["code"] != "not_resumable" || failure["sandbox_state"] != "paused" || failure["next_step"] != "call resume first" {
			t.Errorf("%s: %v", tool, failure)
		}
	}
}

// TestMCPTools holds what agents are told of the tools to some rules.
func TestMCPTools(t *testing.T) {
	t.Parallel()
	a := overStdio(t)
	var names []string
	for tool, err := range a.session.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
		if tool.Description == "" || tool.Title == "" || tool.Annotations == nil || tool.OutputSchema == nil {
			t.Errorf("%s lacks a part: %+v", tool.Name, tool)
		}
		in, _ := json.Marshal(tool.InputSchema)
		out, _ := json.Marshal(tool.OutputSchema)
		if strings.Contains(string(in)+string(out), `"null"`) {
			t.Errorf("%s takes or returns null: %s %s", tool.Name, in, out)
		}
		for name, p := range tool.InputSchema.(map[string]any)["properties"].(map[string]any) {
			if p.(map[string]any)["description"] == nil {
				t.Errorf("%s: nothing is said of %s", tool.Name, name)
			}
		}
	}
	want := "create_sandbox delete_snapshot exec fork hold kill list_files list_sandboxes list_snapshots list_templates pause preview_url read_file release_hold restore resume run_code snapshot why write_file"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("tools: %s", got)
	}
	res, err := a.session.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec", Arguments: args{"sandbox": "i0abc", "comand": "ls"}})
	if err != nil || !res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "comand") {
		t.Errorf("a field that there is not: %+v, %v", res, err)
	}
}

// TestMCPHTTPDoor knocks at the HTTP server without what opens it.
func TestMCPHTTPDoor(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	addr := a.serveHTTP("--allow-host", "mcp.example.com")
	hello := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	ask := func(path, body string, header map[string]string) (int, http.Header, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Authorization", "Bearer "+key)
		for name, value := range header {
			req.Header.Set(name, value)
			if name == "Host" {
				req.Host = value
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var b strings.Builder
		_, _ = bufio.NewReader(resp.Body).WriteTo(&b)
		return resp.StatusCode, resp.Header, b.String()
	}
	for _, c := range []struct {
		name, path string
		header     map[string]string
		want       int
		says       string
	}{
		{"a key", "/mcp", nil, 200, `"name":"drowse"`},
		{"its name", "/mcp", map[string]string{"Host": "MCP.example.com:443", "Origin": "https://mcp.example.com"}, 200, ""},
		{"a local page", "/mcp", map[string]string{"Host": "localhost:1", "Origin": "http://localhost:6274"}, 200, ""},
		{"no key", "/mcp", map[string]string{"Authorization": ""}, 401, "bearer token"},
		{"a wrong key", "/mcp", map[string]string{"Authorization": "Bearer e2b_0000"}, 401, "API key"},
		{"another host", "/mcp", map[string]string{"Host": "evil.example.com"}, 403, "--allow-host"},
		{"a host that looks like it", "/mcp", map[string]string{"Host": "localhost.evil.example.com"}, 403, ""},
		{"a page of another", "/mcp", map[string]string{"Origin": "https://evil.example.com"}, 403, "not accepted"},
		{"a page of nobody", "/mcp", map[string]string{"Origin": "null"}, 403, ""},
		{"another path", "/", nil, 404, "/mcp"},
	} {
		status, header, body := ask(c.path, hello, c.header)
		if status != c.want || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %q", c.name, status, body)
		}
		if challenge := header.Get("WWW-Authenticate"); (challenge != "") != (status == 401) {
			t.Errorf("%s: %d with the challenge %q", c.name, status, challenge)
		}
	}

	// A session is nobody's but the key's that began it, and each call has the
	// rights of its key.
	other, err := a.drowse.CreateKey(t.Context(), client.KeyOptions{Name: "other", Role: client.RoleRead})
	if err != nil {
		t.Fatal(err)
	}
	_, header, _ := ask("/mcp", hello, nil)
	session := header.Get("Mcp-Session-Id")
	list := `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	if status, _, _ := ask("/mcp", list, map[string]string{"Mcp-Session-Id": session}); session == "" || status != 200 {
		t.Errorf("the session %q of one's own: %d", session, status)
	}
	if status, _, body := ask("/mcp", list, map[string]string{"Mcp-Session-Id": session, "Authorization": "Bearer " + other.Text}); status != 403 {
		t.Errorf("the session of another: %d %s", status, body)
	}
	at := &mcp.StreamableClientTransport{Endpoint: "http://" + addr + "/mcp", HTTPClient: &http.Client{Transport: withKey(other.Text)}}
	if err := a.connect(at); err != nil {
		t.Fatal(err)
	}
	a.call("list_sandboxes", args{})
	if failure := a.fails("create_sandbox", args{}); !strings.Contains(failure["message"].(string), "role") {
		t.Errorf("create by a key that may only look: %v", failure)
	}
}

// TestMCPWithoutServer calls a tool while no drowse server is there, or with a key
// that it does not know.
func TestMCPWithoutServer(t *testing.T) {
	t.Parallel()
	for env, next := range map[string]string{"DROWSE_URL=http://127.0.0.1:1": "drowse serve", "DROWSE_API_KEY=e2b_0000": "DROWSE_API_KEY"} {
		a := newAgent(t)
		if err := a.connect(&mcp.CommandTransport{Command: a.command(env)}); err != nil {
			t.Fatal(err)
		}
		if failure := a.fails("list_sandboxes", args{}); !strings.Contains(failure["next_step"].(string), next) {
			t.Errorf("%s: %v", env, failure)
		}
	}
}

// TestMCPHostileText calls tools of a server whose tenants have put all that acts on
// a terminal into whatever they can choose. What an agent gets has none of it, and
// no line of its own: all is in strings of JSON.
func TestMCPHostileText(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	srv := hostileServer(t)
	if err := a.connect(&mcp.CommandTransport{Command: a.command("DROWSE_URL=" + srv.URL)}); err != nil {
		t.Fatal(err)
	}
	id := a.call("create_sandbox", args{"metadata": args{"team": "red" + hostileText}})["sandbox"].(string)
	seen := 0
	for _, c := range []struct {
		tool string
		in   args
	}{
		{"list_sandboxes", args{}},
		{"hold", args{"sandbox": id, "reason": "x"}},
		{"why", args{"sandbox": id}},
		{"preview_url", args{"sandbox": id, "port": 8000}},
		{"snapshot", args{"sandbox": id, "name": "x"}},
		{"fork", args{"sandbox": id}},
		{"exec", args{"sandbox": id, "command": "true", "user": "nobody" + hostileText}},
		{"read_file", args{"sandbox": id, "path": "nothing" + hostileText}},
		{"create_sandbox", args{"template": "no" + hostileText}},
		{"release_hold", args{"sandbox": id, "hold": "none" + hostileText}},
		{"pause", args{"sandbox": id}},
		{"resume", args{"sandbox": id}},
		{"kill", args{"sandbox": id}},
		{"why", args{"sandbox": id}},
		{"exec", args{"sandbox": id, "command": "true"}},
	} {
		out, _ := a.try(t.Context(), c.tool, c.in)
		text := fmt.Sprint(map[string]any(out))
		if strings.Contains(text, "FORGED") {
			seen++
		}
		for _, r := range text {
			if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)) {
				t.Errorf("%s has %U: %q", c.tool, r, text)
				break
			}
		}
	}
	if t.Logf("%d results had hostile text to show", seen); seen < 8 {
		t.Error("too few to mean anything")
	}
}
