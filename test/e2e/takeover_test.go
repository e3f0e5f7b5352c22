package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
)

// TestTakeOver: what sleeps on a server that is gone wakes on another that is asked for it,
// with its memory and files, whether the server was stopped, killed or does not go on. One
// that comes back has it no more.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 6*time.Minute)
	copies := t.TempDir()
	all := startCluster(t, 3, "--blobs", copies, "--durability", "replicated")
	a, b, c := all[0], all[1], all[2]
	g := a.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true), Name: "wanderer"})
	other := b.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause})
	viaB, viaC := g.through(ctx, b), g.through(ctx, c)
	write := func(g *guest, text string) {
		t.Helper()
		if err := g.sb.WriteFile(ctx, "note", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	wantNote := func(g *guest, text string) {
		t.Helper()
		f, err := g.sb.ReadFile(ctx, "note")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got, err := io.ReadAll(f); err != nil || string(got) != text {
			t.Errorf("the note says %q, %v; want %q", got, err, text)
		}
	}

	// The server is stopped.
	write(g, "of a, which its sandbox alone knows")
	a.pause(ctx, g.sb.ID)
	wantNowhere(t, copies, "which its sandbox alone knows")
	was, err := b.client.Get(ctx, g.sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	viaB.same(g.first, viaB.ask(ctx))
	wantNote(viaB, "of a, which its sandbox alone knows")
	is, err := c.client.Get(ctx, g.sb.ID)
	if err != nil || is.Server == was.Server || is.State != client.Running || is.Generation != was.Generation+1 || is.Name != was.Name || !is.CreatedAt.Equal(was.CreatedAt) {
		t.Errorf("taken over it is %+v, %v; it was %+v", is, err, was)
	}
	if events := eventsOf(ctx, t, c.client, g.sb.ID); !strings.Contains(strings.Join(events, " "), "moved") {
		t.Errorf("its events are %v", events)
	}
	a.start()
	viaA := g.through(ctx, a)
	viaA.same(g.first, viaA.ask(ctx))

	// It is killed.
	write(viaC, "of b")
	c.pause(ctx, g.sb.ID)
	snap := snapshotOf(ctx, t, b, other)
	b.crash()
	eventually(t, time.Minute, "it wakes on another server", func() error {
		_, err := viaC.report(ctx)
		return err
	})
	viaC.same(g.first, viaC.ask(ctx))
	wantNote(viaA, "of b")
	for s, from := range map[*server]string{a: "point", c: snap.ID} {
		var sb *client.Sandbox
		eventually(t, time.Minute, "a sandbox is created from a snapshot of a server that is gone", func() (err error) {
			sb, err = s.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Snapshot: from})
			return err
		})
		if out, text := run(ctx, t, sb, "cat", "of-b"); out.Code != 0 || text != "of b" {
			t.Errorf("a sandbox of %s: %+v %q", from, out, text)
		}
		s.kill(ctx, t, sb.ID)
	}
	b.start()
	viaB = g.through(ctx, b)
	viaB.same(g.first, viaB.ask(ctx))
	other.same(other.first, other.ask(ctx)) // what ran there runs on
	again, err := b.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Snapshot: snap.ID})
	if err != nil {
		t.Fatalf("create from what another server has taken over: %v", err)
	}
	if is, err := c.client.Get(ctx, again.ID); err != nil || is.Server != serverOf(t, a) {
		t.Errorf("it was made by %+v, %v; want the server that has the snapshot", is, err)
	}
	a.kill(ctx, t, again.ID)
	if err := client.NewSnapshots(b.client).Delete(ctx, snap.ID); err != nil {
		t.Error(err)
	}

	// It stands still for longer than its lease lasts, and goes on.
	write(viaB, "of c")
	owner, rest := c, a
	if now, err := b.client.Get(ctx, g.sb.ID); err != nil {
		t.Fatal(err)
	} else if now.Server == serverOf(t, a) {
		owner, rest = a, c
	}
	owner.pause(ctx, g.sb.ID)
	if err := owner.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "it wakes on another server", func() error {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := viaB.report(short)
		return err
	})
	write(viaB, "of b again")
	if err := owner.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the one that stood still has given it up", func() error {
		if got, err := owner.client.Get(ctx, g.sb.ID); err != nil || got.Server != serverOf(t, b) {
			return fmt.Errorf("%+v, %w", got.Server, err)
		}
		return nothingOf(owner, g.sb.ID)
	})
	late := g.through(ctx, owner)
	late.same(g.first, late.ask(ctx))
	wantNote(late, "of b again")

	rest.kill(ctx, t, g.sb.ID)
	if _, err := owner.client.Get(ctx, g.sb.ID); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("it was killed: %v", err)
	}
}

// snapshotOf has a server take a snapshot of a guest, called point, with a file, and returns it
// when it is in object storage.
func snapshotOf(ctx context.Context, t *testing.T, s *server, g *guest) client.Snapshot {
	t.Helper()
	if err := g.sb.WriteFile(ctx, "of-b", strings.NewReader("of b")); err != nil {
		t.Fatal(err)
	}
	snap, err := client.NewSnapshots(s.client).Create(ctx, g.sb.ID, client.SnapshotOptions{Name: "point"})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "it is in object storage", func() error {
		is, err := client.NewSnapshots(s.client).Get(ctx, snap.ID)
		if err == nil && is.Durability != client.Replicated {
			err = fmt.Errorf("it is %q", is.Durability)
		}
		return err
	})
	return snap
}

// wantNowhere sees that no file below a directory, of which there are some, has a text.
func wantNowhere(t *testing.T, dir, text string) {
	t.Helper()
	files := 0
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		data, err := os.ReadFile(filepath.Join(dir, path))
		if strings.Contains(path+string(data), text) {
			t.Errorf("%s has %q", path, text)
		}
		return err
	})
	if err != nil || files < 2 {
		t.Errorf("%d files in %s, %v", files, dir, err)
	}
}

// TestTakeOverFromBucket has the copies in object storage, for which there are no
// credentials at first, and which is away for a while.
func TestTakeOverFromBucket(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	bucket, role := blobstest.NewGateway(t), blobstest.NewRole(t)
	all := startClusterIn(t, 2, role.Env(), "--blobs", bucket.URL())
	a, b := all[0], all[1]
	g := a.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)})
	viaB := g.through(ctx, b)
	// until waits until the API says where the checkpoint is.
	until := func(is client.Durability, failed bool) {
		t.Helper()
		eventually(t, time.Minute, "its checkpoint is "+string(is), func() error {
			sb, err := a.client.Get(ctx, g.sb.ID)
			if err != nil {
				return err
			}
			if c := sb.Checkpoint; c == nil || c.Durability != is || (c.ReplicationError != "") != failed {
				return fmt.Errorf("its server says %+v", c)
			}
			return nil
		})
	}
	a.pause(ctx, g.sb.ID)
	until(client.Local, true)
	role.Give()
	until(client.Replicated, false)

	g.same(g.first, g.ask(ctx)) // it wakes
	bucket.Kill()
	a.pause(ctx, g.sb.ID) // which promises no copy
	until(client.Local, true)
	bucket.Start(t)
	until(client.Replicated, false)

	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	viaB.same(g.first, viaB.ask(ctx))
	if is, err := b.client.Get(ctx, g.sb.ID); err != nil || is.Server != serverOf(t, b) {
		t.Errorf("taken over it is %+v, %v", is, err)
	}
}

// serverOf returns the id of a server.
func serverOf(t *testing.T, s *server) string {
	t.Helper()
	var e struct{ Server string }
	text, err := os.ReadFile(filepath.Join(s.dir, "drowse.db"))
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e.Server
}

// nothingOf returns an error if a server has files or a runtime of a sandbox.
func nothingOf(s *server, id string) error {
	for _, dir := range []string{"layers", "mounts", "runtimes"} {
		entries, err := os.ReadDir(filepath.Join(s.dir, dir))
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), id) {
				return fmt.Errorf("%s has %s", dir, e.Name())
			}
		}
	}
	return nil
}
