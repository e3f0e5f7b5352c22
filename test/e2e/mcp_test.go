package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drowse-dev/drowse/client"
)

// mcpAgent is an MCP client of "drowse mcp".
type mcpAgent struct {
	t       *testing.T
	session *mcp.ClientSession
	reports chan string // of progress
}

func (s *server) startMCP(ctx context.Context, t *testing.T) *mcpAgent {
	t.Helper()
	a := &mcpAgent{t: t, reports: make(chan string, 1000)}
	c := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { a.reports <- r.Params.Message },
	})
	cmd := exec.Command(drowseBinary, "mcp")
	cmd.Env = []string{"DROWSE_URL=http://" + s.addr, "DROWSE_API_KEY=" + apiKey}
	session, err := c.Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.session = session
	t.Cleanup(func() { _ = session.Close() })
	return a
}

// call calls a tool and returns its output.
func (a *mcpAgent) call(ctx context.Context, tool string, in map[string]any) map[string]any {
	a.t.Helper()
	params := &mcp.CallToolParams{Name: tool, Arguments: in}
	params.SetProgressToken(tool)
	res, err := a.session.CallTool(ctx, params)
	if err != nil {
		a.t.Fatalf("%s %v: %v", tool, in, err)
	}
	var out map[string]any
	text := res.Content[0].(*mcp.TextContent).Text
	if err := json.Unmarshal([]byte(text), &out); err != nil || res.IsError {
		a.t.Fatalf("%s %v: %s, %v", tool, in, text, err)
	}
	return out
}

func (a *mcpAgent) awaitReport(ctx context.Context, pattern string) {
	a.t.Helper()
	for re := regexp.MustCompile(pattern); ; {
		select {
		case r := <-a.reports:
			if re.MatchString(r) {
				return
			}
		case <-ctx.Done():
			a.t.Fatalf("no report of progress matched %s", pattern)
		}
	}
}

// TestMCP is an AI agent's way through a sandbox, with the MCP SDK's client: create,
// exec with progress, files, code, a pause over which all of it stays, a long
// command that is cancelled, snapshot, fork and kill.
func TestMCP(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	a := s.startMCP(ctx, t)
	id := a.call(ctx, "create_sandbox", nil)["sandbox"].(string)

	out := a.call(ctx, "exec", map[string]any{"sandbox": id, "command": "echo begun; sleep 2; echo done; exit 4"})
	if out["exit_code"] != 4.0 || out["stdout"] != "begun\ndone\n" {
		t.Errorf("exec: %v", out)
	}
	a.awaitReport(ctx, `^stdout: begun\n$`)
	a.awaitReport(ctx, `^stdout: done\n$`)
	a.call(ctx, "write_file", map[string]any{"sandbox": id, "path": "notes/plan.txt", "content": "sleep, then wake\n"})
	list := a.call(ctx, "list_files", map[string]any{"sandbox": id, "path": "notes"})["entries"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["path"] != "/home/user/notes/plan.txt" {
		t.Errorf("files: %v", list)
	}
	a.call(ctx, "run_code", map[string]any{"sandbox": id, "code": "x = 6"})

	if out := a.call(ctx, "pause", map[string]any{"sandbox": id}); out["state"] != "paused" {
		t.Errorf("pause: %v", out)
	}
	out = a.call(ctx, "exec", map[string]any{"sandbox": id, "command": "cat notes/plan.txt"})
	if out["slept_before"] != true || out["stdout"] != "sleep, then wake\n" {
		t.Errorf("exec over a sleep: %v", out)
	}
	out = a.call(ctx, "run_code", map[string]any{"sandbox": id, "code": "x * 7"})
	if results := fmt.Sprint(out["results"]); !strings.Contains(results, "text:42") {
		t.Errorf("code over a sleep: %v", out)
	}

	cut, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		params := &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"sandbox": id, "command": "echo long; sleep 7654 & sleep 7654"}}
		params.SetProgressToken("long")
		_, err := a.session.CallTool(cut, params)
		ended <- err
	}()
	a.awaitReport(ctx, `^stdout: long\n$`)
	cancel()
	if err := <-ended; err == nil {
		t.Error("a call that was cancelled succeeded")
	}
	eventually(t, goneWithin+killPatience, "the end of what was cancelled", func() error {
		if out := a.call(ctx, "exec", map[string]any{"sandbox": id, "command": "pgrep -f 'sleep 765[4]'"}); out["stdout"] != "" {
			return fmt.Errorf("it is still there: %v", out["stdout"])
		}
		return nil
	})

	a.call(ctx, "snapshot", map[string]any{"sandbox": id, "name": "plan"})
	a.call(ctx, "write_file", map[string]any{"sandbox": id, "path": "notes/plan.txt", "content": "another\n"})
	if out := a.call(ctx, "restore", map[string]any{"sandbox": id, "snapshot": "plan"}); out["undo"] == nil {
		t.Errorf("restore: %v", out)
	}
	children := a.call(ctx, "fork", map[string]any{"sandbox": id})["children"].([]any)
	ids := []string{
		children[0].(map[string]any)["sandbox"].(map[string]any)["sandbox"].(string),
		a.call(ctx, "create_sandbox", map[string]any{"snapshot": "plan"})["sandbox"].(string),
		id,
	}
	for _, id := range ids {
		if out := a.call(ctx, "read_file", map[string]any{"sandbox": id, "path": "notes/plan.txt"}); out["content"] != "sleep, then wake\n" {
			t.Errorf("%s: %v", id, out)
		}
	}
	// Before the kills, which take the one for the undo along.
	for _, snap := range a.call(ctx, "list_snapshots", map[string]any{"sandbox": id})["snapshots"].([]any) {
		a.call(ctx, "delete_snapshot", map[string]any{"snapshot": snap.(map[string]any)["snapshot"]})
	}
	for _, id := range ids {
		a.call(ctx, "kill", map[string]any{"sandbox": id})
		if info, err := s.client.Find(ctx, id); err != nil || info.State != client.Terminated {
			t.Errorf("%s after the kill: %v, %v", id, info.State, err)
		}
	}
	if left, err := client.NewSnapshots(s.client).List(ctx, ""); err != nil || len(left) > 0 {
		t.Errorf("snapshots that are left: %v, %v", left, err)
	}
}

// killPatience is for a command that is ended with its group.
const killPatience = 30 * time.Second
