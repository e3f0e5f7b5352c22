package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "the one seed to simulate, or the first of -sim.seeds; 0 for that of testmode")
	simSeeds = flag.Int("sim.seeds", 0, "how many seeds to simulate; 0 for as many as fit")
)

// raceEnabled is set where the race detector makes everything slow.
var raceEnabled bool

// seedRange returns the seeds to try: those asked for, or those of this run, and
// many where that does not take too long.
func seedRange(first uint64, count, few, many int) (uint64, int) {
	switch {
	case count != 0:
	case first != 0:
		count = 1
	case raceEnabled && !testmode.All():
		count = few / 10
	case testing.Short() || raceEnabled || !testmode.All():
		count = few
	default:
		count = many
	}
	if first == 0 {
		first = testmode.Seed()
	}
	return first, count
}

// TestSimulation runs clients against servers that crash, on a machine where
// everything that can fail does, in virtual time. A seed decides what clients
// do, what fails, and when; only the order of goroutines within one instant is
// the scheduler's.
//
// Two things are checked apart. Safety, at every commit and every move of the
// machine: nothing is ever wrong. Liveness, after the faults have stopped:
// everything gets where it should.
func TestSimulation(t *testing.T) {
	first, seeds := seedRange(*simSeed, *simSeeds, 100, 500)
	t.Logf("seeds %d to %d; replay one with -sim.seed N", first, first+uint64(seeds)-1)
	base, err := os.MkdirTemp("/dev/shm", "drowse-sim-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })

	var next atomic.Uint64
	var sum simTotals
	t.Run("seeds", func(t *testing.T) {
		for range min(seeds, 2*goruntime.GOMAXPROCS(0)) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < uint64(seeds) && !t.Failed(); n = next.Add(1) - 1 {
					simulate(t, base, first+n, seeds == 1, &sum)
				}
			})
		}
	})
	t.Log(sum.String())
}

// simTotals is what happened in all seeds together.
type simTotals struct {
	mu      sync.Mutex
	entries map[string]int
	calls   map[string]int
	crashes int
	commits int
}

func (s *simTotals) add(o *sim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries, s.calls = map[string]int{}, map[string]int{}
	}
	for k, n := range o.entries {
		s.entries[k] += n
	}
	for k, n := range o.calls {
		s.calls[k] += n
	}
	s.crashes += o.crashes
	s.commits += o.commits
}

func (s *simTotals) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d commits, %d crashes of the server\nlog entries:", s.commits, s.crashes)
	for _, k := range slices.Sorted(maps.Keys(s.entries)) {
		fmt.Fprintf(&b, " %s=%d", k, s.entries[k])
	}
	b.WriteString("\ncalls:")
	for _, k := range slices.Sorted(maps.Keys(s.calls)) {
		fmt.Fprintf(&b, " %s=%d", k, s.calls[k])
	}
	// What many seeds reach; TestPlantedBugs shows that it is enough.
	b.WriteString("\nnever seen:")
	for _, k := range []string{
		"created", "running", "pausing", "paused", "pause_failed", "pause_cancelled", "resuming", "resumed", "resume_failed",
		"timeout_set", "updated", "hold.opened", "hold.closed", "expiring", "runtime_lost",
		"terminated Killed", "terminated TimeoutExpired", "terminated IdleTimeout", "terminated MaxLifetimeExceeded",
		"terminated PausedExpired", "terminated CreateFailed", "terminated RuntimeExited", "terminated RuntimeLost",
	} {
		if s.entries[k] == 0 {
			fmt.Fprintf(&b, " %q", k)
		}
	}
	return b.String()
}

// simulate runs one seed.
func simulate(t *testing.T, base string, seed uint64, verbose bool, sum *simTotals) {
	var s *sim
	defer func() {
		if r := recover(); r != nil { // synctest's word for goroutines that wait for ever
			t.Errorf("seed %d: %v\n%s", seed, r, s.story())
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(base, strconv.FormatUint(seed, 10))
		s = newSim(t, dir, seed)
		s.run()
		_ = os.RemoveAll(dir)
		if verbose || len(s.wrong) > 0 {
			t.Log(s.story())
		}
		for _, w := range s.wrong {
			t.Errorf("seed %d: %s", seed, w)
		}
		sum.add(s)
	})
}

// sim is one simulated machine with its servers, clients and troubles.
type sim struct {
	*world
	t     *testing.T
	seed  uint64
	began time.Time
	plan  plan
	calm  atomic.Bool // the faults have stopped

	crashMu sync.Mutex
	crashAt []time.Time

	rollMu sync.Mutex
	rolls  map[string]uint64

	serverMu sync.Mutex
	current  *server
	up       chan struct{} // closed when current is there

	// Guarded by world.mu.
	boxes   map[string]*watched
	crashes int
	commits int
	entries map[string]int
	calls   map[string]int

	logMu   sync.Mutex
	history []string
	wrong   []string
}

// plan is what goes wrong in a seed: percentages, each per occasion.
type plan struct {
	faulty bool // anything at all

	storeFails, storeStorm          int
	bootFails, captureFails         int
	removeFails, freezeFails        int
	crashes                         int // of the server, at most
	crashAtCommit, crashAtMove      int
	runtimeCrashes                  int // at most
	slow                            int
	blind                           int
	clients, calls, sandboxes, fast int
}

func newPlan(rng *rand.Rand) plan {
	p := plan{clients: 2 + rng.IntN(4), calls: 8 + rng.IntN(14), sandboxes: 1 + rng.IntN(3), fast: rng.IntN(100)}
	kind := rng.IntN(4)
	if kind == 0 {
		return p
	}
	p.faulty = true
	some := func(n int) int {
		if kind == 3 || rng.IntN(3) == 0 {
			return n
		}
		return 0
	}
	p.storeFails, p.storeStorm = some(5), some(1)
	p.bootFails, p.captureFails = some(20), some(20)
	p.removeFails, p.freezeFails = some(10), some(5)
	p.crashes = some(1 + rng.IntN(4))
	p.crashAtCommit, p.crashAtMove = 4, 4
	p.runtimeCrashes = some(1 + rng.IntN(3))
	p.slow, p.blind = some(10), some(10)
	return p
}

func newSim(t *testing.T, dir string, seed uint64) *sim {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &sim{
		world: newWorldIn(t, dir), t: t, seed: seed, began: time.Now(), rolls: map[string]uint64{}, up: make(chan struct{}),
		boxes: map[string]*watched{}, entries: map[string]int{}, calls: map[string]int{},
	}
	s.plan = newPlan(s.roll("plan"))
	s.light = percent(s.roll("light"), 50)
	s.meddle, s.told, s.served, s.did = s.trouble, s.report, s.hasServed, s.hasDone
	s.world.tune = func(o *Options) { o.ActivityEvery = 20 * time.Second }
	s.world.hooks = s.commitHooks
	s.world.log = func(srv *server) slog.Handler { return simLog{s, srv} }
	return s
}

// roll returns the dice for an occasion: always the same for the n-th of its
// name in a seed, whatever else happens in between.
func (s *sim) roll(name string) *rand.Rand {
	s.rollMu.Lock()
	defer s.rollMu.Unlock()
	s.rolls[name]++
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(s.seed, h.Sum64()+s.rolls[name]))
}

func percent(rng *rand.Rand, n int) bool { return rng.IntN(100) < n }

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

func oneOf[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func (s *sim) logf(format string, args ...any) {
	line := fmt.Sprintf("%14.6f ", time.Since(s.began).Seconds()) + fmt.Sprintf(format, args...)
	s.logMu.Lock()
	defer s.logMu.Unlock()
	s.history = append(s.history, line)
}

func (s *sim) fail(format string, args ...any) {
	what := fmt.Sprintf("at %.6f: ", time.Since(s.began).Seconds()) + fmt.Sprintf(format, args...)
	s.logf("WRONG %s", fmt.Sprintf(format, args...))
	s.logMu.Lock()
	defer s.logMu.Unlock()
	s.wrong = append(s.wrong, what)
}

func (s *sim) story() string {
	if s == nil {
		return ""
	}
	s.logMu.Lock()
	defer s.logMu.Unlock()
	return fmt.Sprintf("seed %d, plan %+v\n%s", s.seed, s.plan, strings.Join(s.history, "\n"))
}

// simLog puts what servers log into the history.
type simLog struct {
	s   *sim
	srv *server
}

func (simLog) Enabled(_ context.Context, l slog.Level) bool { return l > slog.LevelInfo }
func (l simLog) WithAttrs([]slog.Attr) slog.Handler         { return l }
func (l simLog) WithGroup(string) slog.Handler              { return l }

func (l simLog) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s", a); return true })
	l.s.logf("  server %d: %s%s", l.srv.number, r.Message, b.String())
	return nil
}

// run is the whole of a seed.
func (s *sim) run() {
	over := make(chan struct{})
	var machinery sync.WaitGroup
	s.start(s.roll("first server"))
	machinery.Go(func() { s.keepUp(over) })
	machinery.Go(func() { s.crashServers(over) })
	machinery.Go(func() { s.crashRuntimes(over) })
	machinery.Go(func() {
		select {
		case <-time.After(between(s.roll("calm"), time.Minute, 3*time.Hour)):
			s.calm.Store(true)
		case <-over:
		}
	})
	s.clientsCallAndReturn()
	s.calm.Store(true)
	close(over)
	machinery.Wait()
	s.settle()
	s.endAll()
}

// start opens servers until one comes up, as a service manager would.
func (s *sim) start(rng *rand.Rand) {
	for range 1000 {
		srv, err := s.open()
		if err == nil {
			s.logf("server %d is up", srv.number)
			s.serverMu.Lock()
			s.current = srv
			close(s.up)
			s.serverMu.Unlock()
			return
		}
		s.logf("server did not come up: %v", err)
		if !s.plan.faulty {
			s.fail("the server did not come up: %v", err)
		}
		time.Sleep(between(rng, time.Millisecond, 5*time.Second))
	}
	s.fail("no server comes up")
}

// keepUp starts a new server when the last has crashed.
func (s *sim) keepUp(over <-chan struct{}) {
	for {
		s.serverMu.Lock()
		srv := s.current
		s.serverMu.Unlock()
		select {
		case <-srv.crashed:
		case <-over:
			if !srv.dead.Load() {
				return
			}
		}
		s.serverMu.Lock()
		s.up = make(chan struct{})
		s.serverMu.Unlock()
		srv.s.stop()
		rng := s.roll("down")
		s.logf("server %d is dead", srv.number)
		time.Sleep(oneOf(rng, time.Millisecond, between(rng, time.Second, time.Minute), between(rng, time.Minute, time.Hour)))
		if percent(rng, 20) && !s.calm.Load() && s.plan.runtimeCrashes > 0 {
			s.crashOne(rng)
		}
		s.start(rng)
	}
}

// server waits for one that is up.
func (s *sim) server() *server {
	for {
		s.serverMu.Lock()
		srv, up := s.current, s.up
		s.serverMu.Unlock()
		<-up
		if srv != nil && !srv.dead.Load() {
			return srv
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *sim) mayCrash() bool {
	if s.calm.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crashes < s.plan.crashes
}

func (s *sim) crash(srv *server, why string) {
	if srv.dead.Load() {
		return
	}
	s.crashMu.Lock()
	s.crashAt = append(s.crashAt, ids.Now())
	s.crashMu.Unlock()
	s.logf("CRASH of server %d %s", srv.number, why)
	srv.crash()
}

func (s *sim) crashServers(over <-chan struct{}) {
	rng := s.roll("crashes")
	for {
		select {
		case <-over:
			return
		case <-time.After(oneOf(rng, between(rng, time.Millisecond, 10*time.Second), between(rng, time.Second, time.Hour))):
		}
		s.serverMu.Lock()
		srv := s.current
		s.serverMu.Unlock()
		if s.mayCrash() && !srv.dead.Load() {
			s.mu.Lock()
			s.crashes++
			s.mu.Unlock()
			s.crash(srv, "by the clock")
		}
	}
}

func (s *sim) crashRuntimes(over <-chan struct{}) {
	rng := s.roll("runtime crashes")
	for range s.plan.runtimeCrashes {
		select {
		case <-over:
			return
		case <-time.After(oneOf(rng, between(rng, time.Millisecond, 10*time.Second), between(rng, time.Second, time.Hour))):
		}
		if !s.calm.Load() {
			s.crashOne(rng)
		}
	}
}

// crashOne ends one of the runtimes that live.
func (s *sim) crashOne(rng *rand.Rand) {
	s.mu.Lock()
	var live []*program
	for _, id := range slices.Sorted(maps.Keys(s.programs)) {
		if p := s.programs[id]; !p.gone {
			live = append(live, p)
		}
	}
	slices.SortStableFunc(live, func(a, b *program) int { return s.ordinal(a.id) - s.ordinal(b.id) })
	s.mu.Unlock()
	if len(live) == 0 {
		return
	}
	p := oneOf(rng, live...)
	s.logf("CRASH of runtime %s", s.short(p.id))
	s.kill(p.id)
	// Nobody in it is busy any more, whatever the server could record of that.
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[sandboxOf(p.id)]; b != nil && b.busyUntil[p.launch()].After(ids.Now()) {
		b.busyUntil[p.launch()] = ids.Now()
	}
}

// ordinal numbers sandboxes as clients create them; -1 for an unknown one. It
// is called with mu held.
func (s *sim) ordinal(runtimeID string) int {
	if b := s.boxes[sandboxOf(runtimeID)]; b != nil {
		return b.ordinal
	}
	return -1
}

// short names a runtime the same way in every replay.
func (s *sim) short(runtimeID string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shortLocked(runtimeID)
}

func (s *sim) shortLocked(runtimeID string) string {
	if sandboxOf(runtimeID) == "" {
		return runtimeID
	}
	n, _ := strconv.Atoi(runtimeID[len(sandboxOf(runtimeID))+1:])
	return fmt.Sprintf("box%d/launch%d", s.ordinal(runtimeID), n)
}

// trouble is what goes wrong with runtimes.
func (s *sim) trouble(ctx context.Context, srv *server, at point, id string) error {
	name := s.short(id)
	rng := s.roll(fmt.Sprint(at, " ", name))
	calm := s.calm.Load()
	if percent(rng, s.plan.crashAtMove) && s.mayCrash() {
		s.mu.Lock()
		s.crashes++
		s.mu.Unlock()
		s.crash(srv, fmt.Sprintf("at %s of %s", at, name))
		return errDead
	}
	delay := s.delay(rng, at, calm)
	if delay > 0 {
		if percent(rng, 50) {
			time.Sleep(delay)
		} else {
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	fails := map[point]int{
		atStart: s.plan.bootFails, atRestore: s.plan.bootFails, atBooted: s.plan.bootFails / 4,
		atFreeze: s.plan.freezeFails, atCheckpoint: s.plan.captureFails, atCaptured: s.plan.captureFails / 2,
		atRemove: s.plan.removeFails, atList: s.plan.removeFails,
	}[at]
	if percent(rng, fails) && !calm {
		s.logf("  FAULT %s of %s fails", at, name)
		return fmt.Errorf("%s of %s: a fault", at, name)
	}
	return nil
}

// delay is how long something takes.
func (s *sim) delay(rng *rand.Rand, at point, calm bool) time.Duration {
	slow := percent(rng, s.plan.slow) && !calm
	switch at {
	case atStart, atRestore:
		if slow {
			return between(rng, 10*time.Second, 90*time.Second)
		}
		return between(rng, time.Millisecond, 400*time.Millisecond)
	case atCheckpoint:
		if slow {
			return between(rng, 10*time.Second, 400*time.Second)
		}
		return between(rng, time.Millisecond, 2*time.Second)
	case atRemove:
		if slow {
			return between(rng, time.Second, 40*time.Second)
		}
		return between(rng, time.Microsecond, 100*time.Millisecond)
	case atFreeze, atThaw:
		return between(rng, time.Microsecond, 10*time.Millisecond)
	}
	return 0
}

// report is what the agent of a program says.
func (s *sim) report(p *program) (agentapi.Activity, error) {
	rng := s.roll("report " + s.short(p.id))
	if percent(rng, s.plan.blind) && !s.calm.Load() {
		return agentapi.Activity{}, errors.New("no telemetry")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	seen := agentapi.Activity{Now: now}
	until := s.boxes[sandboxOf(p.id)].busyUntil[p.launch()]
	switch {
	case now.Before(until):
		seen.Processes = []agentapi.Process{{PID: 1, Command: "work", Since: p.booted, LastProgress: now}}
	case !until.IsZero():
		seen.LastEnd = until
	}
	return seen, nil
}

// commitHooks watch the store, and have it fail.
func (s *sim) commitHooks(srv *server) memstore.Hooks {
	var stormUntil time.Time // guarded by the data's lock, as everything here
	return memstore.Hooks{
		Before: func(c memstore.Commit) error {
			rng := s.roll("commit " + c.After.Config.Metadata["ordinal"])
			if percent(rng, s.plan.crashAtCommit) && s.mayCrash() {
				s.mu.Lock()
				s.crashes++
				s.mu.Unlock()
				s.crash(srv, "before a commit")
				return errDead
			}
			if s.calm.Load() {
				return nil
			}
			if percent(rng, s.plan.storeStorm) {
				stormUntil = time.Now().Add(between(rng, time.Second, 3*time.Minute))
				s.logf("  FAULT the store fails for a while")
			}
			if percent(rng, s.plan.storeFails) || time.Now().Before(stormUntil) {
				s.logf("  FAULT commit of box%s fails", c.After.Config.Metadata["ordinal"])
				return memstore.ErrFull
			}
			return nil
		},
		After: func(c memstore.Commit) error {
			s.observe(srv, c)
			rng := s.roll("committed " + c.After.Config.Metadata["ordinal"])
			if percent(rng, s.plan.crashAtCommit) && s.mayCrash() {
				s.mu.Lock()
				s.crashes++
				s.mu.Unlock()
				s.crash(srv, "after a commit")
				return errDead
			}
			if !s.calm.Load() && percent(rng, s.plan.storeFails) {
				s.logf("  FAULT the answer to a commit of box%s is lost", c.After.Config.Metadata["ordinal"])
				return errors.New("no answer")
			}
			return nil
		},
	}
}

// settle waits, with no faults left, for as long as any clock runs, and then
// holds that everything has got where it must.
func (s *sim) settle() {
	time.Sleep(4 * time.Hour)
	srv := s.server()
	all, err := srv.s.All(context.Background())
	if err != nil {
		s.fail("all: %v", err)
	}
	now := time.Now()
	for _, sb := range all {
		name, r := sb.Config.Metadata["ordinal"], sb.Record
		if r.Op != nil && !now.Before(r.Op.Deadline) { // a checkpoint may have begun just now
			s.fail("box%s: %s has not ended since %s", name, r.Op.Phase, r.Op.StartedAt.Sub(s.began))
		}
		if r.State == lifecycle.Pending {
			s.fail("box%s is pending still", name)
		}
		b, err := srv.s.box(sb.ID)
		if err != nil {
			s.fail("box%s: %v", name, err)
			continue
		}
		b.mu.Lock()
		due := r.Deadlines(b.activityLocked(now))
		b.mu.Unlock()
		for _, d := range due {
			if d.At.Before(now) {
				s.fail("box%s: %s was due %s ago and has not fired", name, d.Clock, now.Sub(d.At))
			}
		}
		set := r.Settings
		if r.State == lifecycle.Running && (set.IdleTimeout > 0 || !r.EndAt.IsZero()) {
			s.fail("box%s runs, and nobody has used it for hours", name)
		}
		if r.State == lifecycle.Paused && set.PausedRetention > 0 && now.Sub(s.boxes[sb.ID].pausedSince) > set.PausedRetention {
			s.fail("box%s is kept longer than its retention", name)
		}
		if r.State != lifecycle.Terminated && set.MaxLifetime > 0 {
			s.fail("box%s outlived its lifetime", name)
		}
	}
}

// endAll kills what is left and holds that nothing remains.
func (s *sim) endAll() {
	srv := s.server()
	all, _ := srv.s.All(context.Background())
	for _, sb := range all {
		if sb.Record.State != lifecycle.Terminated {
			s.mu.Lock()
			s.boxes[sb.ID].killAsked = true
			s.mu.Unlock()
			if err := srv.s.Kill(context.Background(), sb.ID, ""); err != nil {
				s.fail("kill: %v", err)
			}
		}
	}
	time.Sleep(time.Minute)
	left, _ := s.machine.Driver().List(context.Background())
	for _, id := range left {
		s.fail("runtime %s is left", s.short(id))
	}
	for _, d := range subdirs {
		entries, err := os.ReadDir(filepath.Join(srv.dir, d))
		if err != nil {
			s.fail("%v", err)
		}
		for _, e := range entries {
			s.fail("%s/%s is left", d, s.short(e.Name()))
		}
	}
	if s.seed%20 == 0 {
		time.Sleep(lifecycle.TombstoneKept + time.Hour)
		if all, err := srv.store.Sandboxes(context.Background()); err != nil || len(all) > 0 {
			s.fail("%d tombstones are kept for ever, %v", len(all), err)
		}
	}
	if err := srv.s.Stop(context.Background()); err != nil {
		s.fail("stop: %v", err)
	}
	s.powerOff()
}

// watched is what the checker knows of a sandbox. It is guarded by world.mu.
type watched struct {
	ordinal int
	rec     lifecycle.Record
	past    []lifecycle.Record // every committed record, the last too
	at      lifecycle.Situation

	count       int64 // what the program has counted to, as far as it is to remember
	pausedSince time.Time
	settledAt   time.Time // when the last operation ended, or the settings were changed
	killAsked   bool
	busyUntil   map[int64]time.Time // by launch
	holds       map[int]int         // open accesses that count, by server
	marks       map[string]bool     // what its metadata has said
	worked      []time.Time         // when one was opened, closed or used
}

// observe checks one commit. It runs in the store, with its data locked.
func (s *sim) observe(srv *server, c memstore.Commit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits++
	b := s.boxes[c.After.ID]
	if b == nil {
		n, _ := strconv.Atoi(c.After.Config.Metadata["ordinal"])
		b = &watched{ordinal: n, rec: lifecycle.Record{State: lifecycle.Pending}, at: "pending", busyUntil: map[int64]time.Time{}, holds: map[int]int{}, marks: map[string]bool{}}
		s.boxes[c.After.ID] = b
	}
	before, after := b.rec, c.After.Record
	for _, e := range c.Entries {
		key := string(e.Type)
		if e.Type == lifecycle.EntryTerminated {
			key += " " + string(after.Tombstone.Reason)
		}
		s.entries[key]++
		s.logf("  box%d %s %s -> %s generation %d cause %s %s", b.ordinal, e.Type, e.From, e.To, e.Generation, e.Cause, e.Detail)
	}
	if mark := c.After.Config.Metadata["mark"]; mark != "" {
		b.marks[mark] = true
	}
	b.rec = after
	b.past = append(b.past, after)
	s.checkRecord(b, before, after, c.Entries)
	for _, e := range c.Entries {
		s.checkEntry(srv, c.After.ID, b, before, after, e)
	}
	if after.State == lifecycle.Paused && before.State != lifecycle.Paused {
		b.pausedSince = time.Now()
	}
	if before.Op != nil && (after.Op == nil || after.Op.ID != before.Op.ID) || before.Settings != after.Settings {
		b.settledAt = time.Now()
	}
	s.checkCovered(srv, c.After.ID, b)
}

func (s *sim) checkRecord(b *watched, before, after lifecycle.Record, entries []lifecycle.Entry) {
	wrong := func(format string, args ...any) { s.fail("box%d: %s", b.ordinal, fmt.Sprintf(format, args...)) }
	if d := after.Generation - before.Generation; d < 0 || d > 1 {
		wrong("generation %d after %d", after.Generation, before.Generation)
	}
	started := before.Op != nil && after.Op == nil && after.State == lifecycle.Running &&
		(before.Op.Phase == lifecycle.Creating || before.Op.Phase == lifecycle.Resuming)
	if started != (after.Generation == before.Generation+1) {
		wrong("generation %d, launch %d after generation %d, launch %d, %s to %s", after.Generation, after.Launch,
			before.Generation, before.Launch, before.Situation(), after.Situation())
	}
	if before.State == lifecycle.Terminated && (after.State != lifecycle.Terminated || after.Tombstone.Reason != before.Tombstone.Reason) {
		wrong("it rose from the dead")
	}
	if after.State == lifecycle.Paused && after.Checkpoint == nil {
		wrong("paused without a checkpoint")
	}
	if b.at != "pending" && state(before) != state(after) && len(entries) == 0 {
		wrong("%s to %s is not in the log", before.Situation(), after.Situation())
	}
	for _, e := range entries {
		if replayed(e.From) != replayed(b.at) || e.Generation != after.Generation || e.At.After(time.Now()) {
			wrong("the log is at %s and goes on with %+v", b.at, e)
		}
		b.at = e.To
	}
	if replayed(b.at) != after.State {
		wrong("the log says %s, the record %s", b.at, after.State)
	}
}

func state(r lifecycle.Record) lifecycle.State { return r.State }

// replayed is the committed state of a situation.
func replayed(at lifecycle.Situation) lifecycle.State {
	switch lifecycle.Phase(at) {
	case lifecycle.Creating:
		return lifecycle.Pending
	case lifecycle.Pausing:
		return lifecycle.Running
	case lifecycle.Resuming:
		return lifecycle.Paused
	case lifecycle.Killing:
		return lifecycle.Terminated
	}
	return lifecycle.State(at)
}

// checkEntry holds what one entry of the log claims.
func (s *sim) checkEntry(srv *server, id string, b *watched, before, after lifecycle.Record, e lifecycle.Entry) {
	wrong := func(format string, args ...any) { s.fail("box%d: %s", b.ordinal, fmt.Sprintf(format, args...)) }
	p := s.programs[sweep.RuntimeID(id, before.Launch)]
	switch e.Type {
	case lifecycle.EntryRunning, lifecycle.EntryResumed:
		p := s.programs[sweep.RuntimeID(id, after.Launch)]
		if before.Op.Boot {
			b.count = 0
		}
		switch {
		case p == nil || (p.gone && !p.crashed):
			wrong("generation %d has no runtime", after.Generation)
		case p.count != b.count:
			wrong("generation %d remembers %d, want %d", after.Generation, p.count, b.count)
		}
	case lifecycle.EntryPaused:
		if after.Checkpoint.Mode == lifecycle.Filesystem {
			b.count = 0
			return
		}
		if p.count != b.count || !p.gone && !p.frozen {
			wrong("paused with %d counted of %d, frozen %v", p.count, b.count, p.frozen)
		}
		if n := s.imageCount(srv, after.Checkpoint); n != b.count {
			wrong("the image remembers %d, want %d", n, b.count)
		}
	case lifecycle.EntryRuntimeLost:
		if !p.crashed {
			wrong("its runtime is reported lost and is not")
		}
		b.count = s.imageCount(srv, after.Checkpoint)
	case lifecycle.EntryPauseCancelled:
		b.worked = append(b.worked, ids.Now()) // by the access that cancelled it
	case lifecycle.EntryPausing:
		if e.Cause != lifecycle.CauseCall {
			s.checkExpiry(srv, b, before, e.Cause, lifecycle.Pause)
		}
	case lifecycle.EntryPauseFailed, lifecycle.EntryResumeFailed:
		if !s.plan.faulty {
			wrong("%s without a fault: %s", e.Type, e.Detail)
		}
	case lifecycle.EntryTerminated:
		s.checkEnd(srv, b, p, before, after.Tombstone.Reason)
	}
}

// imageCount reads what the image of a checkpoint remembers.
func (s *sim) imageCount(srv *server, cp *lifecycle.Checkpoint) (n int64) {
	if cp.Mode == lifecycle.Filesystem {
		return 0
	}
	data, err := os.ReadFile(filepath.Join(srv.dir, "images", cp.ID, "memory"))
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	if err != nil && !srv.dead.Load() {
		s.fail("image %s: %v", cp.ID, err)
	}
	return n
}

func (s *sim) checkEnd(srv *server, b *watched, p *program, before lifecycle.Record, reason lifecycle.Reason) {
	wrong := func(format string, args ...any) { s.fail("box%d: %s", b.ordinal, fmt.Sprintf(format, args...)) }
	now, set := time.Now(), before.Settings
	switch reason {
	case lifecycle.Killed:
		if !b.killAsked {
			wrong("killed, and nobody asked")
		}
	case lifecycle.TimeoutExpired:
		s.checkExpiry(srv, b, before, lifecycle.CauseTimeout, lifecycle.Kill)
	case lifecycle.IdleTimeout:
		s.checkExpiry(srv, b, before, lifecycle.CauseIdle, lifecycle.Kill)
	case lifecycle.MaxLifetimeExceeded:
		s.checkDue(b, "its lifetime", before.CreatedAt.Add(set.MaxLifetime), set.MaxLifetime > 0, before)
	case lifecycle.PausedExpired:
		s.checkDue(b, "its retention", b.pausedSince.Add(set.PausedRetention), set.PausedRetention > 0, before)
	case lifecycle.CreateFailed:
		if !s.plan.faulty {
			wrong("it could not be created without a fault")
		}
	case lifecycle.RuntimeExited, lifecycle.RuntimeLost:
		if !p.crashed || before.Checkpoint != nil {
			wrong("ended as %s at %s with checkpoint %v", reason, now, before.Checkpoint)
		}
	}
}

// checkExpiry holds that a sandbox expired as it was asked to, and not early.
func (s *sim) checkExpiry(srv *server, b *watched, r lifecycle.Record, cause lifecycle.Cause, did lifecycle.Action) {
	wrong := func(format string, args ...any) { s.fail("box%d: %s", b.ordinal, fmt.Sprintf(format, args...)) }
	asked, due := r.Settings.OnTimeout, r.EndAt
	switch {
	case cause == lifecycle.CauseIdle:
		asked, due = r.Settings.IdleAction(), s.idleDue(srv, b, r)
	case cause == lifecycle.CauseCheckpoint:
		asked, due = lifecycle.Pause, later(r.StartedAt, r.PausedAt).Add(r.Settings.CheckpointEvery)
	case r.Settings.RefreshOnActivity != lifecycle.NoRefresh:
		due = s.refreshedDue(srv, b, r)
	}
	if did != asked {
		wrong("%s by %s, and %s was asked for", did, cause, asked)
	}
	if did == lifecycle.Pause {
		due = later(due, r.PauseRetryAt)
	}
	s.checkDue(b, string(cause), due, true, r)
}

// idleDue is the earliest that a sandbox may count as idle for long enough.
func (s *sim) idleDue(srv *server, b *watched, r lifecycle.Record) time.Time {
	if b.holds[srv.number] > 0 {
		s.fail("box%d: idle with %d accesses open", b.ordinal, b.holds[srv.number])
	}
	due := later(r.StartedAt, s.workedUntil(b, r)).Add(r.Settings.IdleTimeout)
	if r.EndIsLive {
		due = later(due, r.EndAt)
	}
	return due
}

// refreshedDue is the earliest that the soft timeout of a sandbox may end that
// is refreshed by activity.
func (s *sim) refreshedDue(srv *server, b *watched, r lifecycle.Record) time.Time {
	last := s.lastKnown(b.worked)
	if r.EndAt.After(r.EndSetAt) {
		if b.holds[srv.number] > 0 {
			s.fail("box%d: timed out with %d accesses open", b.ordinal, b.holds[srv.number])
		}
		last = s.askedUntil(b, r)
		if r.Settings.RefreshOnActivity == lifecycle.RefreshOnWork {
			last = s.workedUntil(b, r)
		}
	}
	if !last.After(r.EndSetAt) {
		return r.EndAt
	}
	return later(r.EndAt, last.Add(r.Settings.Timeout))
}

// workedUntil is when work was last seen in a sandbox, or will be.
func (s *sim) workedUntil(b *watched, r lifecycle.Record) time.Time {
	last := s.askedUntil(b, r)
	if s.plan.blind == 0 {
		last = later(last, b.busyUntil[r.Launch])
	}
	return last
}

// askedUntil is the same without what processes do.
func (s *sim) askedUntil(b *watched, r lifecycle.Record) time.Time {
	last := s.lastKnown(b.worked)
	for _, l := range r.Leases {
		last = later(last, l.Until)
	}
	return last
}

// lastKnown is the last of some times of work that a server can know of. What
// was in the last minute before a crash may not be stored; where the store
// fails, a write or two more may be missing.
func (s *sim) lastKnown(worked []time.Time) (last time.Time) {
	s.crashMu.Lock()
	defer s.crashMu.Unlock()
	for _, t := range worked {
		lost := slices.ContainsFunc(s.crashAt, func(crash time.Time) bool {
			return !t.After(crash) && crash.Sub(t) < 2*time.Minute
		})
		if !lost {
			last = t
		}
	}
	return last
}

// lateness is how late a clock may take effect where nothing is slow. The rest
// is the truncation of time to microseconds.
const lateness = 5 * time.Millisecond

func (s *sim) checkDue(b *watched, what string, due time.Time, set bool, before lifecycle.Record) {
	now := time.Now()
	if !set || now.Add(time.Microsecond).Before(due) { // stored times are truncated to it
		s.fail("box%d: %s took effect %s early", b.ordinal, what, due.Sub(now))
	}
	// An operation holds the soft clocks back, not the lifetime.
	late := now.Sub(later(due, b.settledAt))
	// When work ended is known only roughly.
	rough := what == string(lifecycle.CauseIdle) || what == string(lifecycle.CauseTimeout) && before.Settings.RefreshOnActivity != lifecycle.NoRefresh
	if !s.plan.faulty && !rough && late > lateness {
		s.fail("box%d: %s took effect %s late, in %s", b.ordinal, what, late, before.Situation())
	}
}

// checkCovered holds that a sandbox that has not ended can always go on: from
// its runtime, or from a checkpoint that is whole.
func (s *sim) checkCovered(srv *server, id string, b *watched) {
	r := b.rec
	if r.State != lifecycle.Running && r.State != lifecycle.Paused || srv.dead.Load() {
		return
	}
	p := s.programs[sweep.RuntimeID(id, r.Launch)]
	if r.State == lifecycle.Running {
		if p == nil || (p.gone && !p.crashed) {
			s.fail("box%d runs in launch %d, which is gone", b.ordinal, r.Launch)
		}
		return
	}
	if err := wholeCheckpoint(srv.dir, r.Checkpoint); err != nil {
		s.fail("box%d is paused: %v", b.ordinal, err)
	}
}

func wholeCheckpoint(dir string, cp *lifecycle.Checkpoint) error {
	for _, id := range cp.Stack {
		if _, err := os.Stat(filepath.Join(dir, "layers", id)); err != nil {
			return err
		}
	}
	if cp.Mode == lifecycle.Filesystem {
		return nil
	}
	files, err := layer.Open(dir)
	if err != nil {
		return err
	}
	m, err := files.Verify(cp.ID, cp.Digest)
	isMerged := func(id string) bool { return cp.Layers[id] != "" && !slices.Contains(m.Stack, id) }
	if err == nil && !slices.Equal(m.Stack, cp.Stack) && !slices.ContainsFunc(cp.Stack, isMerged) {
		err = fmt.Errorf("the image is for %v, the record says %v", m.Stack, cp.Stack)
	}
	return err
}

// hasServed checks one access at the instant that it is served.
func (s *sim) hasServed(p *program) {
	b := s.boxes[sandboxOf(p.id)]
	if b.rec.Launch != p.launch() || b.rec.State == lifecycle.Paused || b.rec.State == lifecycle.Pending {
		s.fail("%s serves, committed is launch %d, %s", s.shortLocked(p.id), b.rec.Launch, b.rec.Situation())
	}
	if p.count != b.count+1 {
		s.fail("%s counts %d after %d", s.shortLocked(p.id), p.count, b.count)
	}
	b.count = p.count
}

// hasDone checks what a driver has just done.
func (s *sim) hasDone(at point, id string) {
	if at == atList || at == atAdopt {
		return
	}
	b := s.boxes[sandboxOf(id)]
	if b == nil {
		s.fail("%s of %s, whose sandbox is not committed", at, id)
		return
	}
	p := s.programs[id]
	switch at {
	case atBooted:
		if p.launch() > b.rec.Launches {
			s.fail("%s of %s, which is not committed", at, s.shortLocked(id))
		}
	case atRemove:
		if p != nil && b.rec.State == lifecycle.Running && b.rec.Launch == p.launch() && !p.crashed {
			s.fail("%s serves and is removed", s.shortLocked(id))
		}
	case atThaw:
		if b.rec.State == lifecycle.Paused && b.rec.Op == nil {
			s.fail("%s sleeps and is thawed", s.shortLocked(id))
		}
	case atFreeze:
		if b.rec.State == lifecycle.Running && b.rec.Op == nil && b.rec.Launch == p.launch() {
			s.fail("%s is frozen and no pause is committed", s.shortLocked(id))
		}
	}
}

// window is the time between a call and its return.
type window struct {
	s     *sim
	srv   *server
	id    string
	what  string
	began time.Time
	from  int // index of the first record that may have been seen
}

func (s *sim) call(srv *server, id, what string) window {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := window{s: s, srv: srv, id: id, what: what, began: time.Now()}
	if b := s.boxes[id]; b != nil {
		w.from = max(0, len(b.past)-1)
	}
	return w
}

// saw reports whether any record committed during the call, or just before, is
// such.
func (w window) saw(such func(r lifecycle.Record) bool) bool {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	b := w.s.boxes[w.id]
	return b != nil && slices.ContainsFunc(b.past[w.from:], such)
}

func (w window) name() string {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if b := w.s.boxes[w.id]; b != nil {
		return fmt.Sprintf("%s of box%d", w.what, b.ordinal)
	}
	return w.what
}

// done checks how a call ended, and reports whether it succeeded and its answer
// counts.
func (w window) done(err error) bool {
	took := time.Since(w.began)
	answer := "ok"
	if err != nil {
		answer = string(errdef.ClassOf(err))
	}
	if w.srv.dead.Load() { // whatever it says, the client does not get it
		w.s.logf("%s: the server died", w.name())
		return false
	}
	w.s.mu.Lock()
	w.s.calls[w.what+" "+answer]++
	w.s.mu.Unlock()
	if err == nil {
		w.s.logf("%s: ok after %s", w.name(), took)
	} else {
		w.s.logf("%s: %v after %s", w.name(), err, took)
		w.checkError(err)
	}
	if took > 30*time.Minute {
		w.s.fail("%s took %s", w.name(), took)
	}
	return err == nil
}

// checkError holds that a refusal is true.
func (w window) checkError(err error) {
	is := func(state lifecycle.State) bool {
		return w.saw(func(r lifecycle.Record) bool { return r.State == state })
	}
	ok := false
	switch errdef.ClassOf(err) {
	case errdef.NotFound:
		ok = is(lifecycle.Terminated) || strings.HasPrefix(w.what, "release hold")
	case errdef.WrongState:
		ok = is(lifecycle.Paused) || w.what == "probe" && w.saw(func(r lifecycle.Record) bool { return r.Phase() == lifecycle.Pausing })
	case errdef.Conflict:
		ok = is(lifecycle.Paused) && w.what == "pause" || is(lifecycle.Running) && w.what == "resume"
	case errdef.Invalid:
		ok = w.what == "patch" || w.what == "create"
	case errdef.Unavailable, errdef.Internal:
		ok = w.s.plan.faulty
	}
	if !ok {
		w.s.fail("%s: %v, which is not so", w.name(), err)
	}
}

// clientsCallAndReturn runs the clients to their end.
func (s *sim) clientsCallAndReturn() {
	var ids idList
	var clients sync.WaitGroup
	for n := range s.plan.clients {
		clients.Go(func() {
			c := &client{s: s, n: n, rng: s.roll(fmt.Sprint("client ", n)), ids: &ids}
			c.run()
		})
	}
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * 24 * time.Hour):
		s.fail("calls have not returned")
		s.serverMu.Lock()
		s.current.end()
		s.serverMu.Unlock()
		<-done
	}
}

// idList is the sandboxes that clients know.
type idList struct {
	mu     sync.Mutex
	ids    []string
	number int
}

func (l *idList) add(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, id)
}

func (l *idList) next() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	return l.number
}

func (l *idList) pick(rng *rand.Rand) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ids) == 0 {
		return ""
	}
	return oneOf(rng, l.ids...)
}

type client struct {
	s    *sim
	n    int
	rng  *rand.Rand
	ids  *idList
	hold string // a lease of its own
}

func (c *client) think() {
	if percent(c.rng, c.s.plan.fast) {
		time.Sleep(between(c.rng, time.Microsecond, 100*time.Millisecond))
		return
	}
	time.Sleep(oneOf(c.rng, between(c.rng, time.Microsecond, time.Second), between(c.rng, time.Second, time.Minute), between(c.rng, time.Minute, 20*time.Minute)))
}

func (c *client) run() {
	if c.n < c.s.plan.sandboxes {
		c.create()
	}
	for range c.s.plan.calls {
		c.think()
		c.once()
	}
}

func (c *client) duration() time.Duration {
	return oneOf(c.rng, 5*time.Second, 30*time.Second, 2*time.Minute, 10*time.Minute, time.Hour)
}

func (c *client) settings() lifecycle.Settings {
	d := func(zero int) time.Duration {
		if percent(c.rng, zero) {
			return 0
		}
		return c.duration()
	}
	kill := oneOf(c.rng, lifecycle.Pause, lifecycle.Pause, lifecycle.Kill)
	return lifecycle.Settings{
		Timeout: d(30), OnTimeout: kill, IdleTimeout: d(50), OnIdle: oneOf(c.rng, "", "", lifecycle.Pause, lifecycle.Kill),
		MaxLifetime: oneOf(c.rng, 0, 0, 0, 30*time.Minute, 2*time.Hour), PausedRetention: oneOf(c.rng, 0, 0, 10*time.Minute, time.Hour),
		AutoResume: percent(c.rng, 70), RefreshOnActivity: oneOf(c.rng, "", "", "", "", "", "", lifecycle.RefreshOnWork, lifecycle.RefreshOnRequests), PauseMode: oneOf(c.rng, "", "", "", lifecycle.Filesystem),
		CheckpointEvery: oneOf(c.rng, 0, 0, 0, 5*time.Minute, time.Hour),
	}
}

func (c *client) create() {
	srv := c.s.server()
	set := c.settings()
	for set.Validate() != nil {
		set = c.settings()
	}
	number := c.ids.next()
	config := store.Config{
		Metadata: map[string]string{"ordinal": strconv.Itoa(number)},
		Ports:    store.Ports{"8001": lifecycle.Keep, "8002": lifecycle.Ignore},
	}
	w := c.s.call(srv, "", "create")
	c.s.logf("client %d creates box%d %+v", c.n, number, set)
	sb, err := srv.s.Create(srv.ctx, CreateRequest{Template: "test", Settings: set, Config: config})
	w.id = sb.ID
	if err != nil && !w.srv.dead.Load() && errdef.ClassOf(err) == errdef.NotFound {
		c.s.fail("create: %v", err)
	}
	if !w.done(err) {
		return
	}
	c.ids.add(sb.ID)
	if sb.Record.Generation != 1 || !w.saw(func(r lifecycle.Record) bool { return runs(r) && r.EndAt.Equal(sb.Record.EndAt) }) {
		c.s.fail("created in generation %d with end %s, which is not committed", sb.Record.Generation, sb.Record.EndAt)
	}
}

// runs reports whether leases may be given on a record.
func runs(r lifecycle.Record) bool { return r.State == lifecycle.Running && r.Op == nil }

// serves reports whether an access can get a lease: also while an automatic
// pause drains, and a probe while any does.
func serves(r lifecycle.Record, a Access) bool {
	return runs(r) || r.Phase() == lifecycle.Pausing && (r.Op.Cancelable || a.Probe)
}

func (c *client) once() {
	id := c.ids.pick(c.rng)
	if id == "" {
		c.create()
		return
	}
	srv := c.s.server()
	switch n := c.rng.IntN(100); {
	case n < 35:
		c.visit(srv, id)
	case n < 48:
		c.pause(srv, id)
	case n < 60:
		c.connect(srv, id)
	case n < 65:
		c.resume(srv, id)
	case n < 76:
		c.setTimeout(srv, id)
	case n < 83:
		c.patch(srv, id)
	case n < 89:
		c.holdOrRelease(srv, id)
	case n < 92:
		c.busy(srv, id)
	case n < 95:
		w := c.s.call(srv, id, "explain")
		_, err := srv.s.Explain(srv.ctx, id)
		w.done(err)
	case n < 97:
		c.kill(srv, id)
	default:
		c.create()
	}
}

func (c *client) visit(srv *server, id string) {
	a := Access{Port: oneOf(c.rng, 8000, 8000, 8000, 8001, 8002), Stream: percent(c.rng, 30), Probe: percent(c.rng, 10)}
	counts := a.Port != 8002 && !a.Probe
	long := time.Duration(0)
	// A probe is short. A long one would be cut by the idle timeout, cancel the
	// pause by coming again, and so on.
	if percent(c.rng, 50) && !a.Probe {
		long = between(c.rng, time.Microsecond, oneOf(c.rng, 100*time.Millisecond, time.Minute))
	}
	what := "visit"
	if a.Probe {
		what = "probe"
	}
	w := c.s.call(srv, id, what)
	for {
		lease, err := srv.s.Acquire(srv.ctx, id, a)
		if err != nil {
			w.done(err)
			return
		}
		if !w.saw(func(r lifecycle.Record) bool { return serves(r, a) && r.Generation == lease.Generation }) && !srv.dead.Load() {
			c.s.fail("%s got a lease on generation %d, which was not running then", w.name(), lease.Generation)
		}
		n, err := c.hold1(srv, id, lease, long, counts)
		switch {
		case errors.Is(err, errCut): // as a client would whose connection broke
			w.from = c.s.call(srv, id, "").from
			continue
		case errors.Is(err, errGone) || err != nil && strings.Contains(err.Error(), "refused"):
			if !c.s.crashedEver(id) {
				c.s.fail("%s: %v, and the lease was not cut", w.name(), err)
			}
			return
		}
		if w.done(err) {
			c.s.logf("  counted %d in generation %d", n, lease.Generation)
		}
		return
	}
}

// hold1 uses a lease for a while.
func (c *client) hold1(srv *server, id string, lease *Lease, long time.Duration, counts bool) (int64, error) {
	mark := func(d int) {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if b := c.s.boxes[id]; counts && !isCut(lease) && !srv.dead.Load() {
			b.worked = append(b.worked, ids.Now())
			b.holds[srv.number] += d
			return
		} else if d < 0 && counts {
			b.holds[srv.number] += d
		}
	}
	defer lease.Release()
	marked := !isCut(lease)
	mark(1)
	if long > 0 {
		select {
		case <-time.After(long):
		case <-lease.Cut:
		case <-srv.ctx.Done():
		}
	}
	n, err := askThrough(srv.ctx, lease)
	if marked {
		mark(-1)
	}
	return n, err
}

// crashedEver reports whether a runtime of a sandbox has ever crashed.
func (s *sim) crashedEver(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rid, p := range s.programs {
		if sandboxOf(rid) == id && p.crashed {
			return true
		}
	}
	return false
}

func (c *client) pause(srv *server, id string) {
	mode := oneOf(c.rng, lifecycle.Memory, lifecycle.Memory, lifecycle.Memory, lifecycle.Filesystem)
	w := c.s.call(srv, id, "pause")
	if w.done(srv.s.Pause(srv.ctx, id, PauseRequest{Mode: mode})) && !w.saw(func(r lifecycle.Record) bool { return r.State == lifecycle.Paused }) {
		c.s.fail("%s returned and nothing is committed", w.name())
	}
}

func (c *client) connect(srv *server, id string) {
	d := c.duration()
	w := c.s.call(srv, id, "connect")
	got, err := srv.s.Connect(srv.ctx, id, WakeRequest{Timeout: d, Boot: percent(c.rng, 15)})
	if !w.done(err) {
		return
	}
	r := got.Sandbox.Record
	if !w.saw(func(x lifecycle.Record) bool {
		return runs(x) && x.Generation == r.Generation && x.EndAt.Equal(r.EndAt)
	}) {
		c.s.fail("%s returned %s, generation %d, end %s, which is not committed", w.name(), r.Situation(), r.Generation, r.EndAt.Sub(c.s.began))
	}
	if !r.EndAt.IsZero() && r.EndAt.Before(w.began.Add(d).Truncate(time.Microsecond)) {
		c.s.fail("%s for %s returned the end %s", w.name(), d, r.EndAt.Sub(c.s.began))
	}
}

func (c *client) resume(srv *server, id string) {
	d := c.duration()
	w := c.s.call(srv, id, "resume")
	sb, err := srv.s.Resume(srv.ctx, id, WakeRequest{Timeout: d, Boot: percent(c.rng, 15)})
	if !w.done(err) {
		return
	}
	r := sb.Record
	if !w.saw(func(x lifecycle.Record) bool {
		return runs(x) && x.Generation == r.Generation && x.EndAt.Equal(r.EndAt)
	}) {
		c.s.fail("%s returned %s, generation %d, end %s, which is not committed", w.name(), r.Situation(), r.Generation, r.EndAt.Sub(c.s.began))
	}
}

func (c *client) setTimeout(srv *server, id string) {
	d := oneOf(c.rng, c.duration(), c.duration(), 0)
	what, f := "set timeout", srv.s.SetTimeout
	if percent(c.rng, 20) {
		what, f = "refresh", srv.s.Refresh
	}
	w := c.s.call(srv, id, what)
	sb, err := f(srv.ctx, id, d, "")
	if !w.done(err) {
		return
	}
	end := sb.Record.EndAt
	if !w.saw(func(r lifecycle.Record) bool { return runs(r) && r.EndAt.Equal(end) }) {
		c.s.fail("%s returned the end %s, which is not committed", w.name(), end.Sub(c.s.began))
	}
	if what == "set timeout" && (end.Before(w.began.Add(d).Truncate(time.Microsecond)) || end.After(time.Now().Add(d))) {
		c.s.fail("%s to %s returned the end %s", w.name(), d, end.Sub(c.s.began))
	}
}

func (c *client) patch(srv *server, id string) {
	set := c.settings()
	var p Patch
	switch c.rng.IntN(6) {
	case 0:
		p.Settings.OnTimeout = &set.OnTimeout
	case 1:
		p.Settings.IdleTimeout, p.Settings.OnIdle = &set.IdleTimeout, &set.OnIdle
	case 2:
		p.Settings.AutoResume = &set.AutoResume
	case 3:
		p.Settings.MaxLifetime = &set.MaxLifetime
	case 4:
		p.Settings.PausedRetention = &set.PausedRetention
	case 5:
		c.s.mu.Lock()
		n := c.s.boxes[id].ordinal
		c.s.mu.Unlock()
		mark := strconv.FormatUint(c.rng.Uint64(), 36)
		p.Metadata = map[string]string{"ordinal": strconv.Itoa(n), "mark": mark}
		w := c.s.call(srv, id, "patch")
		if _, err := srv.s.Patch(srv.ctx, id, p, ""); w.done(err) {
			c.s.checkMark(w, mark)
		}
		return
	}
	w := c.s.call(srv, id, "patch")
	_, err := srv.s.Patch(srv.ctx, id, p, "")
	w.done(err)
}

// checkMark holds that an acknowledged change of the metadata was committed.
func (s *sim) checkMark(w window, mark string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[w.id]; !b.marks[mark] {
		s.fail("a patch of box%d returned and is not committed", b.ordinal)
	}
}

func (c *client) holdOrRelease(srv *server, id string) {
	if c.hold != "" && percent(c.rng, 50) {
		w := c.s.call(srv, id, "release hold")
		w.done(srv.s.ReleaseHold(srv.ctx, id, c.hold, ""))
		return
	}
	c.hold = fmt.Sprint("hold", c.n)
	until := time.Now().Add(c.duration()).UTC().Truncate(time.Microsecond)
	w := c.s.call(srv, id, "hold")
	_, err := srv.s.Hold(srv.ctx, id, lifecycle.Lease{ID: c.hold, Reason: "a test", Until: until}, "")
	if w.done(err) && !w.saw(func(r lifecycle.Record) bool {
		return slices.ContainsFunc(r.Leases, func(l lifecycle.Lease) bool { return l.ID == c.hold && l.Until.Equal(until) })
	}) {
		c.s.fail("%s returned and is not committed", w.name())
	}
}

// busy has a process work in the sandbox for a while, as a command would that
// was started through the API.
func (c *client) busy(srv *server, id string) {
	d := between(c.rng, time.Second, 20*time.Minute)
	w := c.s.call(srv, id, "busy")
	lease, err := srv.s.Acquire(srv.ctx, id, Access{Port: 8000})
	if err != nil {
		w.done(err)
		return
	}
	c.s.mu.Lock()
	b := c.s.boxes[id]
	p := c.s.programs[sweep.RuntimeID(id, b.rec.Launch)]
	if b.rec.Generation == lease.Generation && p != nil && !p.frozen && !p.gone && !isCut(lease) && !srv.dead.Load() {
		b.busyUntil[p.launch()], b.worked = time.Now().Add(d), append(b.worked, ids.Now())
		c.s.logf("  box%d is busy for %s", b.ordinal, d)
	}
	c.s.mu.Unlock()
	lease.Release()
	w.done(nil)
}

func (c *client) kill(srv *server, id string) {
	c.s.mu.Lock()
	c.s.boxes[id].killAsked = true
	c.s.mu.Unlock()
	w := c.s.call(srv, id, "kill")
	if w.done(srv.s.Kill(srv.ctx, id, "")) && !w.saw(func(r lifecycle.Record) bool { return r.State == lifecycle.Terminated }) {
		c.s.fail("%s returned and nothing is committed", w.name())
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
