package e2e

import (
	"context"
	"errors"
	"io"
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
