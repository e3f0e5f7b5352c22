package e2e

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestFilesystemPause pauses a sandbox with its files alone, by call and by
// timeout. It boots afresh: its processes are gone, and so traffic does not
// wake it.
func TestFilesystemPause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		options client.CreateOptions
		pause   func(ctx context.Context, s *server, id string)
	}{
		{"by call", client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true)}, pauseFiles},
		{"by timeout", client.CreateOptions{OnTimeout: client.Pause, PauseMode: client.Filesystem}, expire},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := deadline(t, time.Minute)
			s := startServer(t)
			g := s.startGuest(ctx, c.options)
			kept := strings.Repeat("kept", 1<<18)
			if err := g.sb.WriteFile(ctx, "kept", strings.NewReader(kept)); err != nil {
				t.Fatal(err)
			}

			c.pause(ctx, s, g.sb.ID)
			s.waitGone(g.sb.ID)
			g.checkFilesOnly(ctx, int64(len(kept)))
			for _, port := range []int{guestPort, agentPort} {
				g.checkRefused(ctx, port)
			}
			g.checkFilesOnly(ctx, int64(len(kept)))

			s.connect(ctx, g.sb.ID)
			if x := s.explain(ctx, g.sb.ID); x.State != client.Running || x.Generation != 2 {
				t.Errorf("it is %s in generation %d, want running in 2", x.State, x.Generation)
			}
			if _, out := run(ctx, t, g.sb, "pgrep", "-x", "guest"); out != "" {
				t.Errorf("the guest still runs, as %s", out)
			}
			g.checkKept(ctx, kept)

			// What it sleeps with next time is a new matter.
			s.pause(ctx, g.sb.ID)
			if info, err := s.client.Get(ctx, g.sb.ID); err != nil || info.Checkpoint == nil || info.Checkpoint.Mode != client.Memory {
				t.Errorf("checkpoint %+v, %v; want one with memory", info.Checkpoint, err)
			}
			s.connect(ctx, g.sb.ID)
			g.checkKept(ctx, kept)
		})
	}
}

func pauseFiles(ctx context.Context, s *server, id string) {
	s.t.Helper()
	info, err := s.client.PauseWith(ctx, id, client.Filesystem)
	if err != nil {
		s.t.Fatal(err)
	}
	if info.State != client.Paused || info.Checkpoint == nil || info.Checkpoint.Mode != client.Filesystem {
		s.t.Errorf("the pause answers that it is %s with checkpoint %+v; want paused with files alone", info.State, info.Checkpoint)
	}
}

// expire lets the timeout of a sandbox run out.
func expire(ctx context.Context, s *server, id string) {
	s.t.Helper()
	if err := s.client.SetTimeout(ctx, id, time.Second); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, 20*time.Second, "pause at the timeout", func() error { return s.is(ctx, id, client.Paused) })
}

// checkFilesOnly checks that the sandbox sleeps in its first generation, with
// files of so many bytes and no memory.
func (g *guest) checkFilesOnly(ctx context.Context, bytes int64) {
	t := g.s.t
	t.Helper()
	info, err := g.s.client.Get(ctx, g.sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if info.State != client.Paused || info.Generation != 1 {
		t.Errorf("it is %s in generation %d, want paused in 1", info.State, info.Generation)
	}
	if c := info.Checkpoint; c == nil || c.Mode != client.Filesystem || c.Bytes < bytes {
		t.Errorf("checkpoint %+v, want filesystem with at least %d bytes", c, bytes)
	}
	if paused := g.s.entries(ctx, g.sb.ID, "pausing"); len(paused) != 1 || paused[0].Detail != string(client.Filesystem) {
		t.Errorf("pauses %+v, want one of the filesystem", paused)
	}
}

// checkKept checks the file that was written before the pause.
func (g *guest) checkKept(ctx context.Context, want string) {
	t := g.s.t
	t.Helper()
	r, err := g.sb.ReadFile(ctx, "kept")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err == nil && string(got) != want {
		err = errors.New("it has changed")
	}
	if err != nil {
		t.Errorf("file of %d bytes, now %d: %v", len(want), len(got), err)
	}
}

// TestAgentIsFixed has root in a sandbox replace the agent in every way that it
// knows. What runs stays, and what boots after a pause of the files alone is the
// true one.
func TestAgentIsFixed(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true)})
	root := g.sb.As("root")
	const agent = "/usr/lib/drowse/agent"
	sum := func() string {
		t.Helper()
		exit, out := run(ctx, t, root, "sh", "-c", "sha256sum </proc/1/exe; sha256sum <"+agent)
		sums := strings.Fields(out)
		if exit.Code != 0 || len(sums) != 4 || sums[0] != sums[2] {
			t.Fatalf("what runs and what is there: %+v %q", exit, out)
		}
		return sums[0]
	}
	true1 := sum()
	for _, attempt := range []string{
		"echo fake >" + agent,
		"echo fake >>" + agent,
		"rm " + agent,
		"rm -r /usr/lib/drowse",
		"rmdir /usr/lib/drowse",
		"mv " + agent + " /usr/lib/drowse/moved",
		"mv /bin/true " + agent,
		"cp /bin/true " + agent,
		"ln -sf /bin/true " + agent,
		"touch /usr/lib/drowse/more",
		"chmod 0 " + agent,
		"chown user " + agent,
		"truncate -s 0 " + agent,
		"setfattr -n user.x -v y " + agent + " || python3 -c 'import os; os.setxattr(\"" + agent + "\", \"user.x\", b\"y\")'",
		"umount /usr/lib/drowse",
		"umount -l /usr/lib/drowse",
		"mount -o remount,rw /usr/lib/drowse",
		"mount -t tmpfs tmpfs /usr/lib/drowse",
		"mount --bind /tmp /usr/lib/drowse",
	} {
		if exit, out := run(ctx, t, root, "sh", "-c", attempt); exit.Code == 0 {
			t.Errorf("%s: it succeeds: %s", attempt, out)
		}
		if now := sum(); now != true1 {
			t.Fatalf("%s: the agent is another one", attempt)
		}
	}
	// Its directory can be moved, and something else put in its place.
	for _, replaced := range []string{
		"mv /usr/lib/drowse /usr/lib/moved",
		"mv /usr/lib/drowse /usr/lib/moved2 && mkdir /usr/lib/drowse && printf '#!/bin/sh\ntouch /home/user/fake; sleep 1000\n' >" + agent + " && chmod 755 " + agent,
		"mv /usr/lib/drowse /usr/lib/moved3 && mkdir /home/user/other && cp /bin/true /home/user/other/agent && ln -s /home/user/other /usr/lib/drowse",
		"mv /usr/lib/drowse /usr/lib/moved4 && echo a file >/usr/lib/drowse",
	} {
		if exit, out := run(ctx, t, root, "sh", "-c", replaced); exit.Code != 0 {
			t.Fatalf("%s: %+v %s", replaced, exit, out)
		}
		pauseFiles(ctx, s, g.sb.ID)
		s.waitGone(g.sb.ID)
		s.connect(ctx, g.sb.ID)
		if now := sum(); now != true1 {
			t.Fatalf("%s: the agent is another one", replaced)
		}
	}
	// A directory above can be moved, and a false one put in its place.
	exit, out := run(ctx, t, root, "sh", "-c", `
		set -e
		mkdir -p /usr/lib.new/drowse
		printf '#!/bin/sh\ntouch /home/user/fake; sleep 1000\n' >/usr/lib.new/drowse/agent
		chmod 755 /usr/lib.new/drowse/agent
		exec python3 -c 'import os; os.rename("/usr/lib", "/usr/lib.old"); os.rename("/usr/lib.new", "/usr/lib")'`)
	t.Logf("a false /usr/lib in its place: %s %s", exit.Status, out)
	pauseFiles(ctx, s, g.sb.ID)
	s.waitGone(g.sb.ID)
	s.connect(ctx, g.sb.ID)
	// Nothing else runs without the true /usr/lib; the agent needs nothing of it.
	if begin := readSome(ctx, t, root, agent); begin != "\x7fELF" {
		t.Errorf("the agent begins with %q", begin)
	}
	if _, err := root.ReadFile(ctx, "/home/user/fake"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("the false agent ran: %v", err)
	}
	if begin := readSome(ctx, t, root, "/usr/lib.old/drowse/agent"); begin != "\x7fELF" && begin != "" {
		t.Errorf("where the agent was: %q", begin)
	}
	t.Logf("killed in %s", s.kill(ctx, t, g.sb.ID))
	s.waitGone(g.sb.ID)
}

// readSome returns the beginning of a file in a sandbox; empty if there is none.
func readSome(ctx context.Context, t *testing.T, sb *client.Sandbox, path string) string {
	t.Helper()
	f, err := sb.ReadFile(ctx, path)
	if errors.Is(err, client.ErrNotFound) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	begin := make([]byte, 4)
	if _, err := io.ReadFull(f, begin); err != nil {
		t.Fatal(err)
	}
	return string(begin)
}

// TestVolumesHideNoAgent mounts volumes where the agent is, along links that the
// image has and links that root in a sandbox has made, and one volume within
// another. No sandbox starts with another agent, and nothing is made along links
// of a volume.
func TestVolumesHideNoAgent(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	fake := s.volume(ctx, "fake")
	s.volume(ctx, "inner")
	s.wantContent(ctx, fake, "PUT", "file", "/agent", "#!/bin/sh\nsleep 1000\n", http.StatusCreated, "")
	s.wantContent(ctx, fake, "PATCH", "path", "/agent", `{"mode":493}`, http.StatusOK, "")
	with := func(mounts map[string]string) client.CreateOptions {
		return client.CreateOptions{OnTimeout: client.Pause, Volumes: mounts}
	}
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "cannot be mounted at") {
			t.Errorf("%s: %v; want that a volume cannot be mounted there", what, err)
		}
	}
	for _, at := range []string{"/usr/lib/drowse", "/usr/lib/drowse/x", "/usr/lib", "/usr", "/lib/drowse", "/lib/./drowse//x", "/lib", "/proc/self/root/mnt"} {
		_, err := s.client.Create(ctx, with(map[string]string{at: "fake"}))
		refused(at, err)
	}
	for _, links := range []string{
		"mv /data /old && ln -s /usr/lib /data",
		"mv /data /old && ln -s /old/../usr/lib/../lib /data",
		"mv /other /old && ln -s /data/drowse /other",
		"mv /other /old && ln -s /data/drowse/../../usr /other",
	} {
		sb := s.create(ctx, with(map[string]string{"/data/drowse": "fake", "/other/in": "inner"}))
		if exit, out := run(ctx, t, sb.As("root"), "sh", "-c", links); exit.Code != 0 {
			t.Fatalf("%s: %+v %s", links, exit, out)
		}
		pauseFiles(ctx, s, sb.ID)
		s.waitGone(sb.ID)
		_, err := s.client.Connect(ctx, sb.ID, time.Minute)
		refused(links, err)
		if got := s.content(ctx, fake, "GET", "dir", "/", ""); strings.Contains(string(got.body), `"in"`) {
			t.Errorf("%s: a directory was made in the other volume: %s", links, got.body)
		}
		s.kill(ctx, t, sb.ID)
	}
}
