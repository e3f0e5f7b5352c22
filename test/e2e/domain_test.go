package e2e

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// cli is the command line of a user who knows a server by one URL, with a name
// in it.
type cli struct {
	t     *testing.T
	hosts string // takes the place of /etc/hosts
	env   []string
	home  string
}

// newCLI returns the command line of a server that startTLSServer has started.
func newCLI(t *testing.T, s *server) *cli {
	dir := t.TempDir()
	c := &cli{t: t, hosts: filepath.Join(dir, "hosts"), home: dir}
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	name := "api." + domain
	ca := filepath.Join(dir, "ca.pem")
	for file, content := range map[string][]byte{
		c.hosts: []byte("127.0.0.1 localhost " + name + "\n"),
		ca:      pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority().cert.Raw}),
	} {
		if err := os.WriteFile(file, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "SSL_CERT_FILE=" + ca,
		"DROWSE_URL=https://" + net.JoinHostPort(name, port), "DROWSE_API_KEY=" + apiKey,
	}
	return c
}

// run runs drowse in a mount namespace where the server's name is known.
func (c *cli) run(input string, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	const named = `mount --bind "$0" /etc/hosts && exec "$@"`
	cmd := exec.CommandContext(c.t.Context(), "unshare", append([]string{"--mount", "sh", "-c", named, c.hosts, drowseBinary}, args...)...)
	var out, errors bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.env, c.home, strings.NewReader(input), &out, &errors
	cmd.WaitDelay = time.Second
	_ = cmd.Run() // the code says it
	return out.String(), errors.String(), cmd.ProcessState.ExitCode()
}

// want runs drowse and compares its output and its code.
func (c *cli) want(code int, stdout, input string, args ...string) {
	c.t.Helper()
	out, errors, got := c.run(input, args...)
	if out != stdout || got != code {
		c.t.Errorf("drowse %s: code %d, output %q, errors %q; want code %d and output %q", strings.Join(args, " "), got, out, errors, code, stdout)
	}
}

// TestOneURL gives the CLI the one URL that a user of a server with a domain
// has: what goes into sandboxes goes there as well, awake or asleep.
func TestOneURL(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s, _ := startTLSServer(t)
	c := newCLI(t, s)

	c.want(3, "out\n", "", "run", "--", "sh", "-c", "echo out; exit 3")
	c.want(0, "1000\n", "echo $UID\n", "run", "--timeout", "2m", "--", "bash", "-s")

	sb := s.create(ctx, client.CreateOptions{IdleTimeout: time.Hour, OnIdle: client.Pause, AutoResume: new(true)})
	const content = "what is in it\n"
	if err := os.WriteFile(filepath.Join(c.home, "file"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	c.want(0, "", "", "cp", "file", sb.ID+":work/copy")
	c.want(0, content, "", "exec", sb.ID, "--", "cat", "work/copy")
	c.want(0, "", "", "cp", sb.ID+":work/copy", "back")
	if got, err := os.ReadFile(filepath.Join(c.home, "back")); string(got) != content || err != nil {
		t.Errorf("the file came back as %q, %v", got, err)
	}

	if err := s.client.Pause(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	c.want(0, content, "", "exec", sb.ID, "--", "cat", "work/copy")
	if info, err := s.client.Get(ctx, sb.ID); err != nil || info.Generation != 2 {
		t.Errorf("after a command: generation %d, %v; want that it was woken", info.Generation, err)
	}

	c.want(0, sb.ID+" is killed\n", "", "kill", sb.ID)
	_, errors, code := c.run("", "exec", sb.ID, "--", "true")
	if want := fmt.Sprintf("sandbox %s: the sandbox ended", sb.ID); code == 0 || !strings.Contains(errors, want) {
		t.Errorf("exec after the end: code %d, %q; want %q in it", code, errors, want)
	}
}
