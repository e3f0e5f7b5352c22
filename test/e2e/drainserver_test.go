package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// Of TestDrainUnderLoad.
const (
	loadClients  = 20
	loadEach     = 4                      // sandboxes of each server, of which half sleep
	loadLongest  = 300 * time.Millisecond // of a request; the server that stops waits longer for it
	loadBreak    = 20 * time.Millisecond  // of a client between two requests
	askedBefore  = 60                     // requests before the server stops
	askedAfter   = 60                     // and after another has all its sandboxes
	takenWithin  = 60 * time.Second
	settleWithin = 30 * time.Second
)

// TestDrainUnderLoad stops one of three servers while clients ask for all sandboxes through
// the other two. No request fails: those for the server that stops wait until another has
// the sandbox. Each is served once, by the memory that the sandbox had, and each sandbox
// moves once and wakes once for it.
func TestDrainUnderLoad(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	all := startCluster(t, 3, "--blobs", t.TempDir(), "--durability", "replicated", "--on-shutdown", "pause")
	leaveUnderLoad(ctx, t, all, func(l *demand) {
		if err := all[0].cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		l.drains.Store(true)
		select {
		case err := <-all[0].exited:
			all[0].cmd = nil
			if err != nil {
				t.Errorf("the server that stops ended with %v", err)
			}
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
	})
	all[1].wantServers(ctx, 2, 0, 1)
}

// TestDrainServer has one of three servers give away all that it has, while it lives, and clients
// ask for all sandboxes, and make some of a snapshot and a template that go too. No request fails. What cannot go
// stays, and is told.
func TestDrainServer(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	all := startCluster(t, 3, "--blobs", t.TempDir())
	a, b := all[0], all[1]
	here := serverOf(t, a)
	options := client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)}
	if _, err := a.client.CreateVolume(ctx, "of-a"); err != nil {
		t.Fatal(err)
	}
	source, stays := a.create(ctx, options), a.create(ctx, client.CreateOptions{Timeout: time.Hour, Volumes: map[string]string{"/mnt/data": "of-a"}})
	if err := source.WriteFile(ctx, "kept", strings.NewReader("of a")); err != nil {
		t.Fatal(err)
	}
	snap, err := client.NewSnapshots(a.client).Create(ctx, source.ID, client.SnapshotOptions{Name: "of-a"})
	if err != nil {
		t.Fatal(err)
	}
	a.kill(ctx, t, source.ID)
	if r := a.buildTemplate(ctx, "app", "base", runs("mkdir -p /home/user && echo -n of a >/home/user/kept")); r.Status != "ready" {
		t.Fatalf("%+v", r)
	}
	from := []client.CreateOptions{{Timeout: time.Hour, Snapshot: snap.ID}, {Timeout: time.Hour, Template: "app"}}
	is := func(s *server) (client.Server, error) {
		servers, err := client.Servers(ctx, s.client)
		i := slices.IndexFunc(servers, func(srv client.Server) bool { return srv.ID == here })
		if err != nil || i < 0 {
			return client.Server{}, fmt.Errorf("the server is not listed: %w", err)
		}
		return servers[i], nil
	}
	slow := ""
	leaveUnderLoad(ctx, t, all, func(l *demand) {
		l.drains.Store(true)
		slow = a.requestBuild(ctx, "slow")
		a.startBuild(ctx, "slow", slow, "base", runs("sleep 6"))
		if srv, err := client.Drain(ctx, b.client, here, true); err != nil || !srv.Draining {
			t.Fatalf("drained is %+v, %v", srv, err)
		}
		b.wantServers(ctx, 2, 1, 0)
		for n, done := 0, false; !done && ctx.Err() == nil; n++ {
			of := from[n%len(from)]
			sb, err := all[n%len(all)].client.Create(ctx, of)
			if err != nil {
				t.Fatalf("create %d from %+v of a server that is drained: %v", n, of, err)
			}
			if text := readSome(ctx, t, sb, "kept"); text != "of a" { // not by a command, which a move would break off
				t.Errorf("a sandbox of %+v: %q", of, text)
			}
			b.kill(ctx, t, sb.ID)
			srv, err := is(b)
			if err != nil {
				t.Fatal(err)
			}
			done = srv.Drain != nil && srv.Drain.Left == 1 && srv.Drain.Stay == 1
		}
	})
	if r := b.awaitBuild(ctx, "slow", slow); r.Status != "ready" {
		t.Errorf("a build that ran on the server that was drained: %+v", r)
	}
	if srv, err := is(b); err != nil || srv.Drain == nil || !strings.Contains(srv.Drain.Cause, stays.ID) || !strings.Contains(srv.Drain.Cause, "volumes") {
		t.Errorf("what stays is told by %+v, %v", srv.Drain, err)
	}
	if info, err := b.client.Get(ctx, stays.ID); err != nil || info.Server != here || info.State != client.Running {
		t.Errorf("what has a volume is %+v, %v", info, err)
	}
	made := a.create(ctx, options)
	_, err = client.Move(ctx, b.client, made.ID, here)
	wantCode(t, err, "a move to a server that is drained", "server_drained")
	if info, err := b.client.Get(ctx, made.ID); err != nil || info.Server == here {
		t.Errorf("a sandbox that is made through a server that is drained is %+v, %v", info, err)
	}
	a.crash()
	a.start() // and is drained still
	again, err := a.client.Create(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, settleWithin, "what is made after a start goes too", func() error {
		if info, err := b.client.Get(ctx, again.ID); err != nil || info.Server == here || info.State != client.Running {
			return fmt.Errorf("it is %+v, %w", info, err)
		}
		return nil
	})
	if srv, err := client.Drain(ctx, b.client, here, false); err != nil || srv.Draining {
		t.Fatalf("drained no more is %+v, %v", srv, err)
	}
	if got, err := client.Move(ctx, b.client, made.ID, here); err != nil || got.Server != here {
		t.Errorf("a move back is %+v, %v", got, err)
	}
	for _, sb := range []*client.Sandbox{made, again, stays} {
		b.kill(ctx, t, sb.ID)
	}
}

// wantServers waits until the metrics of one server tell of so many of each kind.
func (s *server) wantServers(ctx context.Context, alive, draining, gone float64) {
	s.t.Helper()
	eventually(s.t, settleWithin, "the metrics tell of the servers", func() error {
		for state, want := range map[string]float64{"alive": alive, "draining": draining, "leaving": 0, "gone": gone} {
			if got, err := s.ownMetric(ctx, fmt.Sprintf("drowse_servers{state=%q}", state)); got != want || err != nil {
				return fmt.Errorf("%v servers are %s, want %v, %w", got, state, want, err)
			}
		}
		age, err := s.ownMetric(ctx, "drowse_lease_age_seconds")
		if age < 0 {
			return fmt.Errorf("the lease is %v s old", age)
		}
		return err
	})
}

// leaveUnderLoad has clients ask for the sandboxes of three servers through two, while the first
// gives away what it has.
func leaveUnderLoad(ctx context.Context, t *testing.T, all []*server, leave func(*demand)) {
	t.Helper()
	l := &demand{all: all, servers: all[1:]}
	for i, s := range all {
		for n := range loadEach {
			g := s.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)})
			d := &loaded{guest: g, leaves: i == 0, sleeps: n%2 == 1}
			for _, via := range l.servers {
				d.via = append(d.via, g.through(ctx, via))
			}
			if d.sleeps {
				s.pause(ctx, g.sb.ID)
			}
			l.guests = append(l.guests, d)
		}
	}
	for _, d := range l.guests {
		info, err := l.servers[0].client.Get(ctx, d.sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		d.before, d.last = info, l.servers[0].lastEvent(ctx, d.sb.ID)
	}

	stop := make(chan struct{})
	var asking sync.WaitGroup
	for n := range uint64(loadClients) {
		asking.Go(func() { l.keepAsking(ctx, t, testmode.Rand(n), stop) })
	}
	l.await(ctx, t, askedBefore)
	began := time.Now()
	leave(l)
	left := since(began)
	eventually(t, takenWithin, "all sandboxes run on the servers that are left", func() error { return l.moved(ctx, serverOf(t, all[0])) })
	taken := since(began)
	l.await(ctx, t, l.asked.Load()+askedAfter)
	close(stop)
	asking.Wait()
	t.Logf("%d requests, the slowest took %s; the server left after %s, and all ran elsewhere after %s",
		l.asked.Load(), time.Duration(l.slowest.Load()).Round(time.Millisecond), left, taken)

	for _, d := range l.guests {
		l.check(ctx, t, d)
	}
}

// demand is what clients ask for.
type demand struct {
	all     []*server
	servers []*server // that they ask
	guests  []*loaded
	drains  atomic.Bool  // the first server stops: what sleeps is asked for too
	asked   atomic.Int64 // how many requests were answered
	slowest atomic.Int64 // nanoseconds
}

// loaded is a guest that they ask for.
type loaded struct {
	*guest
	via    []*guest    // as it is seen through the servers that are asked
	leaves bool        // its server stops
	sleeps bool        // when that begins
	before client.Info // the sandbox before
	last   int64       // its last event before
	hits   atomic.Int64
	unsure sync.Map // numbers of requests that a server broke off whose lease had lapsed
}

// await waits until a number of requests has been answered.
func (l *demand) await(ctx context.Context, t *testing.T, n int64) {
	t.Helper()
	eventually(t, settleWithin, "requests are answered", func() error {
		if got := l.asked.Load(); got < n && ctx.Err() == nil {
			return fmt.Errorf("%d of %d", got, n)
		}
		return context.Cause(ctx)
	})
}

// keepAsking is one client.
func (l *demand) keepAsking(ctx context.Context, t *testing.T, rng *rand.Rand, stop <-chan struct{}) {
	for {
		if d := l.guests[rng.IntN(len(l.guests))]; !d.sleeps || l.drains.Load() {
			began := time.Now()
			what, err := l.ask(ctx, d, rng)
			took := time.Since(began)
			if err != nil && !l.lapsed(err) {
				t.Errorf("%s of %s, which sleeps: %t, leaves: %t, failed after %s: %v", what, d.sb.ID, d.sleeps, d.leaves, took, err)
			}
			for was := l.slowest.Load(); int64(took) > was && !l.slowest.CompareAndSwap(was, int64(took)); was = l.slowest.Load() {
			}
			l.asked.Add(1)
		}
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-time.After(testmode.N(rng, loadBreak)):
		}
	}
}

// lapsed reports whether a request failed since a machine that is too busy renews no lease in time: then
// its server has to break off what it serves, drained or not.
func (l *demand) lapsed(err error) bool {
	return err != nil && strings.Contains(err.Error(), "lease_lapsed") && slices.ContainsFunc(l.all, func(s *server) bool {
		for line := range strings.Lines(s.log.String()) {
			stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			at, bad := time.Parse(time.RFC3339Nano, stamp)
			if bad == nil && time.Since(at) < maxAnswer && strings.Contains(line, "lease could not be renewed") {
				return true
			}
		}
		return false
	})
}

// ask makes a request of one of several kinds.
func (l *demand) ask(ctx context.Context, d *loaded, rng *rand.Rand) (what string, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxAnswer)
	defer cancel()
	g := d.via[rng.IntN(len(d.via))]
	switch rng.IntN(8) {
	case 0:
		_, err = g.s.client.Get(ctx, d.sb.ID)
		return "a look through " + g.s.addr, err
	case 1:
		_, err = g.s.client.Connect(ctx, d.sb.ID, time.Hour)
		return "a connect through " + g.s.addr, err
	case 2:
		var r report
		if err = g.call(ctx, http.MethodGet, "/state", nil, &r); err == nil && (r.PID != d.first.PID || r.Born != d.first.Born || r.Counter < d.first.Counter) {
			err = fmt.Errorf("%+v is not what was %+v", r, d.first)
		}
		return "a look into the guest through " + g.s.addr, err
	default:
		var n int
		id, after := d.hits.Add(1), testmode.N(rng, loadLongest)
		err = g.call(ctx, http.MethodPost, fmt.Sprintf("/hit?id=%d&after=%s", id, after), nil, &n)
		if l.lapsed(err) {
			d.unsure.Store(id, nil)
		}
		return fmt.Sprintf("request %d of %s through %s", id, after, g.s.addr), err
	}
}

// served holds that a guest is the one it was, and has seen each request once.
func (d *loaded) served(ctx context.Context, t *testing.T) {
	t.Helper()
	g := d.via[0]
	g.same(d.first, g.ask(ctx))
	var hits map[string]int
	if err := g.call(ctx, http.MethodGet, "/hits", nil, &hits); err != nil {
		t.Fatal(err)
	}
	for id := int64(1); id <= d.hits.Load(); id++ {
		n := hits[fmt.Sprint(id)]
		if _, unsure := d.unsure.Load(id); n != 1 && (n != 0 || !unsure) {
			t.Errorf("request %d of %s was served %d times", id, d.sb.ID, n)
		}
	}
}

// moved returns an error unless all sandboxes run, none of them on a server.
func (l *demand) moved(ctx context.Context, from string) error {
	for _, d := range l.guests {
		info, err := l.servers[0].client.Get(ctx, d.sb.ID)
		if err != nil {
			return err
		}
		if info.State != client.Running || info.Server == from {
			return fmt.Errorf("%s is %s on %s", d.sb.ID, info.State, info.Server)
		}
	}
	return nil
}

// check holds that a guest is the one it was, that it has seen each request once, and that
// its sandbox woke as often as it had to.
func (l *demand) check(ctx context.Context, t *testing.T, d *loaded) {
	t.Helper()
	g := d.via[0]
	d.served(ctx, t)
	var want []string
	if d.leaves && !d.sleeps {
		want = append(want, "pausing", "paused")
	}
	if d.leaves {
		want = append(want, "moved")
	}
	if d.leaves || d.sleeps {
		want = append(want, "resuming", "resumed")
	}
	got := slices.DeleteFunc(g.s.eventTypes(ctx, d.sb.ID, d.last), func(e string) bool { return e == "timeout_set" }) // by each connect
	if d.leaves && d.sleeps && len(got) > len(want) {                                                                 // a request was there before it was known that the server stops
		want = append([]string{"resuming", "resumed", "pausing", "paused"}, want...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s, which slept: %t, left: %t, has the events %v, want %v", d.sb.ID, d.sleeps, d.leaves, got, want)
	}
	wakes := 0
	for _, e := range got {
		if e == "resumed" {
			wakes++
		}
	}
	if now, err := g.s.client.Get(ctx, d.sb.ID); err != nil || now.Generation != d.before.Generation+int64(wakes) || d.leaves == (now.Server == d.before.Server) {
		t.Errorf("%s was %+v and is %+v, %v", d.sb.ID, d.before, now, err)
	}
}

// askAgain is how long a client waits that is told to ask again in a moment.
const askAgain = 200 * time.Millisecond

var manySleepers = flag.Int("takeover.sandboxes", 300, "how many sandboxes TestManyTakenOver has")

// TestManyTakenOver kills one of three servers when all that they have sleeps, and has
// clients ask for all of it through the other two, again where they are told to. Each
// sandbox wakes once, with its memory, and each request is served once.
func TestManyTakenOver(t *testing.T) {
	if !testmode.All() {
		t.Skip("for a release")
	}
	const clients, requests = 20, 1000
	ctx := deadline(t, 15*time.Minute)
	all := startCluster(t, 3, "--blobs", t.TempDir(), "--durability", "replicated", "--wake-timeout", "5m")
	d := sleepersOf(ctx, t, all, all[1:], *manySleepers)
	for _, g := range d.guests {
		g.leaves = g.s == all[0]
	}
	all[0].crash()
	d.insist(ctx, t, clients, requests)
	all[0].start() // it removes what is there of sandboxes that it has no more, a minute after its start
	for _, g := range d.guests {
		if g.leaves {
			eventually(t, sweep.Grace+goneWithin, "the server that was killed has given it up", func() error { return nothingOf(all[0], g.sb.ID) })
		}
	}
}

// TestManyWoken has clients ask three servers, all of which live, for what sleeps on them,
// each request through any of the three. Each sandbox wakes once, with its memory, and each
// request is served once, at the first try.
func TestManyWoken(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, testmode.Choose(3*time.Minute, 15*time.Minute))
	all := startCluster(t, 3, "--wake-timeout", "5m")
	d := sleepersOf(ctx, t, all, all, testmode.Choose(30, 300))
	d.insist(ctx, t, 20, testmode.Choose(100, 1000))
}

// sleepersOf makes sleepers on all servers in turn, which clients ask some servers for.
func sleepersOf(ctx context.Context, t *testing.T, all, asked []*server, n int) *demand {
	t.Helper()
	began := time.Now()
	d := &demand{servers: asked, guests: make([]*loaded, n)}
	var making errgroup.Group
	making.SetLimit(6)
	for i := range d.guests {
		making.Go(func() error {
			g, err := all[i%len(all)].makeSleeper(ctx)
			if err == nil {
				d.guests[i] = &loaded{guest: g, sleeps: true}
			}
			return err
		})
	}
	if err := making.Wait(); err != nil || t.Failed() {
		t.Fatal("not all sandboxes could be made: ", err)
	}
	for _, g := range d.guests {
		info, err := asked[0].client.Get(ctx, g.sb.ID)
		if err != nil || info.State != client.Paused {
			t.Fatalf("%s is %s, %v", g.sb.ID, info.State, err)
		}
		g.before, g.last = info, asked[0].lastEvent(ctx, g.sb.ID)
		for _, via := range asked {
			sb, _, err := via.client.Open(ctx, g.sb.ID)
			if err != nil {
				t.Fatal(err)
			}
			g.via = append(g.via, &guest{via, sb, g.first})
		}
	}
	t.Logf("%d sandboxes made and asleep within %s", n, since(began))
	return d
}

// insist has clients make requests until each is answered, and holds that each was served
// once, and that each sandbox woke once.
func (d *demand) insist(ctx context.Context, t *testing.T, clients, requests int) {
	t.Helper()
	began := time.Now()
	var asking sync.WaitGroup
	var next, again atomic.Int64
	for range clients {
		asking.Go(func() {
			for n := int(next.Add(1)) - 1; n < requests && ctx.Err() == nil; n = int(next.Add(1)) - 1 {
				g := d.guests[n*len(d.guests)/requests] // several for one at a time, by several servers
				again.Add(g.insist(ctx, t, g.hits.Add(1)))
			}
		})
	}
	asking.Wait()
	t.Logf("%d requests answered within %s, %d of them sent again", requests, since(began), again.Load())
	for _, g := range d.guests {
		d.check(ctx, t, g)
	}
}

// makeSleeper makes a sandbox with a guest program, and pauses it.
func (s *server) makeSleeper(ctx context.Context) (*guest, error) {
	sb, err := s.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.ids = append(s.ids, sb.ID)
	s.mu.Unlock()
	g := s.startGuestIn(ctx, sb, "rest") // hundreds that count would take the whole machine
	return g, s.client.Pause(ctx, sb.ID)
}

// insist asks a guest until it answers that has been told to ask again, by one server and
// then by the other, and returns how often.
func (d *loaded) insist(ctx context.Context, t *testing.T, id int64) (again int64) {
	for ; ctx.Err() == nil; again++ {
		var n int
		err := d.via[int(again+id)%len(d.via)].call(ctx, http.MethodPost, fmt.Sprintf("/hit?id=%d", id), nil, &n)
		if err == nil {
			return again
		}
		if !strings.Contains(err.Error(), "server_unreachable") || !d.leaves {
			t.Errorf("request %d of %s, of a server that was killed: %t, failed: %v", id, d.sb.ID, d.leaves, err)
			return again
		}
		time.Sleep(askAgain)
	}
	return again
}
