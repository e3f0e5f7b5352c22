package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestTakeOver: what sleeps on a server that is gone wakes on another that is asked for it,
// with its memory and files, whether the server was stopped, killed or does not go on. One
// that comes back has it no more.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 10*time.Minute)
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
	wantFiles(t, filepath.Join(a.dir(), "layers"), "which its sandbox alone knows", true)
	wantFiles(t, copies, "which its sandbox alone knows", false)
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
	for _, x := range []struct {
		s    *server
		from string
	}{{a, "point"}, {c, snap.ID}} { // a, which is asked first, takes it over
		s, from := x.s, x.from
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
	stopped := time.Now()
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
	time.Sleep(testmode.Choose(0, standsFor-time.Since(stopped)))
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
	old := b.startGuest(ctx, client.CreateOptions{MaxLifetime: 10 * time.Second})
	b.crash() // which had both
	eventually(t, time.Minute, "the others say that it was killed", func() error {
		_, err := rest.client.Resume(ctx, g.sb.ID, time.Hour)
		if e, is := errors.AsType[*client.Error](err); !is || e.Code != "sandbox_terminated" {
			return fmt.Errorf("a wake: %w", err)
		}
		if _, err := late.report(ctx); err == nil || !strings.Contains(err.Error(), "sandbox_terminated") {
			return fmt.Errorf("an access: %w", err)
		}
		return nil
	})
	eventually(t, 3*time.Minute, "what was to end there has ended", func() error {
		sb, err := rest.client.Get(ctx, old.sb.ID)
		if e, is := errors.AsType[*client.Error](err); !is || e.Code != "max_lifetime_exceeded" {
			return fmt.Errorf("it is %s, %w", sb.State, err)
		}
		return nil
	})
	if events := eventsOf(ctx, t, rest.client, g.sb.ID); !strings.Contains(strings.Join(events, " "), "terminated") {
		t.Errorf("its events are %v", events)
	}
	b.start()
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

// wantFiles wants files below a directory to have a text in them, or none to.
func wantFiles(t *testing.T, dir, text string, some bool) {
	t.Helper()
	var all, with []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		if all = append(all, path); bytes.Contains(data, []byte(text)) {
			with = append(with, path)
		}
		return err
	})
	if err != nil || len(all) < 2 || some != (len(with) > 0) {
		t.Errorf("of %d files in %s these have %q: %q, %v", len(all), dir, text, with, err)
	}
}

// TestTakeOverOfTemplate: a template that was built on a server that is gone is there for all
// others, with all its tags; it is built anew there, and the server that comes back has nothing
// of it. A build that ran there has failed.
func TestTakeOverOfTemplate(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 6*time.Minute)
	all := startCluster(t, 3, "--blobs", t.TempDir())
	a, b, c := all[0], all[1], all[2]
	say := func(text string) recipeStep { return runs("echo " + text + " >/var/tmp/said") }
	if r := a.buildTemplate(ctx, "app", "base", say("one")); r.Status != "ready" {
		t.Fatalf("%+v", r)
	}
	a.call(ctx, http.MethodPost, "/templates/tags", `{"target":"app","tags":["v2"]}`, nil)
	for _, name := range []string{"app", "app:v2"} {
		eventually(t, time.Minute, name+" is in object storage", func() error {
			is, err := client.NewSnapshots(a.client).Get(ctx, name)
			if err == nil && is.Durability != client.Replicated {
				err = fmt.Errorf("it is %q", is.Durability)
			}
			return err
		})
	}
	build := a.requestBuild(ctx, "slow")
	a.startBuild(ctx, "slow", build, "base", runs("sleep 600"))
	eventually(t, time.Minute, "the step runs", func() error {
		if r := b.buildStatus(ctx, "slow", build); !strings.Contains(r.log(), "sleep") {
			return errors.New(r.log())
		}
		return nil
	})
	a.crash()

	saying := func(s *server, from, text string) *client.Sandbox {
		t.Helper()
		var sb *client.Sandbox
		eventually(t, time.Minute, "a sandbox is created from "+from, func() (err error) {
			sb, err = s.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Template: from})
			return err
		})
		if out, said := run(ctx, t, sb, "cat", "/var/tmp/said"); out.Code != 0 || said != text+"\n" {
			t.Errorf("a sandbox of %s: %+v %q", from, out, said)
		}
		return sb
	}
	first := saying(b, "app", "one")
	second := saying(c, "app:v2", "one")
	if is, of := serverOfSandbox(ctx, t, b, first.ID), serverOfSandbox(ctx, t, c, second.ID); is != of || is == serverOf(t, a) {
		t.Errorf("sandboxes of one template are on %s and %s; %s is gone", is, of, serverOf(t, a))
	}
	if r := c.buildTemplate(ctx, "app", "base", say("two")); r.Status != "ready" {
		t.Errorf("built anew: %+v", r)
	}
	saying(b, "app", "two")
	saying(b, "app:v2", "one")
	if r := c.awaitBuild(ctx, "slow", build); r.Status != "error" || r.Reason == nil || !strings.Contains(r.Reason.Message, "build again") {
		t.Errorf("the build that ran on a server that is gone: %+v", r)
	}

	a.start()
	saying(a, "app", "two")
	for _, s := range all {
		var list []struct{ TemplateID string }
		if s.call(ctx, http.MethodGet, "/templates", "", &list); len(list) != 3 { // with base
			t.Errorf("the templates are %+v", list)
		}
	}
	eventually(t, time.Minute, "who had it has nothing of it", func() error {
		layers, err := os.ReadDir(filepath.Join(a.dir(), "layers"))
		if err == nil && len(layers) > 0 {
			err = fmt.Errorf("it has %v", layers)
		}
		return err
	})
	a.call(ctx, http.MethodDelete, "/templates/app", "", nil)
	for _, s := range all {
		_, err := s.client.Create(ctx, client.CreateOptions{Template: "app"})
		wantCode(t, err, "a template that was deleted", "template_not_found")
	}
	if r := a.buildTemplate(ctx, "app", "base", say("three")); r.Status != "ready" {
		t.Errorf("under the name of one that was deleted: %+v", r)
	}
	saying(c, "app", "three")
}

// serverOfSandbox returns the server that has a sandbox.
func serverOfSandbox(ctx context.Context, t *testing.T, by *server, id string) string {
	t.Helper()
	is, err := by.client.Get(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return is.Server
}

// How long, with all tests, a server stands still, and object storage is away.
const (
	standsFor = time.Minute
	awayFor   = 10 * time.Minute
)

// TestTakeOverFromBucket has the copies in object storage, for which there are no
// credentials at first, and which is away for a while.
func TestTakeOverFromBucket(t *testing.T) {
	t.Parallel()
	away := testmode.Choose(0, awayFor)
	ctx := deadline(t, 3*time.Minute+away)
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
	for begun := time.Now(); time.Since(begun) < away; { // nobody waits for it meanwhile
		g.same(g.first, viaB.ask(ctx))
		a.pause(ctx, g.sb.ID)
		until(client.Local, true)
		time.Sleep(time.Second)
	}
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
	text, err := os.ReadFile(filepath.Join(s.dir(), "drowse.db"))
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
		entries, err := os.ReadDir(filepath.Join(s.dir(), dir))
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
