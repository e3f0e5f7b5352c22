package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// startCluster starts servers whose records are in one database, each with more arguments.
// The first has started before the others.
func startCluster(t *testing.T, n int, args ...string) []*server {
	t.Helper()
	return startClusterIn(t, n, nil, args...)
}

// startClusterIn is startCluster with more in the environment of each server.
func startClusterIn(t *testing.T, n int, env []string, args ...string) []*server {
	t.Helper()
	url := pgtest.Start(t).NewDatabase(t)
	var all []*server
	for range n {
		s := newServer(t, stateDir(t))
		s.store, s.env, s.args = url, env, append([]string{"--peer-listen", freeAddress(t)}, args...)
		t.Cleanup(s.cleanUp)
		s.start()
		all = append(all, s)
	}
	return all
}

// through returns a guest as it is seen by clients of another server.
func (g *guest) through(ctx context.Context, s *server) *guest {
	s.t.Helper()
	sb, _, err := s.client.Open(ctx, g.sb.ID)
	if err != nil {
		s.t.Fatalf("open %s through %s: %v", g.sb.ID, s.addr, err)
	}
	return &guest{s, sb, g.first}
}

// wantCode fails the test unless an error of a server has a code.
func wantCode(t *testing.T, err error, what, code string) {
	t.Helper()
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != code {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}

// TestThreeServers has clients of each of three servers use what any of them has.
func TestThreeServers(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	all := startCluster(t, 3)
	options := client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)}
	var guests []*guest
	for _, s := range all {
		guests = append(guests, s.startGuest(ctx, options))
	}

	for i, s := range all {
		list, err := s.client.List(ctx, client.ListOptions{})
		if err != nil || len(list) != len(all) {
			t.Fatalf("server %d lists %d sandboxes, want %d: %v", i, len(list), len(all), err)
		}
		for j, g := range guests {
			there := g.through(ctx, s)
			there.same(g.first, there.ask(ctx))
			if out, text := run(ctx, t, there.sb, "echo", "here"); out.Code != 0 || strings.TrimSpace(text) != "here" {
				t.Errorf("a command in sandbox %d through server %d: %+v %q", j, i, out, text)
			}
			content := bytes.Repeat([]byte{byte(i), byte(j)}, 3<<20)
			if err := there.sb.WriteFile(ctx, "large", bytes.NewReader(content)); err != nil {
				t.Errorf("write through server %d: %v", i, err)
			}
			f, err := g.sb.ReadFile(ctx, "large")
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes are %d, %v", len(content), len(got), err)
			}
			_ = f.Close()

			// It sleeps and wakes by what comes through another server.
			before, err := s.client.Get(ctx, g.sb.ID)
			if err != nil {
				t.Fatal(err)
			}
			s.pause(ctx, g.sb.ID)
			there.same(g.first, there.ask(ctx))
			s.pause(ctx, g.sb.ID)
			s.connect(ctx, g.sb.ID)
			after, err := s.client.Get(ctx, g.sb.ID)
			if err != nil || after.Generation != before.Generation+2 {
				t.Errorf("after two wakes the generation is %d, and was %d: %v", after.Generation, before.Generation, err)
			}
			if got, want := eventsOf(ctx, t, s.client, g.sb.ID), eventsOf(ctx, t, all[j].client, g.sb.ID); !slices.Equal(got, want) {
				t.Errorf("events are %v, and %v at the owner", got, want)
			}
		}
	}
	wakeOnce(ctx, t, all, guests[0])
	shareThings(ctx, t, all)
	shareWebhook(ctx, t, all)

	// While a server is away, what it has is seen, and not reached.
	far := guests[2].through(ctx, all[0])
	unwanted, err := all[2].client.Create(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	all[0].pause(ctx, unwanted.ID)
	if err := all[2].stop(); err != nil {
		t.Fatal(err)
	}
	list, err := all[0].client.List(ctx, client.ListOptions{})
	if err != nil || !slices.ContainsFunc(list, func(info client.Info) bool { return info.ID == guests[2].sb.ID }) {
		t.Errorf("the sandboxes of a server that is away are not listed: %v, %v", list, err)
	}
	warned := all[0].log.count("level=WARN")
	wantCode(t, all[0].client.SetTimeout(ctx, guests[2].sb.ID, time.Hour), "a change while the server is away", "server_unreachable")
	if got, err := far.report(ctx); err == nil {
		t.Errorf("a server that is away answers: %+v", got)
	}
	eventually(t, 10*time.Second, "two requests that another server did not get are two warnings", func() error {
		if n := all[0].log.count("level=WARN") - warned; n != 2 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	eventually(t, 40*time.Second, "it is told what is stored, once the lease is over", func() error {
		away, err := all[1].client.Get(ctx, guests[2].sb.ID)
		if err == nil && away.State != client.Running {
			t.Errorf("while its server is away it is %s", away.State)
		}
		return err
	})
	if x, err := all[1].client.Explain(ctx, guests[2].sb.ID); err != nil || !strings.Contains(x.Next.Text, "is gone, and nothing is done with it until that is back") || len(x.Transitions) == 0 {
		t.Errorf("explained while its server is away: %+v, %v", x, err)
	}
	eventually(t, 10*time.Second, "it is killed, once the server that is asked knows too that the other is away", func() error {
		return all[0].client.Kill(ctx, unwanted.ID)
	})
	if _, err := all[1].client.Get(ctx, unwanted.ID); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a sandbox was killed whose server is away: %v", err)
	}
	near := &guest{all[0], guests[1].through(ctx, all[0]).sb, guests[1].first}
	near.same(near.first, near.ask(ctx))
	all[2].args = append(all[2].args, "--max-running", "1")
	all[2].start()
	if _, err := all[2].client.Get(ctx, unwanted.ID); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("the server that is back has a sandbox that was killed meanwhile: %v", err)
	}
	far.same(far.first, far.ask(ctx))
	goElsewhere(ctx, t, all[2])

	for i, g := range guests { // each by another
		all[(i+1)%len(all)].kill(ctx, t, g.sb.ID)
		if _, err := all[(i+2)%len(all)].client.Get(ctx, g.sb.ID); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("sandbox %d was killed: %v", i, err)
		}
	}
}

// goElsewhere has sandboxes created through a server that has no room for them.
func goElsewhere(ctx context.Context, t *testing.T, full *server) {
	t.Helper()
	servers, err := client.Servers(ctx, full.client)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		options := client.CreateOptions{Timeout: time.Hour, IdempotencyKey: fmt.Sprintf("elsewhere-%d", n)}
		made, err := full.client.Create(ctx, options)
		if err != nil {
			t.Fatalf("create through a server that is full: %v", err)
		}
		if again, err := full.client.Create(ctx, options); err != nil || again.ID != made.ID {
			t.Errorf("the create again: %v, %v, want %s", again, err, made.ID)
		}
		info, err := full.client.Get(ctx, made.ID)
		if err != nil || !slices.ContainsFunc(servers, func(srv client.Server) bool { return srv.ID == info.Server && !srv.Self && srv.Room != nil }) {
			t.Errorf("it is %+v of the servers %+v, %v", info, servers, err)
		}
		full.kill(ctx, t, made.ID)
	}
}

// wakeOnce has many requests come to a sleeper through all servers at once.
func wakeOnce(ctx context.Context, t *testing.T, all []*server, g *guest) {
	t.Helper()
	const each = 10
	g.s.pause(ctx, g.sb.ID)
	before, err := g.s.client.Get(ctx, g.sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for _, s := range all {
		there := g.through(ctx, s)
		for range each {
			work.Go(func() {
				if r, err := there.report(ctx); err != nil || r.PID != g.first.PID {
					t.Errorf("through %s: %+v, %v", s.addr, r, err)
				}
			})
		}
	}
	work.Wait()
	after, err := g.s.client.Get(ctx, g.sb.ID)
	if err != nil || after.Generation != before.Generation+1 {
		t.Errorf("the generation went from %d to %d, want one wake: %v", before.Generation, after.Generation, err)
	}
}

// shareThings uses names, keys, snapshots, volumes and templates of one server through another.
func shareThings(ctx context.Context, t *testing.T, all []*server) {
	t.Helper()
	a, b := all[0], all[1]
	named, err := a.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Name: "shared", IdempotencyKey: "once"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Name: "shared"})
	wantCode(t, err, "a name that a sandbox of another server has", "name_taken")
	again, err := b.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Name: "shared", IdempotencyKey: "once"})
	if err != nil || again.ID != named.ID {
		t.Errorf("a create repeated at another server: %v, %v, want %s", again, err, named.ID)
	}

	key, err := a.client.CreateKey(ctx, client.KeyOptions{Name: "new", Role: client.RoleFull})
	if err != nil {
		t.Fatal(err)
	}
	withKey := http.Header{"X-Api-Key": {key.Text}}
	if got, err := b.raw(ctx, http.MethodGet, "/v1/sandboxes", withKey, nil); err != nil || got.status != http.StatusOK {
		t.Errorf("a key just made at another server: %d %s, %v", got.status, got.body, err)
	}
	if err := a.client.RevokeKey(ctx, key.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the key is refused", func() error {
		if got, err := b.raw(ctx, http.MethodGet, "/v1/sandboxes", withKey, nil); err != nil || got.status != http.StatusUnauthorized {
			return fmt.Errorf("%d, %v", got.status, err)
		}
		return nil
	})

	// A sandbox starts where its snapshot and its volumes are, whoever is asked.
	if err := named.WriteFile(ctx, "kept", strings.NewReader("of a")); err != nil {
		t.Fatal(err)
	}
	snap, err := client.NewSnapshots(b.client).Create(ctx, named.ID, client.SnapshotOptions{Name: "shared-snapshot"})
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{snap.ID, "shared-snapshot"} {
		from, err := b.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Snapshot: ref})
		if err != nil {
			t.Fatalf("create from %s at another server: %v", ref, err)
		}
		if out, text := run(ctx, t, from, "cat", "kept"); out.Code != 0 || text != "of a" {
			t.Errorf("a sandbox of %s: %+v %q", ref, out, text)
		}
	}
	volume, err := a.client.CreateVolume(ctx, "of-a")
	if err != nil {
		t.Fatal(err)
	}
	mounted, err := b.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Volumes: map[string]string{"/mnt/data": "of-a"}})
	if err != nil {
		t.Fatalf("create with a volume at another server: %v", err)
	}
	b.kill(ctx, t, mounted.ID)
	if _, err := client.NewTemplates(a.client).Load(ctx, savedImage(t, "only-of-a", v1.Config{}, imageFile{name: "file", data: "of the image"}), "", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "a template of another server is found", func() error {
		sb, err := b.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Template: "only-of-a"})
		if err == nil {
			b.kill(ctx, t, sb.ID)
		}
		return err
	})
	eventually(t, 10*time.Second, "the volume is free", func() error { return b.client.DeleteVolume(ctx, volume.ID) })
}

// shareWebhook asks each server how a webhook does, whichever delivers.
func shareWebhook(ctx context.Context, t *testing.T, all []*server) {
	t.Helper()
	var takes atomic.Bool
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !takes.Load() {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer receiver.Close()
	var made struct{ ID string }
	all[0].call(ctx, http.MethodPost, "/events/webhooks", fmt.Sprintf(`{"name": "n", "url": %q, "signatureSecret": "s", "events": ["sandbox.lifecycle.created"]}`, receiver.URL), &made)
	at := "/events/webhooks/" + made.ID
	sb, err := all[0].client.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	all[0].kill(ctx, t, sb.ID)
	type stats struct {
		Delivered           int
		ConsecutiveFailures int
		CaughtUp            bool
	}
	told := func(delivered, failures int, last bool) {
		t.Helper()
		for i, s := range all {
			eventually(t, 30*time.Second, fmt.Sprintf("server %d knows how the webhook does", i), func() error {
				var got stats
				var tries []struct{ Success bool }
				s.call(ctx, http.MethodGet, at+"/stats", "", &got)
				s.call(ctx, http.MethodGet, at+"/deliveries", "", &tries)
				if got.Delivered != delivered || got.ConsecutiveFailures < failures || got.CaughtUp != last || len(tries) == 0 || tries[0].Success != last {
					return fmt.Errorf("it says %+v, and %+v of the deliveries", got, tries)
				}
				return nil
			})
		}
	}
	told(0, 1, false)
	takes.Store(true)
	all[2].call(ctx, http.MethodPatch, at, `{}`, nil)
	told(1, 0, true)
	all[1].call(ctx, http.MethodDelete, at, "", nil)
}

// TestJoining: a server joins others only where all can reach each other, and brings no
// records along.
func TestJoining(t *testing.T) {
	t.Parallel()
	url := pgtest.Start(t).NewDatabase(t)
	first := newServer(t, stateDir(t))
	first.store = url
	t.Cleanup(first.cleanUp)
	first.start()

	second := newServer(t, stateDir(t))
	second.store = url
	refused := func(what string) {
		t.Helper()
		cmd, log := second.command(), &logBuffer{}
		cmd.Stdout, cmd.Stderr = log, log
		code, said := runToEnd(t, cmd, log)
		checkRefusal(t, code, said, what)
	}
	refused("give this server --peer-listen")
	second.args = []string{"--peer-listen", freeAddress(t)}
	refused("start that one again with --peer-listen")
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	first.args = []string{"--peer-listen", freeAddress(t)}
	first.start()
	t.Cleanup(second.cleanUp)
	second.start()

	third := newServer(t, stateDir(t))
	third.store = ""
	third.start()
	if err := third.stop(); err != nil {
		t.Fatal(err)
	}
	third.store, third.args = url, []string{"--peer-listen", freeAddress(t)}
	cmd, log := third.command(), &logBuffer{}
	cmd.Stdout, cmd.Stderr = log, log
	code, said := runToEnd(t, cmd, log)
	checkRefusal(t, code, said, "has records of its own")

	all, err := client.Servers(t.Context(), second.client)
	if err != nil || len(all) != 2 || !all[0].Alive || !all[1].Alive || all[0].Self == all[1].Self {
		t.Errorf("servers are %+v, %v", all, err)
	}
}
