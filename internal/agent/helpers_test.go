package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb/filesystem/filesystemconnect"
	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// Under another name, the test binary is what the agent's would be.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "sudo":
		os.Exit(Sudo(os.Args[1:]))
	case "pid1":
		err := mountOwn()
		if err == nil {
			err = Main(context.Background())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	testSecret = "the-init-secret"
	// userUID is that of nobody, so that the host's passwd file, which sudo
	// reads, knows it too.
	userUID = 65534
	userGID = 65534
	// extraGID is a supplementary group of the user.
	extraGID = 4243
)

// server is an agent behind a real listener, with two users: root and user.
type server struct {
	t         *testing.T
	agent     *Agent
	url       string
	dir       string // of the test
	home      string // of user
	rootHome  string
	process   processconnect.ProcessClient
	files     filesystemconnect.FilesystemClient
	generated string
}

func newServer(t *testing.T) *server {
	t.Helper()
	dir := publicDir(t)
	s := &server{
		t: t, dir: dir, home: filepath.Join(dir, "home"), rootHome: filepath.Join(dir, "root"),
		generated: filepath.Join(dir, "run", "generation"),
	}
	mkdir(t, s.home, userUID)
	mkdir(t, s.rootHome, 0)
	passwd := writeFile(t, filepath.Join(dir, "passwd"),
		"root:x:0:0:root:"+s.rootHome+":/bin/bash\nuser:x:65534:65534::"+s.home+":/bin/bash\n")
	group := writeFile(t, filepath.Join(dir, "group"), "root:x:0:\nusers:x:65534:\nextra:x:4243:other,user\n")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.agent = New(Options{
		InitSecret: testSecret, Listener: listener, Path: os.Getenv("PATH"),
		PasswdFile: passwd, GroupFile: group, GenerationFile: s.generated, Root: filepath.Join(dir, "system"),
	})
	s.url = "http://" + listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.agent.Run(ctx) }()
	t.Cleanup(func() {
		for _, p := range s.agent.processes.running() {
			_, _ = p.signal(9)
		}
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	s.process = processconnect.NewProcessClient(http.DefaultClient, s.url, connect.WithProtoJSON())
	s.files = filesystemconnect.NewFilesystemClient(http.DefaultClient, s.url, connect.WithProtoJSON())
	return s
}

// publicDir is a temporary directory that any user may enter, unlike
// t.TempDir.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func mkdir(t *testing.T, path string, uid int) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, uid); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// testContext ends before the test framework loses patience.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// do sends a request and returns the response with its body read.
func (s *server) do(method, target string, body io.Reader, headers map[string]string) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(testContext(s.t), method, s.url+target, body)
	if err != nil {
		s.t.Fatal(err)
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("%s %s: read the body: %v", method, target, err)
	}
	return res, string(data)
}

func (s *server) init(req agentapi.InitRequest) {
	s.t.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		s.t.Fatal(err)
	}
	res, text := s.do("POST", "/init", bytes.NewReader(body), map[string]string{agentapi.HeaderInit: testSecret})
	if res.StatusCode != http.StatusNoContent {
		s.t.Fatalf("/init = %d %s", res.StatusCode, text)
	}
}

func basic[T any](user string, msg *T) *connect.Request[T] {
	req := connect.NewRequest(msg)
	if user != "" {
		r := http.Request{Header: req.Header()}
		r.SetBasicAuth(user, "")
	}
	return req
}

// shell is a Start request as SDKs send it, but for the login shell, whose
// profile is the host's business.
func shell(command string) *processpb.StartRequest {
	off := false
	return &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", command}},
		Stdin:   &off,
	}
}

// result is a stream that has ended.
type result struct {
	pid                 uint32
	stdout, stderr, pty string
	end                 *processpb.ProcessEvent_EndEvent
	keepalives          int
	err                 error
}

type eventStream interface {
	Receive() bool
	Err() error
	Close() error
}

func startedEvent(s *connect.ServerStreamForClient[processpb.StartResponse]) func() *processpb.ProcessEvent {
	return func() *processpb.ProcessEvent { return s.Msg().GetEvent() }
}

func connectedEvent(s *connect.ServerStreamForClient[processpb.ConnectResponse]) func() *processpb.ProcessEvent {
	return func() *processpb.ProcessEvent { return s.Msg().GetEvent() }
}

// collect reads a stream to its end and checks the order of its events.
func collect(t *testing.T, stream eventStream, event func() *processpb.ProcessEvent) result {
	t.Helper()
	var r result
	defer stream.Close()
	for n := 0; stream.Receive(); n++ {
		e := event()
		if (n == 0) != (e.GetStart() != nil) {
			t.Errorf("event %d = %v: start must come first and once", n, e)
		}
		if r.end != nil {
			t.Errorf("event %v after the end", e)
		}
		r.add(e)
	}
	r.err = stream.Err()
	return r
}

func (r *result) add(e *processpb.ProcessEvent) {
	if e.GetStart() != nil {
		r.pid = e.GetStart().GetPid()
	}
	r.stdout += string(e.GetData().GetStdout())
	r.stderr += string(e.GetData().GetStderr())
	r.pty += string(e.GetData().GetPty())
	if e.GetKeepalive() != nil {
		r.keepalives++
	}
	if e.GetEnd() != nil {
		r.end = e.GetEnd()
	}
}

// start begins a process and returns its stream after the start event.
func (s *server) start(user string, req *processpb.StartRequest) (uint32, *connect.ServerStreamForClient[processpb.StartResponse]) {
	s.t.Helper()
	stream, err := s.process.Start(testContext(s.t), basic(user, req))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { stream.Close() })
	if !stream.Receive() || stream.Msg().GetEvent().GetStart() == nil {
		s.t.Fatalf("no start event: %v", stream.Err())
	}
	return stream.Msg().GetEvent().GetStart().GetPid(), stream
}

// run runs a process to its end.
func (s *server) run(user string, req *processpb.StartRequest) result {
	s.t.Helper()
	stream, err := s.process.Start(testContext(s.t), basic(user, req))
	if err != nil {
		s.t.Fatal(err)
	}
	return collect(s.t, stream, startedEvent(stream))
}

// rest reads what follows the start event.
func rest(stream *connect.ServerStreamForClient[processpb.StartResponse]) result {
	var r result
	for stream.Receive() {
		r.add(stream.Msg().GetEvent())
	}
	r.err = stream.Err()
	return r
}

// until reads a stream until its output contains text.
func until(t *testing.T, stream *connect.ServerStreamForClient[processpb.StartResponse], text string) result {
	t.Helper()
	var r result
	for stream.Receive() {
		r.add(stream.Msg().GetEvent())
		if strings.Contains(r.stdout+r.pty, text) {
			return r
		}
	}
	t.Fatalf("the stream ended with %q and %v before %q came", r.stdout+r.pty, stream.Err(), text)
	return r
}

func pid(n uint32) *processpb.ProcessSelector {
	return &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: n}}
}

func tag(s string) *processpb.ProcessSelector {
	return &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Tag{Tag: s}}
}

func wantCode(t *testing.T, err error, want connect.Code) {
	t.Helper()
	var c *connect.Error
	if want == 0 {
		if err != nil {
			t.Fatalf("error = %v, want none", err)
		}
		return
	}
	if !errors.As(err, &c) || c.Code() != want {
		t.Fatalf("error = %v, want code %v", err, want)
	}
}

// envelope frames a message of a streaming RPC.
func envelope(payload string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(payload)))
	return append(b, payload...)
}

type frame struct {
	flags   byte
	payload string
}

func readFrame(r io.Reader) (frame, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	payload := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(r, payload)
	return frame{head[0], string(payload)}, err
}

func frames(t *testing.T, body string) []frame {
	t.Helper()
	var list []frame
	for r := strings.NewReader(body); ; {
		f, err := readFrame(r)
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatalf("envelopes end early: %v", err)
		}
		list = append(list, f)
	}
}
