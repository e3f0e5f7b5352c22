package agent

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const hangUpWord = "0123456789abcdef0123456789abcdef"

// terminal starts a command on a terminal, whose client leaves when leave is called.
func (s *server) terminal(word, script string) (n uint32, leave func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(testContext(s.t))
	req := connect.NewRequest(&processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"--norc", "-ic", script}, Envs: map[string]string{"TERM": "xterm"}},
		Pty:     &processpb.PTY{Size: &processpb.PTY_Size{Cols: 80, Rows: 24}},
	})
	if word != "" {
		req.Header().Set(agentapi.HeaderHangUp, word)
	}
	stream, err := s.process.Start(ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	if !stream.Receive() {
		s.t.Fatal(stream.Err())
	}
	n = stream.Msg().GetEvent().GetStart().GetPid()
	until(s.t, stream, "up")
	return n, func() { cancel(); stream.Close() }
}

// What is in a terminal without a client counts as long as it works.
func TestActivityTerminalWithoutClient(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         bool
	}{
		{"prompt", "echo up; read line", false},
		{"quiet", "echo up; sleep 91", false},
		{"draws", "echo up; while :; do read -r line </proc/self/stat; echo \"$line\"; read -t 0.2 x; done", false},
		{"commands that draw", "echo up; while :; do echo $(echo now); read -t 0.5 x; done", false},
		{"computes", "echo up; while :; do :; done", true},
		{"computes below", "echo up; bash -c 'while :; do :; done'; :", true},
		{"writes to a file", "echo up; while :; do echo a line of text >&3; read -t 0.2 x; done 3>/dev/null", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			n, leave := s.terminal("", tt.script)
			await(t, s.activity, "with a client", func(act agentapi.Activity) bool { return len(act.Processes) > 0 })
			defer s.kill(pid(n))
			leave()
			works := func() bool { return len(s.activity().Processes) > 0 }
			testmode.Eventually(t, "the client has left", func() bool { p, _ := s.agent.processes.find(pid(n)); return p.root.alone() })
			if tt.want {
				testmode.Eventually(t, "the work is seen", works)
				return
			}
			testmode.Eventually(t, "what it did with a client is over", func() bool { return !works() })
			poll := time.NewTicker(200 * time.Millisecond)
			defer poll.Stop()
			for range 10 {
				<-poll.C
				if act := s.activity(); len(act.Processes) > 0 {
					t.Fatalf("it is at work: %+v", act.Processes)
				}
			}
			back := s.attach(pid(n))
			if !back.Receive() || !works() {
				t.Error("a terminal with a client does not count")
			}
		})
	}
}

func (s *server) hangUp(word string) *http.Response {
	res, _ := s.do("POST", agentapi.PathHangUp, nil, map[string]string{agentapi.HeaderHangUp: word})
	return res
}

// A terminal is hung up when the host says that its client has gone, and not because
// its stream ends, which it also does for a sleep.
func TestHangUp(t *testing.T) {
	s := newServer(t)
	said := writeFile(t, s.dir+"/said", "")
	if err := os.Chmod(said, 0o666); err != nil {
		t.Fatal(err)
	}
	n, leave := s.terminal(hangUpWord, "trap 'echo hung up >"+said+"; exit' HUP; echo up; while :; do sleep 0.1; done")
	p, err := s.agent.processes.find(pid(n))
	if err != nil {
		t.Fatal(err)
	}
	leave()
	testmode.Eventually(t, "the client has left", p.root.alone)
	if res := s.hangUp(strings.ToUpper(hangUpWord)); res.StatusCode != http.StatusUnauthorized || !p.alive() {
		t.Errorf("by another word: %d, alive %v", res.StatusCode, p.alive())
	}
	other := s.attach(pid(n))
	if !other.Receive() {
		t.Fatal(other.Err())
	}
	if res := s.hangUp(hangUpWord); res.StatusCode != http.StatusNoContent || !p.alive() {
		t.Errorf("with another client: %d, alive %v", res.StatusCode, p.alive())
	}
	other.Close()
	testmode.Eventually(t, "the other has left", p.root.alone)
	if res := s.hangUp(hangUpWord); res.StatusCode != http.StatusNoContent {
		t.Errorf("without a client: %d", res.StatusCode)
	}
	testmode.Eventually(t, "it has ended", func() bool { return !p.alive() })
	if got := readFile(t, said); got != "hung up\n" {
		t.Errorf("it said %q", got)
	}
}

// The whole foreground is told.
func TestHangUpTakesTheForeground(t *testing.T) {
	s := newServer(t)
	_, leave := s.terminal(hangUpWord, "echo up; bash -c 'exec sleep 93'; :")
	var sleeper int
	testmode.Eventually(t, "the command runs", func() bool {
		p, ok := findCommand(s.activity(), "sleep 93")
		sleeper = p.PID
		return ok
	})
	leave()
	if res := s.hangUp(hangUpWord); res.StatusCode != http.StatusNoContent {
		t.Fatalf("hang-up: %d", res.StatusCode)
	}
	awaitDead(t, sleeper)
	testmode.Eventually(t, "nothing runs", func() bool { return len(s.activity().Processes) == 0 })
}

func TestHangUpRefused(t *testing.T) {
	s := newServer(t)
	for name, req := range map[string]*connect.Request[processpb.StartRequest]{
		"no terminal": connect.NewRequest(shell("true")),
		"short":       connect.NewRequest(&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "true"}, Pty: &processpb.PTY{}}),
	} {
		req.Header().Set(agentapi.HeaderHangUp, map[bool]string{true: hangUpWord, false: "short"}[name == "no terminal"])
		stream, err := s.process.Start(testContext(t), req)
		if err == nil {
			stream.Receive()
			err = stream.Err()
		}
		wantCode(t, err, connect.CodeInvalidArgument)
	}
	if res := s.hangUp(""); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a word: %d", res.StatusCode)
	}
}

// The list of processes says which have a terminal.
func TestListTerminals(t *testing.T) {
	s := newServer(t)
	s.start("", shell("exec sleep 60"))
	s.start("", &processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "sleep", Args: []string{"60"}}, Pty: &processpb.PTY{}})
	s.start("", &processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "sleep", Args: []string{"60"}}, Pty: &processpb.PTY{}})
	list, err := s.process.List(testContext(t), connect.NewRequest(&processpb.ListRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, p := range list.Msg.Processes {
		if p.GetConfig().GetCmd() == "sleep" {
			want = append(want, strconv.Itoa(int(p.GetPid())))
		}
	}
	if got := strings.Fields(list.Header().Get(agentapi.HeaderTerminals)); len(got) != 2 || !slices.Equal(got, want) {
		t.Errorf("terminals %q, want %q", got, want)
	}
}
