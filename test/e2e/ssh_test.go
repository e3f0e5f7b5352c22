package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var sshWakes = flag.Int("ssh.wakes", testmode.Choose(2, 8), "how often TestSSH lets its sandbox sleep")

// sshClient is OpenSSH on the way into one sandbox.
type sshClient struct {
	t    testing.TB
	dir  string
	env  []string
	host string
}

// sshProxy returns OpenSSH with drowse ssh-proxy as its ProxyCommand.
func (s *server) sshProxy(id string) *sshClient {
	s.t.Helper()
	dir := s.t.TempDir()
	c := &sshClient{t: s.t, dir: dir, host: id + ".drowse", env: append(os.Environ(),
		"HOME="+dir, "XDG_CONFIG_HOME="+dir, "DROWSE_URL=http://"+s.addr, "DROWSE_API_KEY="+apiKey)}
	c.configure(fmt.Sprintf("Host *.drowse\n  ProxyCommand %s ssh-proxy %%h\n  HostKeyAlias drowse\n  User user\n", drowseBinary))
	return c
}

// sshGate returns OpenSSH with a key of its own, on its way through the listener
// of s, where an API key lets it in.
func (s *server) sshGate(ctx context.Context, id, apiKey, listener string) *sshClient {
	s.t.Helper()
	dir := s.t.TempDir()
	c := &sshClient{t: s.t, dir: dir, host: id, env: append(os.Environ(), "HOME="+dir)}
	host, port, err := net.SplitHostPort(listener)
	if err != nil {
		s.t.Fatal(err)
	}
	c.configure(fmt.Sprintf("Host %s\n  HostName %s\n  Port %s\n  User %s\n  IdentityFile %s/id\n  IdentitiesOnly yes\n", id, host, port, id, dir))
	c.must(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, "id"))
	if apiKey != "" {
		public, err := os.ReadFile(filepath.Join(dir, "id.pub"))
		if err != nil {
			s.t.Fatal(err)
		}
		api, err := client.New(client.Options{URL: "http://" + s.addr, APIKey: apiKey})
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := client.NewSSHKeys(api).Add(ctx, "", string(public)); err != nil {
			s.t.Fatal(err)
		}
	}
	return c
}

// configure writes the client's configuration, with what every test wants.
func (c *sshClient) configure(text string) {
	c.t.Helper()
	text += fmt.Sprintf("Host *\n  StrictHostKeyChecking accept-new\n  UserKnownHostsFile %s/known\n  LogLevel ERROR\n  BatchMode yes\n", c.dir)
	if err := os.WriteFile(filepath.Join(c.dir, "config"), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *sshClient) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"-F", filepath.Join(c.dir, "config")}, args...)...)
	cmd.Env, cmd.Dir = c.env, c.dir
	cmd.WaitDelay = goneWithin
	return cmd
}

// ssh runs a command in the sandbox and returns its exit status and output.
func (c *sshClient) ssh(ctx context.Context, input string, args ...string) (int, string) {
	c.t.Helper()
	cmd := c.command(ctx, "ssh", args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		c.t.Fatalf("ssh: %v", err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// must runs a program of OpenSSH, or one over it, that has to succeed.
func (c *sshClient) must(ctx context.Context, program string, args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(ctx, program, args...)
	if program == "ssh" || program == "scp" || program == "sftp" {
		cmd = c.command(ctx, program, args...)
	}
	cmd.Env, cmd.Dir = append(c.env, "GIT_SSH_COMMAND=ssh -F "+filepath.Join(c.dir, "config"), "GIT_CONFIG_NOSYSTEM=1"), c.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// TestSSH uses OpenSSH's programs, and what runs over them, on a sandbox that
// falls asleep between: by ssh-proxy, and through the server's listener.
func TestSSH(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute+time.Duration(*sshWakes)*10*time.Second)
	listener := freeAddress(t)
	s := startServer(t, "--ssh-listen", listener)
	g := s.startGuest(ctx, sleeper)
	proxy, gate := s.sshProxy(g.sb.ID), s.sshGate(ctx, g.sb.ID, apiKey, listener)
	proxy.checkCommands(ctx, func(user string) string { return user })
	gate.checkCommands(ctx, func(user string) string { return user + "+" + g.sb.ID })
	proxy.checkFiles(ctx)
	for _, c := range []*sshClient{proxy, gate} {
		c.checkForwards(ctx)
		s.checkWakes(ctx, g, c)
		s.checkHangUp(ctx, g.sb, c)
		s.checkPauseUnder(ctx, g.sb, c)
	}
	s.checkStrangers(ctx, g.sb.ID, listener)
}

// checkWakes lets a client find the sandbox asleep, again and again.
func (s *server) checkWakes(ctx context.Context, g *guest, c *sshClient) {
	t := s.t
	t.Helper()
	for range *sshWakes {
		before := g.ask(ctx)
		s.pause(ctx, g.sb.ID)
		if code, out := c.ssh(ctx, "", c.host, "echo awake"); code != 0 || out != "awake\n" {
			t.Fatalf("in a sandbox that was asleep: %d, %q", code, out)
		}
		g.same(before, g.ask(ctx))
	}
}

// checkStrangers tries who may not get in, and puts out who might.
func (s *server) checkStrangers(ctx context.Context, id, listener string) {
	t := s.t
	t.Helper()
	made := func(role client.Role) client.Key {
		key, err := s.client.CreateKey(ctx, client.KeyOptions{Name: string(role), Role: role})
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	own, full := made(client.RoleOwn), made(client.RoleFull)
	for name, c := range map[string]*sshClient{
		"a key that nobody has added":             s.sshGate(ctx, id, "", listener),
		"the key of who does not see the sandbox": s.sshGate(ctx, id, own.Text, listener),
		"a sandbox that there is not":             s.sshGate(ctx, "i0nothing", full.Text, listener),
	} {
		if code, out := c.ssh(ctx, "", c.host, "true"); code != 255 || !strings.Contains(out, "Permission denied") {
			t.Errorf("%s: %d, %q", name, code, out)
		}
	}
	c := s.sshGate(ctx, id, full.Text, listener)
	cmd := c.command(ctx, "ssh", c.host, "echo begun; exec sleep 98765")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.client.RevokeKey(ctx, full.ID); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a client whose API key was revoked ended well")
	}
	logins := map[string]int{}
	for _, m := range s.each() {
		entries, _, err := client.Audit(ctx, m.client, client.AuditQuery{Most: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Method == "SSH" {
				logins[fmt.Sprintf("%s %s %d", e.Key.Role, strings.ReplaceAll(e.Sandbox, id, "it"), e.Status)]++
			}
		}
	}
	for _, want := range []string{"admin it 200", "own it 403", "full i0nothing 403", "full it 200"} {
		if logins[want] == 0 {
			t.Errorf("the audit log has no login %q, and has %v", want, logins)
		}
	}
}

// checkCommands runs commands; as says how another user of the sandbox is called.
func (c *sshClient) checkCommands(ctx context.Context, as func(string) string) {
	t := c.t
	t.Helper()
	for _, tt := range []struct {
		args  []string
		input string
		code  int
		want  string
	}{
		{[]string{c.host, "exit 7"}, "", 7, ""},
		{[]string{c.host, "id -un; pwd; echo $SSH_AUTH_SOCK"}, "", 0, "user\n/home/user\n\n"},
		{[]string{c.host, "echo told >&2"}, "", 0, "told\n"}, // alone: nothing says which stream comes first
		{[]string{"-l", as("root"), c.host, "id -un"}, "", 0, "root\n"},
		{[]string{"-l", as("nobody-here"), c.host, "id -un"}, "", 125, "drowse:"},
		{[]string{c.host, "cat"}, "a\x00b\n", 0, "a\x00b\n"},
		{[]string{c.host}, "echo in a shell; exit 3\n", 3, "in a shell\n"},
		{[]string{"-o", "SetEnv=COLOUR=red", c.host, "echo $COLOUR"}, "", 0, "red\n"},
		{[]string{"-tt", c.host, "tty; stty size"}, "", 0, "/dev/pts/"},
		{[]string{"-A", c.host, "echo agent: $SSH_AUTH_SOCK"}, "", 0, "agent:\n"},
		{[]string{"-o", "ExitOnForwardFailure=yes", "-R", "18022:127.0.0.1:22", c.host, "true"}, "", 255, ""},
		{[]string{c.host, "kill -9 $$"}, "", 255, ""},
	} {
		code, out := c.ssh(ctx, tt.input, tt.args...)
		if code != tt.code || tt.want != "" && !strings.Contains(out, tt.want) {
			t.Errorf("ssh %q: %d, %q; want %d, %q", tt.args, code, out, tt.code, tt.want)
		}
	}
}

// checkFiles moves a tree in and out in every way that there is.
func (c *sshClient) checkFiles(ctx context.Context) {
	t := c.t
	t.Helper()
	blob := make([]byte, 3<<20)
	_, _ = rand.Read(blob)
	tree := filepath.Join(c.dir, "tree")
	for name, data := range map[string][]byte{"blob": blob, "a/b/empty": nil, "a/of a name": []byte("x\n")} {
		path := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../blob", filepath.Join(tree, "a", "link")); err != nil {
		t.Fatal(err)
	}
	rsh := "ssh -F " + filepath.Join(c.dir, "config")
	c.must(ctx, "scp", "-rp", "tree", c.host+":by-scp")
	c.must(ctx, "scp", "-rp", c.host+":by-scp", "scp-back")
	c.must(ctx, "rsync", "-a", "-e", rsh, "tree/", c.host+":by-rsync/")
	c.must(ctx, "rsync", "-a", "-e", rsh, c.host+":by-rsync/", "rsync-back/")
	batch := filepath.Join(c.dir, "batch")
	if err := os.WriteFile(batch, []byte("put tree/blob /tmp/by-sftp\nchmod 600 /tmp/by-sftp\nrename /tmp/by-sftp /tmp/again\nget /tmp/again sftp-back\nrm /tmp/again\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.must(ctx, "sftp", "-b", batch, c.host)
	c.must(ctx, "diff", "-r", "tree", "scp-back")
	c.must(ctx, "diff", "-r", "--no-dereference", "tree", "rsync-back")
	if back, err := os.ReadFile(filepath.Join(c.dir, "sftp-back")); err != nil || !bytes.Equal(back, blob) {
		t.Errorf("%d bytes came back, %v", len(back), err)
	}
	if code, out := c.ssh(ctx, "", c.host, "readlink by-rsync/a/link; test -e /tmp/again"); code != 1 || out != "../blob\n" {
		t.Errorf("a link, and a file that was removed: %d, %q", code, out)
	}
	c.must(ctx, "ssh", c.host, "git init -q --bare repo.git")
	c.must(ctx, "git", "clone", "-q", c.host+":repo.git", "clone")
	c.must(ctx, "git", "-C", "clone", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "--allow-empty", "-m", "one")
	c.must(ctx, "git", "-C", "clone", "push", "-q", "origin", "HEAD:main")
	if out := c.must(ctx, "git", "ls-remote", c.host+":repo.git"); !strings.Contains(out, "refs/heads/main") {
		t.Errorf("what was pushed: %q", out)
	}
}

// checkForwards reaches ports of the sandbox from this machine.
func (c *sshClient) checkForwards(ctx context.Context) {
	t := c.t
	t.Helper()
	good, bad := freeAddress(t), freeAddress(t)
	ctx, cancel := context.WithCancel(ctx)
	cmd := c.command(ctx, "ssh", "-N", "-L", fmt.Sprintf("%s:127.0.0.1:%d", good, guestPort), "-L", bad+":127.0.0.1:1", c.host)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	eventually(t, startWithin, "the port answers", func() error {
		resp, err := http.Get("http://" + good + "/state")
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	conn, err := net.Dial("tcp", bad)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(startWithin))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
		t.Errorf("a port where nothing listens: %d bytes, %v; want the end", n, err)
	}
}

// checkHangUp ends a client that has a command running, which ends with it.
func (s *server) checkHangUp(ctx context.Context, sb *client.Sandbox, c *sshClient) {
	t := s.t
	t.Helper()
	for _, flag := range []string{"-T", "-tt"} {
		cmd := c.command(ctx, "ssh", flag, c.host, "echo begun; exec sleep 98765")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		eventually(t, goneWithin, "the command that "+c.host+" ran with "+flag+" has ended", func() error {
			if exit, out := run(ctx, t, sb, "pgrep", "-f", "sleep 98765"); exit.Code == 0 {
				return fmt.Errorf("it runs as %s", out)
			}
			return nil
		})
	}
}

// checkPauseUnder puts the sandbox to sleep under a client, which is told so.
func (s *server) checkPauseUnder(ctx context.Context, sb *client.Sandbox, c *sshClient) {
	t := s.t
	t.Helper()
	var said bytes.Buffer
	cmd := c.command(ctx, "ssh", c.host, "echo begun; exec sleep 87654")
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	s.pause(ctx, sb.ID)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(said.String(), "sleep") {
		t.Errorf("the client ended with %d and %q; want 125, and that the sandbox sleeps", code, &said)
	}
	if info, err := s.client.Get(ctx, sb.ID); err != nil || info.State != client.Paused {
		t.Errorf("the sandbox is %s, %v; want it asleep", info.State, err)
	}
}
