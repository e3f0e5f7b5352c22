package e2e

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// TestOneServerToThree runs what README says of the way from one server to three, in its
// order, on addresses of this machine: but for the lines that configure the machine's own
// PostgreSQL, in whose place one of the test has the same made.
func TestOneServerToThree(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	all := fences(t, "README.md")
	n := slices.IndexFunc(all, fence.isOfSeveralServers)
	if n < 0 {
		t.Fatal("README.md does not show it")
	}
	pg := pgtest.Start(t, "listen_addresses=127.0.0.1")
	pgtest.SQL(t, pg.Admin(), "drop role drowse") // README makes it
	admin, err := url.Parse(pg.Admin())
	if err != nil {
		t.Fatal(err)
	}
	dir, copies := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(dir, "sudo"), "#!/bin/sh\nshift 2\nexec \"$@\"\n")
	if err := os.Symlink(drowseBinary, filepath.Join(dir, "drowse")); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + dir + ":" + pg.Programs() + ":" + os.Getenv("PATH"), "HOME=" + dir, "PGUSER=postgres", "PGHOST=" + admin.Query().Get("host"), "DROWSE_STATE_DIR=" + dir}
	here := strings.NewReplacer("10.0.0.9", "127.0.0.1", "10.0.0.", "127.0.7.", "/mnt/copies", copies, "e2b_…", apiKey)

	first := newServer(t, stateDir(t))
	t.Cleanup(first.cleanUp)
	first.start()
	g := first.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)})
	first.stop()

	lines, servers, out := 0, []*server{first}, ""
	for _, command := range all[n].commands(t) {
		lines++
		command = here.Replace(command)
		switch {
		case strings.HasPrefix(command, "apt "), strings.HasPrefix(command, "echo "), strings.HasPrefix(command, "systemctl "):
			// The machine's own.
		case strings.HasPrefix(command, "export "):
			env = append(env, strings.Fields(command)[1:]...)
		case strings.HasPrefix(command, "-E drowse serve "):
			for i := range 3 {
				if i > 0 {
					servers = append(servers, newServer(t, stateDir(t)))
					t.Cleanup(servers[i].cleanUp)
				}
				servers[i].serveLike(t, strings.ReplaceAll(command, "127.0.7.1:", fmt.Sprintf("127.0.7.%d:", i+1)), env)
			}
		default:
			cmd := exec.CommandContext(ctx, "sh", "-c", strings.Replace(command, "-u postgres", "sudo -u postgres", 1))
			cmd.Env, cmd.Stdin = env, strings.NewReader("PASSWORD\nPASSWORD\n")
			text, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", command, err, text)
			}
			out = string(text)
		}
	}
	if lines > 10 {
		t.Errorf("these are %d lines, and README speaks of ten", lines)
	}
	if strings.Count(out, "127.0.7.") != 3 {
		t.Errorf("drowse servers lists\n%s", out)
	}
	there := g.through(ctx, servers[2])
	there.same(g.first, there.ask(ctx))
	if err := servers[1].client.Pause(ctx, g.sb.ID); err != nil {
		t.Fatal(err)
	}
	servers[0].stop() // once all is copied that sleeps
	there.same(g.first, there.ask(ctx))
}

// serveLike starts a server as a command line says, in whose environment are such settings.
func (s *server) serveLike(t *testing.T, command string, env []string) {
	t.Helper()
	args := strings.Fields(strings.TrimPrefix(command, "-E drowse serve "))
	if args[0] != "--listen" {
		t.Fatalf("%q does not begin with its address", command)
	}
	c, err := client.New(client.Options{URL: "http://" + args[1], APIKey: apiKey, HTTPClient: httpClient})
	if err != nil {
		t.Fatal(err)
	}
	s.addr, s.client, s.args = args[1], c, args[2:]
	for _, setting := range env {
		if url, is := strings.CutPrefix(setting, "DROWSE_STORE="); is {
			s.store = url
		}
	}
	s.start()
}
