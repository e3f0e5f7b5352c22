package agent

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

func (s *server) journal(t *testing.T, after int64) []agentapi.LogLine {
	t.Helper()
	res, body := s.do("GET", agentapi.PathLog+"?"+agentapi.ParamAfter+"="+strconv.FormatInt(after, 10), nil, map[string]string{agentapi.HeaderInit: testSecret})
	var said agentapi.Log
	if res.StatusCode != http.StatusOK || json.Unmarshal([]byte(body), &said) != nil {
		t.Fatalf("log = %d %s", res.StatusCode, body)
	}
	return said.Lines
}

func TestJournal(t *testing.T) {
	s := newServer(t)
	token := "the-access-token"
	s.init(agentapi.InitRequest{EnvVars: map[string]string{"GLOBAL": "value-of-a-variable"}, AccessToken: &token})
	config := &processpb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", "exit 3 # value-of-a-variable the-access-token"}}
	a := s.agent
	p := &process{pid: 7, config: config}
	a.journal.started(p, &account{name: "root"})
	a.journal.failed(&processpb.ProcessConfig{Cmd: "nothing", Envs: map[string]string{"X": "value-of-a-request"}}, faultf(invalid, "no value-of-a-request\x1b[0m"))

	lines := s.journal(t, 0)
	if len(lines) != 2 {
		t.Fatalf("lines %+v", lines)
	}
	for i, want := range []string{
		"process started: /bin/sh -c exit 3 # *** ***",
		"process could not be started: nothing: no ***?[0m",
	} {
		if got := lines[i].Message; got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
		if lines[i].At.IsZero() || lines[i].Seq != int64(i+1) {
			t.Errorf("line %d is %+v", i, lines[i])
		}
	}
	if f := lines[0].Fields; f["pid"] != "7" || f["user"] != "root" || lines[0].Level != "info" || lines[1].Level != "error" {
		t.Errorf("lines %+v", lines)
	}
	if got := s.journal(t, 1); len(got) != 1 || got[0].Seq != 2 {
		t.Errorf("after the first: %+v", got)
	}
}

// TestJournalOfProcesses runs a real one.
func TestJournalOfProcesses(t *testing.T) {
	s := newServer(t)
	s.run("root", shell("exit 3"))
	said := ""
	for _, l := range s.journal(t, 0) {
		said += l.Level + " " + l.Message + " " + l.Fields["exitCode"] + "\n"
	}
	if !strings.HasPrefix(said, "info process started: ") || !strings.Contains(said, "exit 3 \n") || !strings.HasSuffix(said, "warn process ended: exit status 3 3\n") {
		t.Errorf("the log says\n%s", said)
	}
}

func TestJournalIsBounded(t *testing.T) {
	var j journal
	for n := range 3 * agentapi.MaxLogLines {
		j.add("info", strings.Repeat("x", 5000)+strconv.Itoa(n), nil)
	}
	lines := j.after(0)
	if len(lines) != agentapi.MaxLogLines || lines[len(lines)-1].Seq != 3*agentapi.MaxLogLines || len(lines[0].Message) > agentapi.MaxLogMessage {
		t.Errorf("%d lines, the last number %d, a message of %d bytes", len(lines), lines[len(lines)-1].Seq, len(lines[0].Message))
	}
	if got := j.after(3 * agentapi.MaxLogLines); len(got) != 0 {
		t.Errorf("after the last: %+v", got)
	}
}

func TestSecretsAreRemoved(t *testing.T) {
	s := newServer(t)
	for text, want := range map[string]string{
		"echo hello":          "echo hello",
		"echo token ring":     "echo token ring",
		"MY_TOKEN=abc123 run": "MY_TOKEN=*** run",
		`gateway --config {"apiKey": "abc", "x": 1}`:  `gateway --config {"apiKey": "***", "x": 1}`,
		"curl -H 'Authorization: Bearer abc.def' url": "curl -H 'Authorization: Bearer ***' url",
		"login --password hunter2 --user me":          "login --password *** --user me",
		"PASSWD:x secret=y":                           "PASSWD:*** secret=***",
	} {
		if got := s.agent.journal.withoutSecrets(nil, text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
