package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestBackup backs up a server on which sandboxes start, sleep, wake and end all the
// time, loses its state directory and gets it back: what slept wakes with the memory
// that it went to sleep with, and with a hostile tree that no path leads through. So it
// is with a backup in a directory, and with one that went through a stream.
func TestBackup(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	before := g.ask(ctx)
	if err := g.sb.WriteFile(ctx, "kept", strings.NewReader("kept")); err != nil {
		t.Fatal(err)
	}
	if exit, out := run(ctx, t, g.sb, "python3", "-c", makeHostileTree, "all"); exit.Code != 0 {
		t.Fatalf("%s: %s", exit.Status, out)
	}
	s.pause(ctx, g.sb.ID)
	s.waitGone(g.sb.ID)
	runner, err := s.client.Create(ctx, client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	work := t.TempDir()
	dir, stream := filepath.Join(work, "backup"), filepath.Join(work, "stream")
	backup := func(wantCode int, wantSaid, what, file string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, drowseBinary, append([]string{"backup", what, "--state-dir", s.dir()}, args...)...)
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = &said, &said
		if file != "" {
			f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if cmd.Stdin = f; len(args) == 0 {
				cmd.Stdout = f
			}
		}
		err := cmd.Run()
		code := 0
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			code = e.ExitCode()
		}
		if code != wantCode || !strings.Contains(said.String(), wantSaid) {
			t.Fatalf("backup %s %q ends with %d (%v): %s; want %d, and %q", what, args, code, err, &said, wantCode, wantSaid)
		}
	}

	stop := s.churn(ctx)
	backup(0, runner.ID, dir, "")
	backup(0, "wake from it as they are", "-", stream)
	left := stop()
	backup(0, "verified", dir, "", "--verify")
	backup(0, "verified", "-", stream, "--verify")
	backup(5, "is not empty", dir, "", "--restore")
	for _, id := range append(left, runner.ID) {
		if err := s.client.Kill(ctx, id); err != nil {
			t.Fatal(err)
		}
		s.waitGone(id)
	}
	testmode.Eventually(t, "what the backups have held back is removed", func() bool {
		return len(testmode.Names(t, filepath.Join(s.dir(), "layers"))) == 1 && len(testmode.Names(t, filepath.Join(s.dir(), "images"))) == 1
	})

	for _, from := range []struct{ what, file string }{{dir, ""}, {"-", stream}} {
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(s.dir()); err != nil {
			t.Fatal(err)
		}
		backup(0, "restored", from.what, from.file, "--restore")
		if found, code := s.fsck(t); code != 0 {
			t.Errorf("fsck of what was restored from %s ends with %d: %+v", from.what, code, found)
		}
		s.start()
		s.connect(ctx, g.sb.ID)
		g.same(before, g.ask(ctx))
		g.checkKept(ctx, "kept")
		if exit, out := run(ctx, t, g.sb, "python3", "-c", checkHostileTree); exit.Code != 0 || strings.TrimSpace(out) != "at the bottom" {
			t.Errorf("the hostile tree is not what it was: %s: %s", exit.Status, out)
		}
		list, err := s.client.List(ctx, client.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		woken := 0
		for _, i := range list {
			if i.State == client.Paused {
				s.connect(ctx, i.ID)
				woken++
			}
			if i.ID == runner.ID {
				t.Errorf("%s ran without a checkpoint, and is %s", i.ID, i.State)
			}
			if err := s.client.Kill(ctx, i.ID); err != nil {
				t.Fatal(err)
			}
			s.waitGone(i.ID)
		}
		t.Logf("restored from %s: %d sandboxes, of which %d woke", from.what, len(list), woken+1)
	}
}

// churn starts sandboxes, puts them to sleep, wakes them, takes snapshots and ends all
// of it, in two places at once, until stop is called, which returns what is left: a
// sandbox of each place, which has slept since the first round.
func (s *server) churn(ctx context.Context) (stop func() []string) {
	s.t.Helper()
	var end atomic.Bool
	var rounds atomic.Int32
	var g errgroup.Group
	left := make([]string, 2)
	sleeper := func(volume string) (id string, err error) {
		o := client.CreateOptions{}
		if volume != "" {
			o.Volumes = map[string]string{"/mnt/data": volume}
		}
		sb, err := s.client.Create(ctx, o)
		if err != nil {
			return "", err
		}
		return sb.ID, s.client.Pause(ctx, sb.ID)
	}
	round := func(place int) error {
		volume, err := s.client.CreateVolume(ctx, fmt.Sprintf("of-%d", place))
		if err != nil {
			return err
		}
		id, err := sleeper(volume.Name)
		if err != nil {
			return err
		}
		snap, err := client.NewSnapshots(s.client).Create(ctx, id, client.SnapshotOptions{})
		if err == nil {
			_, err = s.client.Connect(ctx, id, 0)
		}
		if err != nil {
			return err
		}
		rounds.Add(1)
		return errors.Join(s.client.Pause(ctx, id), s.client.Kill(ctx, id), client.NewSnapshots(s.client).Delete(ctx, snap.ID), s.client.DeleteVolume(ctx, volume.ID))
	}
	for n := range left {
		var err error
		if left[n], err = sleeper(""); err != nil {
			s.t.Fatal(err)
		}
		g.Go(func() error {
			for !end.Load() {
				if err := round(n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return func() []string {
		s.t.Helper()
		end.Store(true)
		if err := g.Wait(); err != nil {
			s.t.Fatal(err)
		}
		s.t.Logf("%d sandboxes have come and gone", rounds.Load())
		return left
	}
}
