package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/client"
)

// lossyConn is a connection out of which nothing goes any more once it is cut, and
// of which nobody says that it has ended.
type lossyConn struct {
	net.Conn
	cut atomic.Bool
}

// Write implements net.Conn.
func (c *lossyConn) Write(p []byte) (int, error) {
	if c.cut.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// dial logs in with the key of an OpenSSH client, without OpenSSH: it can do what
// that does at a terminal, and vanish.
func (c *sshClient) dial(listener string) (*ssh.Client, *lossyConn) {
	t := c.t
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "id"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Dial("tcp", listener)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	lossy := &lossyConn{Conn: raw}
	conn, channels, requests, err := ssh.NewClientConn(lossy, listener, &ssh.ClientConfig{
		User: c.host, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return ssh.NewClient(conn, channels, requests), lossy
}

// TestSSHConnection holds what a connection is to its sandbox: a terminal of the
// window's size, a stream that keeps it awake, and nothing once its client has
// vanished. The server has the same key after a restart.
func TestSSHConnection(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	listener := freeAddress(t)
	s := startServer(t, "--ssh-listen", listener, "--ssh-keepalive", "2s")
	sb := s.create(ctx, sleeper)
	c := s.sshGate(ctx, sb.ID, apiKey, listener)
	if code, out := c.ssh(ctx, "", c.host, "echo known"); code != 0 || out != "known\n" {
		t.Fatalf("%d, %q", code, out)
	}
	t.Run("window", func(t *testing.T) { checkWindow(t, c, listener) })
	t.Run("vanished", func(t *testing.T) { s.checkVanished(ctx, t, sb, c, listener) })
	t.Run("restart", func(t *testing.T) {
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		s.start()
		if code, out := c.ssh(ctx, "", "-o", "StrictHostKeyChecking=yes", c.host, "echo known"); code != 0 || out != "known\n" {
			t.Errorf("%d, %q", code, out)
		}
	})
}

// checkWindow changes the size of the window, which a program at the terminal sees.
func checkWindow(t *testing.T, c *sshClient, listener string) {
	conn, _ := c.dial(listener)
	defer conn.Close()
	session, err := conn.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.RequestPty("xterm", 24, 80, nil); err != nil {
		t.Fatal(err)
	}
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start(`stty size; while [ "$(stty size)" != "50 120" ]; do sleep 0.05; done; stty size`); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var seen []string
	for lines.Scan() {
		if seen = append(seen, strings.TrimSpace(lines.Text())); len(seen) == 1 {
			if err := session.WindowChange(50, 120); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := session.Wait(); err != nil || strings.Join(seen, ", ") != "24 80, 50 120" {
		t.Errorf("the terminal was %q, %v", seen, err)
	}
}

// checkVanished has a client with a command vanish. Until then it keeps the sandbox
// awake; then its command ends, and nothing does.
func (s *server) checkVanished(ctx context.Context, t *testing.T, sb *client.Sandbox, c *sshClient, listener string) {
	conn, lossy := c.dial(listener)
	defer conn.Close()
	session, err := conn.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("exec sleep 56789"); err != nil {
		t.Fatal(err)
	}
	streams := func(want bool) func() error {
		return func() error {
			info, err := s.client.Get(ctx, sb.ID)
			if err == nil && (info.OpenStreams > 0 != want || (info.AwakeBecause != "") != want) {
				err = fmt.Errorf("%d open streams, awake because of %q", info.OpenStreams, info.AwakeBecause)
			}
			return err
		}
	}
	eventually(t, startWithin, "the connection keeps the sandbox awake", streams(true))
	lossy.cut.Store(true)
	eventually(t, startWithin, "the command of the client has ended", func() error {
		if exit, out := run(ctx, t, sb, "pgrep", "-f", "sleep 56789"); exit.Code == 0 {
			return fmt.Errorf("it runs as %s", out)
		}
		return nil
	})
	eventually(t, startWithin, "nothing keeps the sandbox awake", streams(false))
}
