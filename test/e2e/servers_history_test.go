package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/lifecycle/history"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/lease"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var fleetRounds = flag.Int("servers.rounds", testmode.Choose(3, 24), "how often something befalls the servers of TestHistoriesOfThreeServers")

// Of TestHistoriesOfThreeServers.
const (
	fleetScenes    = 4 // sandboxes in each round
	fleetThinkMost = 800 * time.Millisecond
	quiet          = 2 * time.Second // before something befalls a server
	keptWithin     = time.Minute     // until what a pause has promised is seen
	healWithin     = time.Minute     // until all servers answer again
	pastLease      = 3 * time.Second // after the end of a lease everybody knows of it
)

// TestHistoriesOfThreeServers has 16 clients use sandboxes of three servers through any of
// them, while one server at a time is killed, stands still, is cut off or is stopped, the
// object storage is away, the database fails over, a disk is slow, or sandboxes move. What they saw of each sandbox is linearizable:
// what was counted is forgotten only where the log says runtime_lost, and as far as the last
// checkpoint; no generation answers after the next one has; what a pause has promised to be
// in object storage is there. In the end all servers tell the same of each, and nothing of
// what was killed is left.
func TestHistoriesOfThreeServers(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute+time.Duration(*fleetRounds)*3*time.Minute)
	t.Logf("replay with DROWSE_TEST_SEED=%d -servers.rounds %d", testmode.Seed(), *fleetRounds)
	f := startFleet(t)
	for n := 1; n <= *fleetRounds && !t.Failed(); n++ {
		f.round(ctx, n)
	}
	t.Logf("in all: %v", f.seen)
	f.nothingLeft()
	must := []string{
		"create: ok", "access: ok", "count: ok", "pause: ok", "connect: ok", "set timeout: ok", "read: ok", "kill: ok",
		"paused by call", "resumed by access",
	}
	if *fleetRounds > len(befalls) { // these need luck
		must = append(must, "moved by recovery", promiseKept)
	}
	for _, k := range must {
		if f.seen[k] == 0 && !t.Failed() {
			t.Errorf("no %s in any round", k)
		}
	}
}

const promiseKept = "promises of a copy looked for"

// fleet is three servers of one database and one object storage.
type fleet struct {
	t       *testing.T
	rng     *rand.Rand
	servers []*server
	members []*member
	// postgres are the primary, and its stand-by if there is one.
	postgres []*pgtest.Server
	blobs    *blobstest.Server
	ends     []string // what befalls the servers, by rounds; all of it before any of it again
	ids      []string // of all sandboxes
	seen     map[string]int
}

// member is what a server needs of others.
type member struct {
	*server
	dbs  []*pgtest.Proxy // of all hosts of the store's URL
	peer net.IP          // where other servers reach it
	id   string

	mu         sync.Mutex
	cutOff, ok int64 // when it was cut off last, and when all was well again; 0 for never
}

// uncertain reports whether a server was cut off since an instant: it tells then what it knew
// last.
func (f *fleet) uncertain(via int, since int64) bool {
	m := f.members[via]
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cutOff != 0 && (m.ok < m.cutOff || since < m.ok)
}

func startFleet(t *testing.T) *fleet {
	pg := pgtest.Start(t)
	url := pg.NewDatabase(t)
	f := &fleet{t: t, rng: testmode.Rand(0), postgres: []*pgtest.Server{pg}, blobs: blobstest.NewGateway(t), seen: map[string]int{}}
	for len(f.ends) < *fleetRounds {
		names := slices.Sorted(maps.Keys(befalls))
		f.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		f.ends = append(f.ends, names...)
	}
	f.ends = f.ends[:*fleetRounds]
	t.Logf("rounds: %v", f.ends)
	if slices.Contains(f.ends, failsOver) {
		f.postgres = append(f.postgres, pg.StandBy(t))
	}
	for i := range 3 {
		dir := ""
		if slices.Contains(f.ends, slowDisk) {
			dir = smallDisk(t, 2048)
		} else {
			dir = stateDir(t)
		}
		m := &member{server: newServer(t, dir), peer: net.IPv4(127, 0, 1, byte(i+1))}
		for _, pg := range f.postgres {
			m.dbs = append(m.dbs, pg.Proxy(t))
		}
		_, port, err := net.SplitHostPort(freeAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		m.store, m.env = pgtest.URLs(url, m.dbs...), f.blobs.Env()
		m.args = []string{"--peer-listen", net.JoinHostPort(m.peer.String(), port), "--blobs", f.blobs.URL(), "--durability", "replicated", "--on-shutdown", "pause"}
		t.Cleanup(m.cleanUp)
		m.start()
		m.id = serverOf(t, m.server)
		f.servers, f.members = append(f.servers, m.server), append(f.members, m)
	}
	return f
}

// befalls are what may befall the servers, by name. Each returns when all is well again.
var befalls = map[string]func(f *fleet, ctx context.Context, r *round){
	"kill":    (*fleet).kill,
	"stop":    (*fleet).standStill,
	"cut":     (*fleet).cut,
	"storage": (*fleet).noStorage,
	"drain":   (*fleet).drain,
	"move":    (*fleet).move,
	failsOver: (*fleet).failOver,
	slowDisk:  (*fleet).slowDisk,
}

// Rounds in which no server goes away.
const (
	failsOver = "failover"
	slowDisk  = "slow disk"
)

// round is what becomes of some sandboxes while something befalls the servers.
type round struct {
	scenes []*fleetScene
	things []*thing
	rng    *rand.Rand
}

// fleetScene is a scene that can be left alone.
type fleetScene struct {
	scene
	alone sync.RWMutex // held for reading by those who use it
}

// thing is a sandbox that clients create again and again under one key.
type thing struct {
	name string
	mu   sync.Mutex
	ids  map[string]bool
}

func (f *fleet) round(ctx context.Context, n int) {
	name := f.ends[n-1]
	r := &round{rng: testmode.Rand(uint64(n) << 32)}
	for range fleetScenes {
		set := lifecycle.Settings{Timeout: historyTimeout, OnTimeout: lifecycle.Pause, AutoResume: r.rng.IntN(4) > 0}
		sc := &fleetScene{scene: scene{t: f.t, servers: f.servers, uncertain: f.uncertain, History: history.History{Settings: set, Servers: true}}}
		(&observer{sc: &sc.scene, n: 1, rng: r.rng}).create(ctx)
		r.scenes, f.ids = append(r.scenes, sc), append(f.ids, sc.id())
	}
	for i := range 2 {
		r.things = append(r.things, &thing{name: fmt.Sprintf("thing-%d-%d", n, i), ids: map[string]bool{}})
	}
	began := time.Now()
	var stop atomic.Bool
	var clients sync.WaitGroup
	for c := range historyClients {
		clients.Go(func() {
			rng := testmode.Rand(uint64(n)<<32 + uint64(c) + 1)
			for !stop.Load() {
				time.Sleep(testmode.N(rng, fleetThinkMost))
				if rng.IntN(50) == 0 {
					f.createAgain(ctx, r.things[rng.IntN(len(r.things))], f.servers[rng.IntN(len(f.servers))])
					continue
				}
				if sc := r.scenes[rng.IntN(len(r.scenes))]; sc.alone.TryRLock() {
					(&observer{sc: &sc.scene, n: c + 1, rng: rng}).once(ctx)
					sc.alone.RUnlock()
				}
			}
		})
	}
	defer func() { // also where the test ends here
		stop.Store(true)
		clients.Wait()
	}()
	time.Sleep(quiet)
	f.t.Logf("round %d: %s", n, name)
	befalls[name](f, ctx, r)
	f.healed(ctx)
	for _, m := range f.members {
		m.mu.Lock()
		m.ok = stamp()
		m.mu.Unlock()
	}
	healed := since(began)
	time.Sleep(quiet)
	stop.Store(true)
	clients.Wait()
	asked := since(began)
	for _, sc := range r.scenes {
		f.check(ctx, n, name, &sc.scene, r.rng)
		lost := slices.ContainsFunc(sc.Ops, func(op history.Op) bool { return op.Kind == history.Kind(lifecycle.EntryRuntimeLost) })
		if lost && (name == failsOver || name == slowDisk) {
			f.t.Errorf("seed %d, round %d (%s): sandbox %s was lost, and its server was never away", testmode.Seed(), n, name, sc.id())
		}
	}
	for _, x := range r.things {
		f.one(ctx, x)
	}
	f.t.Logf("round %d: %s, healed after %s, all answered after %s, checked after %s", n, name, healed, asked, since(began))
}

// createAgain creates a sandbox under a key that others use too.
func (f *fleet) createAgain(ctx context.Context, x *thing, s *server) {
	ctx, cancel := context.WithTimeout(ctx, historyPatience)
	defer cancel()
	sb, err := s.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Name: x.name, IdempotencyKey: x.name})
	switch {
	case err == nil:
		x.mu.Lock()
		defer x.mu.Unlock()
		x.ids[sb.ID] = true
	case outcomeOf(ofServers(err)) != history.Unknown:
		f.t.Errorf("create %s through %s: %v", x.name, s.addr, err)
	}
}

// one holds that there is one sandbox under a key, for all servers, and ends it.
func (f *fleet) one(ctx context.Context, x *thing) {
	for range 2 {
		for _, s := range f.servers {
			f.createAgain(ctx, x, s)
		}
	}
	if len(x.ids) != 1 {
		f.t.Errorf("under the key and name %s are the sandboxes %v", x.name, x.ids)
	}
	for id := range x.ids {
		f.ids = append(f.ids, id)
		for _, s := range f.servers {
			list, err := s.client.List(ctx, client.ListOptions{Name: x.name})
			if err != nil || len(list) != 1 || list[0].ID != id {
				f.t.Errorf("under the name %s server %s lists %v, %v; want %s", x.name, s.addr, list, err, id)
			}
		}
		f.servers[0].kill(ctx, f.t, id)
	}
}

// healed waits until all servers are alive for each other.
func (f *fleet) healed(ctx context.Context) {
	f.t.Helper()
	for _, s := range f.servers {
		eventually(f.t, healWithin, "all servers are alive", func() error {
			ctx, cancel := context.WithTimeout(ctx, historyPatience)
			defer cancel()
			all, err := client.Servers(ctx, s.client)
			if err == nil && slices.ContainsFunc(all, func(srv client.Server) bool { return !srv.Alive || srv.Leaving }) {
				err = fmt.Errorf("%s sees %+v", s.addr, all)
			}
			return err
		})
	}
}

// check holds that a sandbox is the same through all servers, that what was seen of it is in
// order, and that it has ended when it is killed.
func (f *fleet) check(ctx context.Context, n int, name string, sc *scene, rng *rand.Rand) {
	o := &observer{sc: sc, n: 1, rng: rng}
	for o.via = range f.servers {
		eventually(f.t, keptWithin, "the guest answers through each server", func() error {
			ctx, cancel := context.WithTimeout(ctx, historyPatience)
			defer cancel()
			if err := o.connect(ctx, time.Minute); err != nil && outcomeOf(err) != history.Ended {
				return err
			}
			return nil
		})
		o.exec(ctx, o.request)
	}
	f.agree(ctx, sc)
	o.choose()
	if err := o.kill(ctx); err != nil && outcomeOf(err) != history.Ended && !errors.Is(err, client.ErrNotFound) {
		f.t.Errorf("kill %s: %v", sc.id(), err)
	}
	for o.via = range f.servers {
		done := o.call(history.Read, 0)
		info, err := o.client().Find(ctx, sc.id())
		done(err, func(op *history.Op) { op.See(recordOf(info)) })
		if err != nil || info.Tombstone == nil {
			f.t.Errorf("%s was killed, and is %s through %s: %v", sc.id(), info.State, f.servers[o.via].addr, err)
		}
	}
	f.agree(ctx, sc)
	sc.addLog(ctx)
	for i := range sc.Ops {
		if op := &sc.Ops[i]; op.Outcome == history.Unknown { // it may have happened later
			op.Return = stamp()
		}
		f.seen[sc.Ops[i].Sort()]++
	}
	if err := sc.Check(historyCheck); err != nil {
		f.t.Errorf("seed %d, round %d (%s), sandbox %s: %v; see %s\n%s", testmode.Seed(), n, name, sc.id(), err, drawn(f.t, sc.History), sc.Text())
	}
}

// agree holds that all servers tell the same of a sandbox.
func (f *fleet) agree(ctx context.Context, sc *scene) {
	f.t.Helper()
	type told struct {
		server, state string
		generation    int64
		events        []string
	}
	eventually(f.t, keptWithin, "all servers tell the same", func() error {
		var all []string
		for _, s := range f.servers {
			info, err := s.client.Find(ctx, sc.id())
			if err != nil {
				return err
			}
			is := told{info.Server, string(info.State), info.Generation, nil}
			if info.Tombstone != nil { // it has no server any more for those who look
				is.server = ""
			}
			for _, e := range s.events(ctx, sc.id(), 0) {
				is.events = append(is.events, fmt.Sprintf("%d %s %d", e.ID, e.Type, e.Generation))
			}
			all = append(all, fmt.Sprintf("%+v", is))
		}
		for _, other := range all[1:] {
			if other != all[0] {
				return fmt.Errorf("of %s: %q", sc.id(), all)
			}
		}
		return nil
	})
}

// victim returns the server that something befalls, which has a sandbox if any has one, and
// the rest.
func (f *fleet) victim(ctx context.Context, r *round) (v *member, others []int) {
	i := r.rng.IntN(len(f.members))
	ctx, cancel := context.WithTimeout(ctx, historyPatience)
	defer cancel()
	for _, sc := range r.scenes {
		if info, err := f.servers[i].client.Get(ctx, sc.id()); err == nil {
			i = slices.IndexFunc(f.members, func(m *member) bool { return m.id == info.Server })
			break
		}
	}
	for j := range f.members {
		if j != i {
			others = append(others, j)
		}
	}
	return f.members[i], others
}

// outage is how long a server is away: shorter than its lease, longer, or until what it had
// running is lost.
func outage(r *round) time.Duration {
	switch n := r.rng.IntN(10); {
	case n < 4:
		return testmode.N(r.rng, lease.Life)
	case n < 9 || !testmode.All():
		return lease.Life + testmode.N(r.rng, 10*time.Second)
	default:
		return lease.Life + store.LostAfter + testmode.N(r.rng, 20*time.Second)
	}
}

// beyondLease is an outage for longer than the lease, in every second round of a release until
// others go on with what ran too.
func beyondLease(r *round) time.Duration {
	d := lease.Life + pastLease + testmode.N(r.rng, 5*time.Second)
	if testmode.All() && r.rng.IntN(2) == 0 {
		d += store.LostAfter + 10*time.Second
	}
	return d
}

// away lets time pass while a server is away. When its lease is over, others go on with what
// sleeps and has a copy.
func (f *fleet) away(ctx context.Context, r *round, v *member, others []int, within time.Duration) {
	if within < lease.Life+pastLease {
		time.Sleep(within)
		return
	}
	end := time.Now().Add(within)
	time.Sleep(lease.Life + pastLease)
	for _, sc := range r.scenes {
		f.kept(ctx, &sc.scene, v, others, r.rng)
	}
	time.Sleep(time.Until(end))
}

// kept holds that a sandbox whose pause was answered goes on elsewhere while its server is
// away.
func (f *fleet) kept(ctx context.Context, sc *scene, v *member, others []int, rng *rand.Rand) {
	o := &observer{sc: sc, n: historyClients + 1, rng: rng, via: others[rng.IntN(len(others))]}
	var info client.Info
	eventually(f.t, keptWithin, "it is told what is stored", func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, historyPatience)
		defer cancel()
		info, err = o.client().Find(ctx, sc.id())
		return err
	})
	sc.mu.Lock()
	promised := sc.promised
	sc.mu.Unlock()
	if info.State != client.Paused || info.Phase != "" || info.Server != v.id || info.Generation != promised {
		return
	}
	f.t.Logf("%s sleeps on a server that is away, as a pause has promised", sc.id())
	f.seen[promiseKept]++
	err := poll(keptWithin, func() error {
		ctx, cancel := context.WithTimeout(ctx, historyPatience)
		defer cancel()
		err := o.connect(ctx, time.Minute)
		if outcomeOf(err) == history.Ended {
			return nil
		}
		return err
	})
	if err != nil {
		f.t.Errorf("seed %d: a pause of %s in generation %d has promised a copy, and no server goes on with it: %v", testmode.Seed(), sc.id(), promised, err)
	}
}

// asleep pauses most of what a server has, which clients leave alone until awake is called:
// when something has befallen it, in the instant in which that was answered.
func (f *fleet) asleep(ctx context.Context, r *round, v *member, others []int) (awake func()) {
	ctx, cancel := context.WithTimeout(ctx, historyPatience)
	defer cancel()
	var left []*fleetScene
	for _, sc := range r.scenes {
		if r.rng.IntN(4) == 0 {
			continue
		}
		sc.alone.Lock()
		left = append(left, sc)
		o := &observer{sc: &sc.scene, n: historyClients + 1, rng: r.rng, via: others[r.rng.IntN(len(others))]}
		if info, err := o.client().Find(ctx, sc.id()); err == nil && info.Server == v.id {
			_, _ = o.pause(ctx) // noted
		}
	}
	return func() {
		for _, sc := range left {
			sc.alone.Unlock()
		}
	}
}

// kill kills a server.
func (f *fleet) kill(ctx context.Context, r *round) {
	v, others := f.victim(ctx, r)
	awake := f.asleep(ctx, r, v, others)
	v.crash()
	awake()
	f.away(ctx, r, v, others, outage(r))
	v.start()
}

// standStill has the process of a server stop for longer than its lease.
func (f *fleet) standStill(ctx context.Context, r *round) {
	v, others := f.victim(ctx, r)
	awake := f.asleep(ctx, r, v, others)
	f.signal(v, syscall.SIGSTOP)
	awake()
	f.away(ctx, r, v, others, beyondLease(r))
	f.signal(v, syscall.SIGCONT)
}

func (f *fleet) signal(v *member, sig syscall.Signal) {
	f.t.Helper()
	if err := v.cmd.Process.Signal(sig); err != nil {
		f.t.Fatal(err)
	}
}

// cut cuts a server off from the database, and other servers from it.
func (f *fleet) cut(ctx context.Context, r *round) {
	v, others := f.victim(ctx, r)
	awake := f.asleep(ctx, r, v, others)
	hole := &netlink.Route{Type: unix.RTN_BLACKHOLE, Table: unix.RT_TABLE_LOCAL, Dst: netlink.NewIPNet(v.peer)}
	if err := netlink.RouteAdd(hole); err != nil {
		f.t.Fatalf("cut off %s: %v", v.peer, err)
	}
	f.t.Cleanup(func() { _ = netlink.RouteDel(hole) }) // unless that is done already
	v.mu.Lock()
	v.cutOff = stamp()
	v.mu.Unlock()
	alsoEnds := r.rng.IntN(2) == 0
	for _, db := range v.dbs {
		db.Stall()
		if alsoEnds {
			db.Cut()
		}
	}
	awake()
	f.away(ctx, r, v, others, beyondLease(r))
	if err := netlink.RouteDel(hole); err != nil {
		f.t.Errorf("connect %s again: %v", v.peer, err)
	}
	for _, db := range v.dbs {
		db.Release()
	}
}

// noStorage takes the object storage away for a while.
func (f *fleet) noStorage(_ context.Context, r *round) {
	if r.rng.IntN(2) == 0 {
		f.blobs.Hang(f.t)
		defer f.blobs.Continue(f.t)
	} else {
		f.blobs.Kill()
		defer f.blobs.Start(f.t)
	}
	time.Sleep(testmode.N(r.rng, 10*time.Second))
}

// drain stops a server in order.
func (f *fleet) drain(ctx context.Context, r *round) {
	v, _ := f.victim(ctx, r)
	if err := v.stop(); err != nil {
		f.t.Errorf("the server that stops ended with %v", err)
	}
	time.Sleep(testmode.N(r.rng, 10*time.Second))
	v.start()
}

// move moves sandboxes, some of them twice at once.
func (f *fleet) move(ctx context.Context, r *round) {
	var moves sync.WaitGroup
	for i := range 2 * len(r.scenes) {
		rng := rand.New(rand.NewPCG(r.rng.Uint64(), 0))
		moves.Go(func() {
			o := &observer{sc: &r.scenes[i%len(r.scenes)].scene, n: historyClients + 1 + i, rng: rng}
			for range 3 {
				time.Sleep(testmode.N(rng, 3*time.Second))
				o.move(ctx, f.members[rng.IntN(len(f.members))].id)
			}
		})
	}
	moves.Wait()
}

func (o *observer) move(ctx context.Context, to string) {
	ctx, cancel := context.WithTimeout(ctx, historyPatience)
	defer cancel()
	o.choose()
	done := o.call(history.Move, 0)
	_, err := client.Move(ctx, o.client(), o.sc.id(), to)
	done(err, nil)
}

// mayFail are the codes of what fails because servers come and go.
var mayFail = []string{
	"server_unreachable", "store_unavailable", "lease_lapsed", "replica_pending", "blobs_unavailable", "fenced", "record_changed",
	"on_another_server", "not_replicated", "overtaken", "move_conflict", "canceled", "resume_failed", "pause_failed", "wait_timeout",
}

// ofServers returns the error of a call as history has it: of what fails because servers come
// and go nobody knows whether it has happened.
func ofServers(err error) error {
	e, refused := errors.AsType[*client.Error](err)
	if refused && outcomeOf(err) == history.Failed && (slices.Contains(mayFail, e.Code) || e.Code == "sandbox_create_failed" && strings.Contains(e.Message, "its database")) {
		return fmt.Errorf("%s: %v", e.Code, err) // no answer
	}
	return err
}

// nothingLeft holds that no server has anything of what has ended. What a server that was away
// had, it removes some time after.
func (f *fleet) nothingLeft() {
	for _, s := range f.servers {
		for _, id := range f.ids {
			eventually(f.t, sweep.Grace+goneWithin, "nothing is left on "+filepath.Base(s.dir()), func() error { return nothingOf(s, id) })
		}
	}
}
