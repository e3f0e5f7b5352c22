package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func TestEndOfProcess(t *testing.T) {
	s := newServer(t)
	tests := []struct {
		name, command string
		want          *processpb.ProcessEvent_EndEvent
	}{
		{"success", "true", &processpb.ProcessEvent_EndEvent{Exited: true, Status: "exit status 0"}},
		{"failure", "exit 42", &processpb.ProcessEvent_EndEvent{ExitCode: 42, Exited: true, Status: "exit status 42", Error: proto.String("exit status 42")}},
		{"signal", "kill -KILL $$", &processpb.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: killed", Error: proto.String("signal: killed")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := s.run("", shell(tt.command))
			if r.err != nil || !proto.Equal(r.end, tt.want) {
				t.Errorf("end = %v, error %v; want %v", r.end, r.err, tt.want)
			}
		})
	}
}

func TestOutputAndPID(t *testing.T) {
	s := newServer(t)
	r := s.run("", shell("echo out; echo err >&2; echo $$"))
	if want := "out\n" + strconv.Itoa(int(r.pid)) + "\n"; r.stdout != want || r.stderr != "err\n" {
		t.Errorf("stdout %q, stderr %q; want %q, %q", r.stdout, r.stderr, want, "err\n")
	}
}

// Output that is many times the queue arrives whole, and before the end.
func TestLargeOutput(t *testing.T) {
	s := newServer(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), testmode.Choose(10, 60)<<20/16)
	file := filepath.Join(s.dir, "big")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	stream, err := s.process.Start(testContext(t), basic("", shell("cat "+file)))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	hash, size, ended := sha256.New(), 0, false
	for stream.Receive() {
		chunk := stream.Msg().GetEvent().GetData().GetStdout()
		if len(chunk) > pipeChunk {
			t.Fatalf("a chunk of %d bytes", len(chunk))
		}
		hash.Write(chunk)
		size += len(chunk)
		ended = stream.Msg().GetEvent().GetEnd() != nil
	}
	if stream.Err() != nil || !ended || [32]byte(hash.Sum(nil)) != sha256.Sum256(data) {
		t.Errorf("got %d of %d bytes, ended %v, error %v", size, len(data), ended, stream.Err())
	}
}

// A descendant that holds the output open delays the end by the grace at
// most, does not lose what was written before, and lives on.
func TestBackgroundDescendant(t *testing.T) {
	s := newServer(t)
	begin := time.Now()
	r := s.run("", shell("sleep 1000 & head -c 60000 /dev/zero | tr '\\0' x; echo; echo $!"))
	if took := time.Since(begin); took > testmode.Patience() {
		t.Errorf("the end took %v", took)
	}
	if !r.end.GetExited() || strings.Count(r.stdout, "x") != 60000 {
		t.Errorf("end = %v, %d of 60000 bytes", r.end, strings.Count(r.stdout, "x"))
	}
	fields := strings.Fields(r.stdout)
	descendant, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(descendant, 0); err != nil {
		t.Errorf("the descendant is gone: %v", err)
	}
	_ = syscall.Kill(-int(r.pid), syscall.SIGKILL)
}

// After the end, output nobody reads is still drained.
func TestDescendantIsDrained(t *testing.T) {
	s := newServer(t)
	file := filepath.Join(s.dir, "done")
	mustFIFO(t, file)
	r := s.run("", shell("(exec 3>"+file+"; head -c 3000000 /dev/zero; echo ok >&3) & exit 0"))
	if !r.end.GetExited() {
		t.Fatalf("end = %v", r.end)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_ = f.SetReadDeadline(time.Now().Add(testmode.Patience()))
	if got, err := io.ReadAll(f); string(got) != "ok\n" {
		t.Errorf("the descendant wrote %q, %v: it was blocked or killed", got, err)
	}
}

func mustFIFO(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestEnvironment(t *testing.T) {
	s := newServer(t)
	t.Setenv("OF_THE_AGENT", "secret")
	s.init(agentapi.InitRequest{
		EnvVars:   map[string]string{"A": "global", "B": "global"},
		SandboxID: "sbx", TemplateID: "tpl",
	})
	req := shell("exec env -0")
	req.Process.Envs = map[string]string{"B": "request", "C": "request", "LOGNAME": "override"}
	r := s.run("user", req)
	got := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(r.stdout, "\x00"), "\x00") {
		k, v, _ := strings.Cut(entry, "=")
		got[k] = v
	}
	want := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": s.home, "USER": "user", "LOGNAME": "override",
		"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": "sbx", "E2B_TEMPLATE_ID": "tpl",
		"A": "global", "B": "request", "C": "request",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s = %q, want %q", k, got[k], v)
		}
		delete(got, k)
	}
	if err := os.MkdirAll(s.agent.options.Root+"/usr/lib/locale/C.utf8", 0o755); err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{"LANG": "de_DE", "LC_ALL": "", "LC_CTYPE": "", "OTHER": "C.UTF-8"} {
		req := shell("printf %s \"$LANG\"")
		req.Process.Envs = map[string]string{set: "de_DE"}
		if r := s.run("user", req); r.stdout != want {
			t.Errorf("with %s set, LANG is %q, want %q", set, r.stdout, want)
		}
	}
	for _, k := range []string{"PWD", "SHLVL", "_", "OLDPWD"} { // bash's own
		delete(got, k)
	}
	if len(got) != 0 {
		t.Errorf("unexpected variables: %v", got)
	}
}

func TestUserOfProcess(t *testing.T) {
	s := newServer(t)
	const show = "id -u; id -g; id -G; pwd; echo x >/dev/stderr; cat </dev/stdin"
	userIDs := fmt.Sprintf("%d\n%d\n%d %d\n%s\n", userUID, userGID, userGID, extraGID, s.home)
	tests := []struct{ name, user, want string }{
		{"default", "", userIDs},
		{"user", "user", userIDs},
		{"root", "root", "0\n0\n0\n" + s.rootHome + "\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := s.run(tt.user, shell(show))
			if r.stdout != tt.want || r.stderr != "x\n" {
				t.Errorf("stdout %q, stderr %q, want %q", r.stdout, r.stderr, tt.want)
			}
		})
	}
	t.Run("unknown", func(t *testing.T) {
		r := s.run("mallory", shell("true"))
		wantCode(t, r.err, connect.CodeUnauthenticated)
	})
	t.Run("default of init", func(t *testing.T) {
		s.init(agentapi.InitRequest{DefaultUser: "root"})
		if r := s.run("", shell("id -u")); r.stdout != "0\n" {
			t.Errorf("uid %q", r.stdout)
		}
	})
}

// TestTooLong: what is too long of a command is named.
func TestTooLong(t *testing.T) {
	s := newServer(t)
	long := strings.Repeat("x", 200<<10)
	r := s.run("", shell("true "+long))
	wantCode(t, r.err, connect.CodeInvalidArgument)
	if r.err == nil || !strings.Contains(r.err.Error(), "argument 2 of the command has 204805 bytes") {
		t.Errorf("argument: %.300v", r.err)
	}
	req := shell("true")
	req.Process.Envs = map[string]string{"LONG": long}
	if r := s.run("", req); r.err == nil || !strings.Contains(r.err.Error(), "the variable LONG has 204805 bytes") {
		t.Errorf("variable: %.300v", r.err)
	}
}

func TestCwd(t *testing.T) {
	s := newServer(t)
	mkdir(t, filepath.Join(s.home, "sub"), userUID)
	writeFile(t, filepath.Join(s.home, "file"), "")
	mkdir(t, filepath.Join(s.home, "secret"), 0)
	mkdir(t, filepath.Join(s.home, "secret", "below"), userUID)
	if err := os.Chmod(filepath.Join(s.home, "secret"), 0o700); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, cwd, want, message string }{
		{"empty", "", s.home, ""},
		{"home", "~", s.home, ""},
		{"below home", "~/sub", s.home + "/sub", ""},
		{"relative", "sub", s.home + "/sub", ""},
		{"absolute", "/", "/", ""},
		{"missing", "none", "", "cwd '" + s.home + "/none' does not exist"},
		{"file", "file", "", "cwd '" + s.home + "/file' is not a directory"},
		{"of another", "secret/below", "", "cwd '" + s.home + "/secret/below' cannot be entered by user user: permission denied"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := shell("pwd")
			req.Process.Cwd = &tt.cwd
			r := s.run("user", req)
			if tt.message == "" {
				if r.stdout != tt.want+"\n" {
					t.Errorf("pwd = %q, want %q", r.stdout, tt.want)
				}
				return
			}
			wantCode(t, r.err, connect.CodeInvalidArgument)
			if !strings.HasSuffix(r.err.Error(), tt.message) {
				t.Errorf("error = %v, want %s", r.err, tt.message)
			}
		})
	}
	t.Run("default of init", func(t *testing.T) {
		s.init(agentapi.InitRequest{DefaultWorkdir: "/usr"})
		if r := s.run("user", shell("pwd")); r.stdout != "/usr\n" {
			t.Errorf("pwd = %q", r.stdout)
		}
	})
}

func TestStartRefused(t *testing.T) {
	s := newServer(t)
	tests := []struct {
		name   string
		config *processpb.ProcessConfig
		want   connect.Code
		start  string
	}{
		{"no config", nil, connect.CodeInvalidArgument, ""},
		{"no command", &processpb.ProcessConfig{}, connect.CodeInvalidArgument, ""},
		{"not in PATH", &processpb.ProcessConfig{Cmd: "no-such-command"}, connect.CodeInvalidArgument, agentapi.StartNotFound},
		{"missing", &processpb.ProcessConfig{Cmd: "/no/such/command"}, connect.CodeInvalidArgument, agentapi.StartNotFound},
		{"not executable", &processpb.ProcessConfig{Cmd: "/etc/passwd"}, connect.CodeInvalidArgument, agentapi.StartNotExecutable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := s.run("", &processpb.StartRequest{Process: tt.config}).err
			wantCode(t, err, tt.want)
			if c, ok := errors.AsType[*connect.Error](err); !ok || c.Meta().Get(agentapi.HeaderStart) != tt.start {
				t.Errorf("got %v, want %s %q", err, agentapi.HeaderStart, tt.start)
			}
		})
	}
}

// TestShellFor: where there is no bash, the plain shell does, and where there is
// none either, the error says so.
func TestShellFor(t *testing.T) {
	for _, c := range []struct {
		name  string
		there []string
		want  string
	}{
		{"/bin/bash", []string{"/bin/bash", "/bin/sh"}, "/bin/bash"},
		{"/bin/bash", []string{"/bin/sh"}, "/bin/sh"},
		{"/bin/bash", nil, ""},
		{"/app/server", nil, "/app/server"},
		{"bash", nil, "bash"},
	} {
		got, err := shellFor(c.name, func(path string) bool { return slices.Contains(c.there, path) })
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s where there is %q: %q, %v; want %q", c.name, c.there, got, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), "has no shell") {
			t.Errorf("the error is %v", err)
		}
	}
}

func TestCommandInPath(t *testing.T) {
	s := newServer(t)
	mkdir(t, filepath.Join(s.home, "bin"), userUID)
	tool := writeFile(t, filepath.Join(s.home, "bin", "mytool"), "#!/bin/sh\necho tool $0 $1\n")
	if err := os.Chmod(tool, 0o755); err != nil {
		t.Fatal(err)
	}
	r := s.run("user", &processpb.StartRequest{Process: &processpb.ProcessConfig{
		Cmd: "mytool", Args: []string{"arg"}, Envs: map[string]string{"PATH": s.home + "/bin:/bin"},
	}})
	if want := "tool " + tool + " arg\n"; r.stdout != want {
		t.Errorf("stdout = %q, want %q", r.stdout, want)
	}
}

func TestList(t *testing.T) {
	s := newServer(t)
	req := shell("echo up; exec sleep 60")
	req.Tag = proto.String("web")
	n, stream := s.start("", req)
	until(t, stream, "up")
	ptyReq := &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", "sleep 60"}},
		Pty:     &processpb.PTY{},
	}
	m, _ := s.start("", ptyReq)
	res, err := s.process.List(testContext(t), connect.NewRequest(&processpb.ListRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	byPID := map[uint32]*processpb.ProcessInfo{}
	for _, p := range res.Msg.Processes {
		byPID[p.Pid] = p
	}
	if len(byPID) != 2 || !proto.Equal(byPID[n].GetConfig(), req.Process) || byPID[n].GetTag() != "web" || byPID[m] == nil || byPID[m].Tag != nil {
		t.Errorf("List = %v", res.Msg)
	}
	s.kill(pid(n))
	s.kill(pid(m))
	res, err = s.process.List(testContext(t), connect.NewRequest(&processpb.ListRequest{}))
	if err != nil || len(res.Msg.Processes) != 0 {
		t.Errorf("List after the kill = %v, %v", res.Msg, err)
	}
}

func (s *server) signal(sel *processpb.ProcessSelector, sig processpb.Signal) error {
	_, err := s.process.SendSignal(testContext(s.t), connect.NewRequest(&processpb.SendSignalRequest{Process: sel, Signal: sig}))
	return err
}

func (s *server) kill(sel *processpb.ProcessSelector) {
	s.t.Helper()
	if err := s.signal(sel, processpb.Signal_SIGNAL_SIGKILL); err != nil {
		s.t.Fatal(err)
	}
}

// Once the kill has returned, neither the process nor its children exist.
func TestKillTakesTheGroup(t *testing.T) {
	s := newServer(t)
	n, stream := s.start("user", shell("sleep 61 & echo $!; wait"))
	out := until(t, stream, "\n").stdout
	sleeper, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	s.kill(pid(n))
	if err := syscall.Kill(int(n), 0); err != syscall.ESRCH {
		t.Errorf("kill -0 %d after the kill: %v", n, err)
	}
	r := rest(stream)
	if r.end.GetStatus() != "signal: killed" {
		t.Errorf("end = %v, %v", r.end, r.err)
	}
	awaitDead(t, sleeper)
	wantCode(t, s.signal(pid(n), processpb.Signal_SIGNAL_SIGKILL), connect.CodeNotFound)
}

// awaitDead gives a process that was sent SIGKILL the time to die of it. It is
// not our child, so all there is to wait for is its entry in /proc.
func awaitDead(t *testing.T, pid int) {
	t.Helper()
	poll, deadline := time.NewTicker(time.Millisecond), time.After(testmode.Patience())
	defer poll.Stop()
	for {
		switch state := processState(pid); state {
		case "", "Z", "X":
			return
		default:
			select {
			case <-poll.C:
			case <-deadline:
				t.Errorf("process %d is in state %q", pid, state)
				return
			}
		}
	}
}

// processState is the letter in /proc, empty if there is no such process.
func processState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return after[:1]
}

func TestSignals(t *testing.T) {
	s := newServer(t)
	req := shell("trap 'echo term; exit 7' TERM; echo up; while :; do sleep 0.1; done")
	req.Tag = proto.String("trap")
	_, stream := s.start("", req)
	until(t, stream, "up")
	wantCode(t, s.signal(tag("trap"), processpb.Signal_SIGNAL_UNSPECIFIED), connect.CodeUnimplemented)
	wantCode(t, s.signal(tag("trap"), processpb.Signal(2)), connect.CodeUnimplemented)
	wantCode(t, s.signal(tag("trap"), processpb.Signal_SIGNAL_SIGTERM), 0)
	if r := rest(stream); r.stdout != "term\n" || r.end.GetExitCode() != 7 {
		t.Errorf("stdout %q, end %v", r.stdout, r.end)
	}
	wantCode(t, s.signal(pid(1<<31), processpb.Signal_SIGNAL_SIGKILL), connect.CodeNotFound)
	wantCode(t, s.signal(tag("none"), processpb.Signal_SIGNAL_SIGKILL), connect.CodeNotFound)
	wantCode(t, s.signal(&processpb.ProcessSelector{}, processpb.Signal_SIGNAL_SIGKILL), connect.CodeInvalidArgument)
}

func (s *server) send(sel *processpb.ProcessSelector, in *processpb.ProcessInput) error {
	_, err := s.process.SendInput(testContext(s.t), connect.NewRequest(&processpb.SendInputRequest{Process: sel, Input: in}))
	return err
}

func (s *server) closeStdin(sel *processpb.ProcessSelector) error {
	_, err := s.process.CloseStdin(testContext(s.t), connect.NewRequest(&processpb.CloseStdinRequest{Process: sel}))
	return err
}

func stdin(text string) *processpb.ProcessInput {
	return &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: []byte(text)}}
}

func ptyInput(text string) *processpb.ProcessInput {
	return &processpb.ProcessInput{Input: &processpb.ProcessInput_Pty{Pty: []byte(text)}}
}

func TestStdin(t *testing.T) {
	s := newServer(t)
	req := shell("cat; echo end")
	req.Stdin = nil // absent means true
	n, stream := s.start("user", req)
	wantCode(t, s.send(pid(n), stdin("")), 0)
	wantCode(t, s.send(pid(n), stdin("one ")), 0)
	wantCode(t, s.send(pid(n), stdin("two\n")), 0)
	until(t, stream, "two")
	wantCode(t, s.send(pid(n), ptyInput("x")), connect.CodeFailedPrecondition)
	wantCode(t, s.send(pid(n), &processpb.ProcessInput{}), connect.CodeInvalidArgument)
	wantCode(t, s.closeStdin(pid(n)), 0)
	if r := rest(stream); r.stdout != "end\n" {
		t.Errorf("stdout = %q", r.stdout)
	}
	wantCode(t, s.send(pid(n), stdin("x")), connect.CodeNotFound)
	wantCode(t, s.closeStdin(pid(1<<31)), connect.CodeNotFound)
}

func TestStdinClosedOrAbsent(t *testing.T) {
	s := newServer(t)
	open := shell("cat >/dev/null; echo eof; exec sleep 60")
	open.Stdin = proto.Bool(true)
	n, stream := s.start("", open)
	wantCode(t, s.closeStdin(pid(n)), 0)
	until(t, stream, "eof")
	wantCode(t, s.send(pid(n), stdin("x")), connect.CodeFailedPrecondition)
	wantCode(t, s.closeStdin(pid(n)), connect.CodeFailedPrecondition)

	closes := shell("exec <&-; echo closed; exec sleep 60")
	closes.Stdin = proto.Bool(true)
	n, stream = s.start("", closes)
	until(t, stream, "closed")
	wantCode(t, s.send(pid(n), stdin("x")), connect.CodeFailedPrecondition)

	m, stream := s.start("", shell("cat; echo empty; exec sleep 60"))
	until(t, stream, "empty")
	wantCode(t, s.send(pid(m), stdin("x")), connect.CodeFailedPrecondition)
	wantCode(t, s.closeStdin(pid(m)), connect.CodeFailedPrecondition)
}

// Input to a process that does not read ends with the client's patience, and
// leaves the process usable.
func TestBlockedInput(t *testing.T) {
	s := newServer(t)
	req := shell("echo up; exec sleep 60")
	req.Stdin = proto.Bool(true)
	n, stream := s.start("", req)
	until(t, stream, "up")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := s.process.SendInput(ctx, connect.NewRequest(&processpb.SendInputRequest{
		Process: pid(n), Input: stdin(strings.Repeat("x", 1<<20)),
	}))
	wantCode(t, err, connect.CodeDeadlineExceeded)
	if err := s.closeStdin(pid(n)); err != nil {
		t.Errorf("CloseStdin after a blocked write: %v", err)
	}
	s.kill(pid(n))
}

func TestStreamInput(t *testing.T) {
	s := newServer(t)
	req := shell("cat; echo end")
	req.Stdin = proto.Bool(true)
	req.Tag = proto.String("in")
	_, stream := s.start("", req)
	input := s.process.StreamInput(testContext(t))
	for _, m := range []*processpb.StreamInputRequest{
		{Event: &processpb.StreamInputRequest_Start{Start: &processpb.StreamInputRequest_StartEvent{Process: tag("in")}}},
		{Event: &processpb.StreamInputRequest_Data{Data: &processpb.StreamInputRequest_DataEvent{Input: stdin("a")}}},
		{Event: &processpb.StreamInputRequest_Keepalive{Keepalive: &processpb.StreamInputRequest_KeepAlive{}}},
		{Event: &processpb.StreamInputRequest_Data{Data: &processpb.StreamInputRequest_DataEvent{Input: stdin("b\n")}}},
	} {
		if err := input.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := input.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.closeStdin(tag("in")), 0)
	if r := rest(stream); r.stdout != "ab\nend\n" {
		t.Errorf("stdout = %q", r.stdout)
	}

	input = s.process.StreamInput(testContext(t))
	_ = input.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Data{Data: &processpb.StreamInputRequest_DataEvent{Input: stdin("a")}}})
	_, err := input.CloseAndReceive()
	wantCode(t, err, connect.CodeInvalidArgument)
}

func (s *server) attach(sel *processpb.ProcessSelector) *connect.ServerStreamForClient[processpb.ConnectResponse] {
	s.t.Helper()
	stream, err := s.process.Connect(testContext(s.t), connect.NewRequest(&processpb.ConnectRequest{Process: sel}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { stream.Close() })
	return stream
}

// Every subscriber gets all that comes after it attached; a client that goes
// away takes nothing with it.
func TestConnect(t *testing.T) {
	s := newServer(t)
	req := shell("read -r line; echo got $line")
	req.Stdin = proto.Bool(true)
	req.Tag = proto.String("tagged")
	ctx, leave := context.WithCancel(testContext(t))
	first, err := s.process.Start(ctx, connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	if !first.Receive() {
		t.Fatal(first.Err())
	}
	n := first.Msg().GetEvent().GetStart().GetPid()
	a, b := s.attach(pid(n)), s.attach(tag("tagged"))
	for _, stream := range []*connect.ServerStreamForClient[processpb.ConnectResponse]{a, b} {
		if !stream.Receive() || stream.Msg().GetEvent().GetStart().GetPid() != n {
			t.Fatalf("first event = %v, %v", stream.Msg(), stream.Err())
		}
	}
	leave()
	first.Close()
	wantCode(t, s.send(pid(n), stdin("it\n")), 0)
	for _, stream := range []*connect.ServerStreamForClient[processpb.ConnectResponse]{a, b} {
		var r result
		for stream.Receive() {
			r.add(stream.Msg().GetEvent())
		}
		if r.stdout != "got it\n" || !r.end.GetExited() || stream.Err() != nil {
			t.Errorf("stdout %q, end %v, error %v", r.stdout, r.end, stream.Err())
		}
	}
	late := s.attach(pid(n))
	if got := late.ResponseHeader().Get(agentapi.HeaderMissed); got != "0" {
		t.Errorf("%s bytes were missed, and somebody was there all the time", got)
	}
	if r := collect(t, late, connectedEvent(late)); r.pid != n || r.stdout != "" || !r.end.GetExited() || r.err != nil {
		t.Errorf("Connect after the end = %+v", r)
	}
	none := s.attach(pid(1 << 31))
	wantCode(t, collect(t, none, connectedEvent(none)).err, connect.CodeNotFound)
}

// TestMissedOutput: who connects learns how much nobody has got.
func TestMissedOutput(t *testing.T) {
	s := newServer(t)
	req := shell("read -r _; echo lost; exec sleep 60")
	req.Stdin = proto.Bool(true)
	ctx, leave := context.WithCancel(testContext(t))
	first, err := s.process.Start(ctx, connect.NewRequest(req))
	if err != nil || !first.Receive() {
		t.Fatal(err, first.Err())
	}
	n := first.Msg().GetEvent().GetStart().GetPid()
	leave()
	first.Close()
	p, err := s.agent.processes.find(pid(n))
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(testmode.Patience()); !done(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no %s", what)
			}
		}
	}
	await("client leaves", func() bool { return !p.out.watched() })
	wantCode(t, s.send(pid(n), stdin("go on\n")), 0)
	await("output is counted", func() bool { return p.out.lost() == 5 })
	stream := s.attach(pid(n))
	if !stream.Receive() || stream.ResponseHeader().Get(agentapi.HeaderMissed) != "5" {
		t.Errorf("%v; the answer says %v", stream.Err(), stream.ResponseHeader())
	}
}

// The handler of a client that left ends, rather than waiting for output.
func TestDisconnectUnsubscribes(t *testing.T) {
	for name, client := range map[string]*http.Client{"HTTP/1.1": http.DefaultClient, "h2c": h2cClient()} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			api := processconnect.NewProcessClient(client, s.url, connect.WithProtoJSON())
			ctx, leave := context.WithCancel(testContext(t))
			stream, err := api.Start(ctx, connect.NewRequest(shell("exec sleep 60")))
			if err != nil {
				t.Fatal(err)
			}
			if !stream.Receive() {
				t.Fatal(stream.Err())
			}
			p, err := s.agent.processes.find(pid(stream.Msg().GetEvent().GetStart().GetPid()))
			if err != nil {
				t.Fatal(err)
			}
			p.out.mu.Lock()
			sub := p.out.subs[0]
			p.out.mu.Unlock()
			leave()
			select {
			case <-sub.gone:
			case <-time.After(testmode.Patience()):
				t.Error("the subscription outlives its client")
			}
			if !p.alive() {
				t.Error("the process died with its client")
			}
		})
	}
}

func h2cClient() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: protocols}}
}

// startRaw sends a Start request as SDKs do and returns the open response.
func (s *server) startRaw(ctx context.Context, body string, headers map[string]string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", s.url+"/process.Process/Start", bytes.NewReader(envelope(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { res.Body.Close() })
	return res
}

// The bytes on the wire, as an SDK sees them.
func TestRawStream(t *testing.T) {
	s := newServer(t)
	res := s.startRaw(testContext(t),
		`{"process":{"cmd":"/bin/bash","args":["-c","printf hi; exit 3"],"unknownField":1},"stdin":false,"another":[]}`, nil)
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/connect+json" {
		t.Errorf("status %d, headers %v", res.StatusCode, res.Header)
	}
	got := frames(t, string(body))
	if len(got) != 4 {
		t.Fatalf("frames = %q", got)
	}
	var start struct {
		Event struct{ Start struct{ Pid int } }
	}
	if err := json.Unmarshal([]byte(got[0].payload), &start); err != nil || start.Event.Start.Pid == 0 {
		t.Errorf("start = %q", got[0])
	}
	sameJSON(t, got[1].payload, `{"event":{"data":{"stdout":"aGk="}}}`)
	sameJSON(t, got[2].payload, `{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}}`)
	if got[3].flags != 2 || got[3].payload != "{}" {
		t.Errorf("last frame = %q", got[3])
	}
}

func sameJSON(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if err := errors.Join(json.Unmarshal([]byte(got), &g), json.Unmarshal([]byte(want), &w)); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(g) != fmt.Sprint(w) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Each message is flushed at once, over HTTP/1.1 too.
func TestEventsAreFlushed(t *testing.T) {
	s := newServer(t)
	res := s.startRaw(testContext(t), `{"process":{"cmd":"/bin/bash","args":["-c","printf a; read x; printf b"]},"tag":"flush"}`, nil)
	for _, want := range []string{"start", "data"} {
		if f, err := readFrame(res.Body); err != nil || !strings.Contains(f.payload, want) {
			t.Fatalf("frame = %q, %v; want %s", f, err, want)
		}
	}
	wantCode(t, s.send(tag("flush"), stdin("\n")), 0)
	if f, err := readFrame(res.Body); err != nil || !strings.Contains(f.payload, "Yg==") {
		t.Errorf("frame = %q, %v", f, err)
	}
}

// flushes is a response that notes how long it was at each flush.
type flushes struct {
	*httptest.ResponseRecorder
	at []int
}

func (f *flushes) Flush() { f.at = append(f.at, f.Body.Len()) }

// The last event waits for what ends the response: one write, and not three.
func TestEndIsWrittenAtOnce(t *testing.T) {
	s := newServer(t)
	r := httptest.NewRequest(http.MethodPost, processconnect.ProcessStartProcedure, bytes.NewReader(envelope(`{"process":{"cmd":"/bin/echo","args":["hi"]}}`)))
	r.Header.Set("Content-Type", "application/connect+json")
	w := &flushes{ResponseRecorder: httptest.NewRecorder()}
	s.agent.ServeHTTP(w, r)
	got := frames(t, w.Body.String())
	if len(got) != 4 || !strings.Contains(got[2].payload, "end") {
		t.Fatalf("frames = %q", got)
	}
	var ends []int
	sum := 0
	for _, f := range got[:2] {
		sum += 5 + len(f.payload)
		ends = append(ends, sum)
	}
	if !slices.Equal(w.at, ends) {
		t.Errorf("flushed at %v, want %v: after each event but the last", w.at, ends)
	}
}

func TestKeepalive(t *testing.T) {
	s := newServer(t)
	req := connect.NewRequest(shell("echo up; exec sleep 60"))
	req.Header().Set(agentapi.HeaderKeepalive, "1")
	stream, err := s.process.Start(testContext(t), req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var r result
	for r.keepalives < 2 && stream.Receive() {
		r.add(stream.Msg().GetEvent())
	}
	if r.keepalives != 2 {
		t.Errorf("got %+v, %v", r, stream.Err())
	}
}

func TestKeepaliveInterval(t *testing.T) {
	tests := map[string]time.Duration{"": 90 * time.Second, "50": 50 * time.Second, "0": 90 * time.Second, "-1": 90 * time.Second, "x": 90 * time.Second}
	for header, want := range tests {
		if got := keepalive(http.Header{agentapi.HeaderKeepalive: {header}}); got != want {
			t.Errorf("keepalive(%q) = %v, want %v", header, got, want)
		}
	}
}

func TestDeadlineOfStart(t *testing.T) {
	s := newServer(t)
	res := s.startRaw(testContext(t), `{"process":{"cmd":"/bin/bash","args":["-c","echo up; sleep 60"]}}`,
		map[string]string{agentapi.HeaderTimeout: "400"})
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := frames(t, string(body))
	last := got[len(got)-1]
	if last.flags != 2 || !strings.Contains(last.payload, `"deadline_exceeded"`) || len(got) != 3 {
		t.Errorf("frames = %q", got)
	}
	list, err := s.process.List(testContext(t), connect.NewRequest(&processpb.ListRequest{}))
	if err != nil || len(list.Msg.Processes) != 0 {
		t.Errorf("List = %v, %v", list, err)
	}
}

// The deadline is the process's: it holds with no client there.
func TestDeadlineWithoutClient(t *testing.T) {
	s := newServer(t)
	ctx, leave := context.WithCancel(testContext(t))
	res := s.startRaw(ctx, `{"process":{"cmd":"/bin/bash","args":["-c","sleep 60"]},"tag":"left"}`,
		map[string]string{agentapi.HeaderTimeout: "1000"})
	if _, err := readFrame(res.Body); err != nil {
		t.Fatal(err)
	}
	stream := s.attach(tag("left"))
	leave()
	if r := collect(t, stream, connectedEvent(stream)); r.err != nil || r.end.GetStatus() != "signal: killed" {
		t.Errorf("another subscriber got %+v", r)
	}
}

// On Connect the timeout is the stream's.
func TestDeadlineOfConnect(t *testing.T) {
	s := newServer(t)
	n, _ := s.start("", shell("exec sleep 60"))
	req, err := http.NewRequestWithContext(testContext(t), "POST", s.url+"/process.Process/Connect",
		bytes.NewReader(envelope(fmt.Sprintf(`{"process":{"pid":%d}}`, n))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set(agentapi.HeaderTimeout, "300")
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := frames(t, string(body))
	if last := got[len(got)-1]; !strings.Contains(last.payload, `"deadline_exceeded"`) {
		t.Errorf("frames = %q", got)
	}
	if err := syscall.Kill(int(n), 0); err != nil {
		t.Errorf("the process ended with the stream: %v", err)
	}
}

func TestMalformedTimeout(t *testing.T) {
	s := newServer(t)
	for _, header := range []string{"soon", "-5", "12345678901"} {
		t.Run(header, func(t *testing.T) {
			res := s.startRaw(testContext(t), `{"process":{"cmd":"/bin/true"}}`, map[string]string{agentapi.HeaderTimeout: header})
			body, _ := io.ReadAll(res.Body)
			got := frames(t, string(body))
			if len(got) != 1 || !strings.Contains(got[0].payload, `"invalid_argument"`) {
				t.Errorf("frames = %q", got)
			}
		})
	}
}

func TestPTY(t *testing.T) {
	s := newServer(t)
	n, stream := s.start("user", &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"--norc", "-i"}, Envs: map[string]string{"PS1": "$ ", "TERM": "xterm-256color"}},
		Pty:     &processpb.PTY{Size: &processpb.PTY_Size{Cols: 101, Rows: 31}},
	})
	wantCode(t, s.send(pid(n), ptyInput("stty size; [ -t 0 ] && echo is-$((40+2))-tty\n")), 0)
	if r := until(t, stream, "is-42-tty"); !strings.Contains(r.pty, "31 101") || r.stdout != "" {
		t.Errorf("pty %q, stdout %q", r.pty, r.stdout)
	}
	_, err := s.process.Update(testContext(t), connect.NewRequest(&processpb.UpdateRequest{
		Process: pid(n), Pty: &processpb.PTY{Size: &processpb.PTY_Size{Cols: 77, Rows: 22}},
	}))
	wantCode(t, err, 0)
	wantCode(t, s.send(pid(n), ptyInput("stty size; tty\n")), 0)
	until(t, stream, "22 77")
	wantCode(t, s.send(pid(n), stdin("x")), connect.CodeFailedPrecondition)
	wantCode(t, s.closeStdin(pid(n)), connect.CodeFailedPrecondition)
	wantCode(t, s.send(pid(n), ptyInput("exit 5\n")), 0)
	if r := rest(stream); r.end.GetExitCode() != 5 || r.err != nil {
		t.Errorf("end = %v, %v", r.end, r.err)
	}
}

// A resize reaches the program as SIGWINCH; Ctrl-C as SIGINT.
func TestPTYSignals(t *testing.T) {
	s := newServer(t)
	n, stream := s.start("", &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", "trap 'echo resized' WINCH; trap 'echo interrupted; exit 9' INT; echo up; while :; do read -t 1 _; done"}},
		Pty:     &processpb.PTY{Size: &processpb.PTY_Size{Cols: 80, Rows: 24}},
	})
	until(t, stream, "up")
	_, err := s.process.Update(testContext(t), connect.NewRequest(&processpb.UpdateRequest{
		Process: pid(n), Pty: &processpb.PTY{Size: &processpb.PTY_Size{Cols: 81, Rows: 24}},
	}))
	wantCode(t, err, 0)
	until(t, stream, "resized")
	wantCode(t, s.send(pid(n), ptyInput("\x03")), 0)
	until(t, stream, "interrupted")
	if r := rest(stream); r.end.GetExitCode() != 9 {
		t.Errorf("end = %v", r.end)
	}
}

func TestKillPTYTakesTheForeground(t *testing.T) {
	// Under nohup, processes inherit that a hang-up is ignored.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	s := newServer(t)
	n, stream := s.start("", &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"--norc", "-i"}, Envs: map[string]string{"PS1": "$ "}},
		Pty:     &processpb.PTY{},
	})
	wantCode(t, s.send(pid(n), ptyInput("bash -c 'echo pid-$$-; exec sleep 62'\n")), 0)
	var out string
	for out = until(t, stream, "-\r\n").pty; ; out += until(t, stream, "\n").pty {
		if _, after, ok := strings.Cut(out, "\npid-"); ok && strings.Contains(after, "-") {
			out, _, _ = strings.Cut(after, "-")
			break
		}
	}
	sleeper, err := strconv.Atoi(out)
	if err != nil {
		t.Fatal(err)
	}
	// bash takes note of a hang-up and dies later; one that becomes sleep first
	// forgets it.
	for command := ""; command != "sleep"; time.Sleep(time.Millisecond) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", sleeper))
		if err != nil {
			t.Fatal(err)
		}
		command = strings.TrimSpace(string(data))
	}
	s.kill(pid(n))
	if r := rest(stream); r.end.GetStatus() != "signal: killed" {
		t.Errorf("end = %v, %v", r.end, r.err)
	}
	awaitDead(t, sleeper)
}

func TestUpdate(t *testing.T) {
	s := newServer(t)
	n, _ := s.start("", shell("exec sleep 60"))
	size := &processpb.PTY{Size: &processpb.PTY_Size{Cols: 1, Rows: 1}}
	_, err := s.process.Update(testContext(t), connect.NewRequest(&processpb.UpdateRequest{Process: pid(n), Pty: size}))
	wantCode(t, err, 0)
	_, err = s.process.Update(testContext(t), connect.NewRequest(&processpb.UpdateRequest{Process: pid(1 << 31), Pty: size}))
	wantCode(t, err, connect.CodeNotFound)
	m, _ := s.start("", &processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "sleep", Args: []string{"60"}}, Pty: &processpb.PTY{}})
	_, err = s.process.Update(testContext(t), connect.NewRequest(&processpb.UpdateRequest{Process: pid(m)}))
	wantCode(t, err, 0)
	_, err = s.process.Update(testContext(t), connect.NewRequest(&processpb.UpdateRequest{Process: pid(m), Pty: &processpb.PTY{Size: &processpb.PTY_Size{Cols: 1 << 16}}}))
	wantCode(t, err, connect.CodeInvalidArgument)
}

// Both codecs, over both versions of HTTP.
func TestProtocols(t *testing.T) {
	s := newServer(t)
	for transport, client := range map[string]*http.Client{"HTTP/1.1": http.DefaultClient, "h2c": h2cClient()} {
		for codec, option := range map[string]connect.ClientOption{"JSON": connect.WithProtoJSON(), "binary": connect.WithClientOptions()} {
			t.Run(transport+" "+codec, func(t *testing.T) {
				api := processconnect.NewProcessClient(client, s.url, option)
				stream, err := api.Start(testContext(t), connect.NewRequest(shell("echo hi; exit 4")))
				if err != nil {
					t.Fatal(err)
				}
				if r := collect(t, stream, startedEvent(stream)); r.stdout != "hi\n" || r.end.GetExitCode() != 4 || r.err != nil {
					t.Errorf("got %+v", r)
				}
				if _, err := api.List(testContext(t), connect.NewRequest(&processpb.ListRequest{})); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	s := newServer(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			r := s.run("", shell(fmt.Sprintf("echo %d; exit %d", i, i)))
			if r.stdout != fmt.Sprintln(i) || int(r.end.GetExitCode()) != i {
				t.Errorf("process %d: %+v", i, r)
			}
		})
	}
	wg.Wait()
}

// A message over the limit is refused, not read.
func TestMessageLimit(t *testing.T) {
	s := newServer(t)
	body, err := protojson.Marshal(&processpb.SendInputRequest{Process: pid(1), Input: stdin(strings.Repeat("x", maxMessage))})
	if err != nil {
		t.Fatal(err)
	}
	res, text := s.do("POST", "/process.Process/SendInput", bytes.NewReader(body), map[string]string{"Content-Type": "application/json"})
	if res.StatusCode != http.StatusTooManyRequests || !strings.Contains(text, "resource_exhausted") {
		t.Errorf("got %d %s", res.StatusCode, text)
	}
}

// A client that stops reading altogether is cut off; the process goes on.
func TestStuckClient(t *testing.T) {
	s := newServer(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	file := filepath.Join(s.dir, "done")
	mustFIFO(t, file)
	body := envelope(`{"process":{"cmd":"/bin/bash","args":["-c","head -c 40000000 /dev/zero; echo ok >` + file + `"]},"stdin":false}`)
	fmt.Fprintf(conn, "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	done, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer done.Close()
	if got, err := io.ReadAll(done); string(got) != "ok\n" {
		t.Errorf("got %q, %v", got, err)
	}
}
