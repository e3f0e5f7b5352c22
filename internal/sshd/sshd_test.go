package sshd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/fakeserver"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func TestPrintable(t *testing.T) {
	if got, want := printable(" a\x1b[2J\r\nb \u202e"), "a [2J  b"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// gate serves SSH on a listener, for sandboxes of a server that runs commands on
// this machine.
func gate(t *testing.T, o Options, change ...func(*Server)) (addr string) {
	t.Helper()
	fake := fakeserver.New("e2b_0123456789abcdef0123456789abcdef01234567", t.TempDir())
	t.Cleanup(fake.Close)
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	c, err := client.New(client.Options{URL: server.URL, APIKey: fake.Key})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := c.Create(t.Context(), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o.HostKey, err = HostKey(filepath.Join(t.TempDir(), "key")); err != nil {
		t.Fatal(err)
	}
	o.Login = func(_ context.Context, c ssh.ConnMetadata, _ ssh.PublicKey) (Grant, error) {
		return Grant{Sandbox: sb, Key: c.User()}, nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	s := New(o)
	for _, c := range change {
		c(s)
	}
	go func() { served <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	})
	return ln.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testmode.Patience()))
	return c
}

func greets(c net.Conn) bool {
	banner := make([]byte, 4)
	_, err := io.ReadFull(c, banner)
	return err == nil && string(banner) == "SSH-"
}

func login(t *testing.T, addr string) *ssh.Client {
	t.Helper()
	return loginAs(t, addr, "k")
}

// loginAs logs in with a key of that name.
func loginAs(t *testing.T, addr, key string) *ssh.Client {
	t.Helper()
	c, err := ssh.Dial("tcp", addr, &ssh.ClientConfig{User: key, HostKeyCallback: ssh.InsecureIgnoreHostKey(), Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestWindowChange resizes a terminal, also after a request that came too late and
// is refused.
func TestWindowChange(t *testing.T) {
	s, err := login(t, gate(t, Options{})).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.RequestPty("xterm", 24, 80, nil); err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	size := func() string {
		if _, err := io.WriteString(in, "size\r"); err != nil {
			t.Fatal(err)
		}
		lines.Scan() // the echo
		lines.Scan()
		return strings.TrimSpace(lines.Text())
	}
	if got := size(); got != "80x24" {
		t.Errorf("it begins with %s", got)
	}
	for name, late := range map[string]error{"sftp": s.RequestSubsystem("sftp"), "a terminal": s.RequestPty("xterm", 1, 1, nil)} {
		if late == nil {
			t.Errorf("%s is started beside a shell", name)
		}
	}
	for _, rows := range []int{30, 40, 50} { // the last one counts, however fast they come
		if err := s.WindowChange(rows, 120); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(testmode.Patience()); size() != "120x50"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the terminal does not get the size of the window")
		}
	}
}

// TestVanished ends what a client had running that does not answer any more.
func TestVanished(t *testing.T) {
	addr := gate(t, Options{AliveWithin: time.Second})
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	there := &lossy{Conn: raw}
	conn, channels, requests, err := ssh.NewClientConn(there, addr, &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		t.Fatal(err)
	}
	c := ssh.NewClient(conn, channels, requests)
	defer c.Close()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(t.TempDir(), "ended")
	if err := s.Start("trap 'touch " + mark + "; exit' TERM; echo begun; while :; do sleep 0.05; done"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("begun"))); err != nil {
		t.Fatal(err)
	}
	there.gone.Store(true)
	for deadline := time.Now().Add(testmode.Patience()); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(mark); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("its command runs on")
		}
	}
}

// lossy is a connection that nothing goes out of any more once it is gone, and that
// does not end.
type lossy struct {
	net.Conn
	gone atomic.Bool
}

// Write implements net.Conn.
func (l *lossy) Write(p []byte) (int, error) {
	if l.gone.Load() {
		return len(p), nil
	}
	return l.Conn.Write(p)
}

// TestFloods holds a client to its connections, its sessions and its variables,
// and who does not log in to a few at once.
func TestFloods(t *testing.T) {
	addr := gate(t, Options{})
	var open []net.Conn
	for range maxLoginsOfOne {
		c := dial(t, addr)
		if !greets(c) {
			t.Fatalf("client %d was not greeted", len(open))
		}
		open = append(open, c)
	}
	// They say nothing: the oldest gives way to somebody else.
	if !greets(dial(t, addr)) {
		t.Error("who says nothing keeps others out")
	}
	_ = open[0].SetReadDeadline(time.Now().Add(testmode.Patience()))
	if _, err := io.Copy(io.Discard, open[0]); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the oldest was not closed")
	}
	for _, c := range open {
		c.Close()
	}
	addr = gate(t, Options{PerClient: 2})
	c := login(t, addr)
	login(t, addr)
	if greets(dial(t, addr)) {
		t.Error("a third connection of two is let in")
	}

	var sessions []*ssh.Session
	for range maxChannels {
		s, err := c.NewSession()
		if err != nil {
			t.Fatalf("session %d: %v", len(sessions), err)
		}
		sessions = append(sessions, s)
	}
	if _, err := c.NewSession(); err == nil || !strings.Contains(err.Error(), "sessions") {
		t.Errorf("one session too many: %v", err)
	}
	for i := range maxVariables {
		if err := sessions[0].Setenv(fmt.Sprintf("V%d", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{"ONE_MORE": "x", "": "x"} {
		if err := sessions[0].Setenv(name, value); err == nil {
			t.Errorf("the variable %q is taken", name)
		}
	}
	for name, value := range map[string]string{"A=B": "x", "A\x00": "x", "A": "\x00", "LARGE": strings.Repeat("x", maxVariableBytes)} {
		if err := sessions[1].Setenv(name, value); err == nil {
			t.Errorf("the variable %.10q is taken", name)
		}
	}
	if out, err := sessions[0].Output("echo $V0$V199; exit 0"); err != nil || string(out) != "xx\n" {
		t.Errorf("%q, %v", out, err)
	}
	if ok, err := sessions[1].SendRequest("exec", true, []byte{0, 0}); ok || err != nil {
		t.Errorf("half a request: %v, %v", ok, err)
	}
	for _, kind := range []string{"x11", "tun@openssh.com", "direct-streamlocal@openssh.com", "session-\x1b[2J"} {
		if _, _, err := c.OpenChannel(kind, nil); err == nil {
			t.Errorf("a channel of type %q is opened", kind)
		}
	}
	if _, _, err := c.OpenChannel("direct-tcpip", []byte("no address")); err == nil {
		t.Error("a connection to nowhere is opened")
	}
	for _, name := range []string{"tcpip-forward", "streamlocal-forward@openssh.com", "hostkeys-prove-00@openssh.com"} {
		if ok, _, err := c.SendRequest(name, true, nil); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}
