package supervisor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/lifecycle/history"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

var (
	historySeed  = flag.Uint64("history.seed", 0, "the one history to make, or the first of -history.count; 0 for that of testmode")
	historyCount = flag.Int("history.count", 0, "how many histories to make; 0 for as many as fit")
)

// TestHistories has 16 clients at a time use one or two sandboxes, in virtual
// time, and checks that what they saw is linearizable. A seed decides what the
// clients do and how long everything takes, not the order of goroutines within
// one instant.
func TestHistories(t *testing.T) {
	first, count := seedRange(*historySeed, *historyCount, 500, 3000)
	t.Logf("seeds %d to %d; replay one with -history.seed N", first, first+uint64(count)-1)
	sum := recordHistories(t, recordHistory, first, count, func(seed uint64, h history.History, err error) {
		t.Errorf("seed %d: %v; see %s", seed, err, drawn(t, h))
	})
	t.Log(sum.text(oftenSeen))
}

// oftenSeen is what many histories reach; TestPlantedBugs shows that it is enough.
var oftenSeen = []string{
	"create: ok", "create: unknown", "create: refused: it has ended", "access: ok", "access: unknown", "access: refused: it is paused",
	"access: refused: it has ended", "count: ok", "cut: ok", "pause: ok", "pause: unknown", "pause: refused: it is paused", "resume: ok", "resume: refused: it runs",
	"connect: ok", "connect: unknown", "set timeout: ok", "set timeout: refused: it is paused", "kill: ok", "read: ok",
	"running by call", "paused by call", "paused by timeout", "pause_cancelled by timeout", "resumed by call", "resumed by access",
	"timeout_set", "terminated by call", "terminated by timeout",
}

// drawn returns the path of a picture, which outlives the test.
func drawn(t *testing.T, h history.History) string {
	f, err := os.CreateTemp("", "drowse-history-*.html")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.Draw(f, checkWithin), f.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// recordHistories makes the histories of so many seeds, and stops at the first
// that is wrong.
func recordHistories(t *testing.T, record func(t *testing.T, base string, seed uint64) []history.History, first uint64, count int, wrong func(seed uint64, h history.History, err error)) *outcomes {
	base, err := os.MkdirTemp("/dev/shm", "drowse-history-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // it is much, and short-lived
	var next atomic.Uint64
	var stop atomic.Bool
	sum := &outcomes{counts: map[string]int{}}
	t.Run("seeds", func(t *testing.T) {
		for range min(count, goruntime.GOMAXPROCS(0)) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < uint64(count) && !stop.Load(); n = next.Add(1) - 1 {
					for _, h := range record(t, base, first+n) {
						sum.add(h.Ops)
						if err := h.Check(checkWithin); err != nil && stop.CompareAndSwap(false, true) {
							wrong(first+n, h, err)
						}
					}
				}
			})
		}
	})
	return sum
}

// outcomes counts how calls ended, over all histories.
type outcomes struct {
	mu     sync.Mutex
	counts map[string]int
}

func (s *outcomes) add(ops []history.Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range ops {
		s.counts[o.Sort()]++
	}
}

// text says what was seen, and what of often was not.
func (s *outcomes) text(often []string) string {
	var lines []string
	for k, n := range s.counts {
		lines = append(lines, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(lines)
	for _, k := range often {
		if s.counts[k] == 0 {
			lines = append(lines, "never seen: "+k)
		}
	}
	return strings.Join(lines, "\n")
}

// checkWithin bounds the check of one history, which takes a few milliseconds.
const checkWithin = time.Minute

// recordHistory makes the histories of a seed, one for each sandbox.
func recordHistory(t *testing.T, base string, seed uint64) (made []history.History) {
	dir := filepath.Join(base, strconv.FormatUint(seed, 10))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		for _, b := range newScene(t, dir, seed).run() {
			made = append(made, b.History)
		}
	})
	return made
}

// scene is one server, its sandboxes, and 16 clients that use them at once.
type scene struct {
	*world
	t     *testing.T
	seed  uint64
	srv   *server
	boxes []*seenBox

	clock atomic.Int64 // counts calls, returns and commits: their order
}

// seenBox is a sandbox and what was seen of it.
type seenBox struct {
	s        *scene
	known    chan struct{} // closed when id is there: others learn it while it is being created
	id       string
	began    int64 // the commit in flight
	promised int64 // the last generation of which a pause has promised a copy; guarded by mu

	mu sync.Mutex
	history.History
	last, unlearned []int // which ops the last commit has logged, and those of them that its server does not know of
}

const historyClients = 16

func newScene(t *testing.T, dir string, seed uint64) *scene {
	s := &scene{world: newWorldIn(t, dir), t: t, seed: seed}
	rng := s.dice("scene")
	s.light = percent(s.dice("light"), 50)
	for range oneOf(rng, 1, 1, 1, 2) {
		s.boxes = append(s.boxes, &seenBox{s: s, known: make(chan struct{}), History: history.History{Settings: livelySettings(rng)}})
	}
	s.world.hooks = func(*server) memstore.Hooks { return memstore.Hooks{Before: s.committing, After: s.committed} }
	s.meddle = s.takeTime
	return s
}

// dice are always the same for a name in a seed.
func (s *scene) dice(name string) *rand.Rand {
	return (&sim{seed: s.seed, rolls: map[string]uint64{}}).roll(name)
}

func livelySettings(rng *rand.Rand) lifecycle.Settings {
	set := lifecycle.Settings{Timeout: between(rng, 10*time.Millisecond, 3*time.Second), OnTimeout: oneOf(rng, lifecycle.Pause, lifecycle.Pause, lifecycle.Kill)}
	set.AutoResume = set.OnTimeout == lifecycle.Pause && percent(rng, 75)
	return set
}

// takeTime is how long drivers take.
func (s *scene) takeTime(_ context.Context, _ *server, at point, id string) error {
	rng := s.dice(fmt.Sprint(at, id[strings.LastIndexByte(id, 'r')+1:]))
	most := map[point]time.Duration{
		atStart: 400 * time.Millisecond, atRestore: 400 * time.Millisecond, atCheckpoint: time.Second, atRemove: 100 * time.Millisecond,
		atFreeze: 10 * time.Millisecond, atThaw: 10 * time.Millisecond,
	}[at]
	if most > 0 {
		time.Sleep(between(rng, time.Microsecond, most))
	}
	return nil
}

func (s *scene) boxOf(sb store.Sandbox) *seenBox {
	n, _ := strconv.Atoi(sb.Config.Metadata["number"])
	return s.boxes[n]
}

// committing and committed note the interval in which each commit lies.
func (s *scene) committing(c memstore.Commit) error {
	s.boxOf(c.After).began = s.clock.Add(1)
	return nil
}

func (s *scene) committed(c memstore.Commit) error {
	b := s.boxOf(c.After)
	if c.Before.ID == "" {
		b.id = c.After.ID
		close(b.known)
	}
	done := s.clock.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = nil
	for _, e := range c.Entries {
		b.last = append(b.last, len(b.Ops))
		b.Ops = append(b.Ops, history.FromLog(e, b.began, done))
	}
	return nil
}

// learn notes that a server knows by now what was committed, unless the answer to the last commit
// is lost: what it tells others may be of before.
func (b *seenBox) learn(now int64, lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, i := range b.unlearned {
		b.Ops[i].Return = now
	}
	b.unlearned = nil
	if lost {
		b.unlearned = b.last
	}
}

func (b *seenBox) add(op history.Op) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Ops = append(b.Ops, op)
}

// run returns what was seen when all clients are done.
func (s *scene) run() []*seenBox {
	srv, err := s.open()
	if err != nil {
		s.t.Fatal(err)
	}
	s.srv = srv
	var clients sync.WaitGroup
	for n := range historyClients {
		clients.Go(func() { (&observer{s: s, n: n + 1, rng: s.dice(fmt.Sprint("client ", n))}).run() })
	}
	clients.Wait()
	for _, b := range s.boxes {
		(&observer{s: s, n: 1}).kill(context.Background(), b)
	}
	if err := srv.s.Stop(context.Background()); err != nil {
		s.t.Error(err)
	}
	s.powerOff()
	return s.boxes
}

// observer is one client.
type observer struct {
	s   *scene
	n   int
	rng *rand.Rand
}

func (o *observer) run() {
	if o.n <= len(o.s.boxes) {
		o.create(o.s.boxes[o.n-1])
	}
	for range 2 + o.rng.IntN(4) {
		b := oneOf(o.rng, o.s.boxes...)
		<-b.known
		if percent(o.rng, 70) { // the others go on at the same instant
			time.Sleep(between(o.rng, 0, oneOf(o.rng, time.Millisecond, 100*time.Millisecond, 3*time.Second)))
		}
		o.once(b)
	}
}

// call notes a call and returns what notes its answer.
func (o *observer) call(b *seenBox, kind history.Kind, timeout time.Duration) func(err error, answer func(op *history.Op)) {
	op := history.Op{Kind: kind, Client: o.n, Timeout: timeout, At: ids.Now(), Call: o.s.clock.Add(1)}
	return func(err error, answer func(op *history.Op)) {
		op.Return = o.s.clock.Add(1)
		op.Outcome, op.Err = outcomeOf(err), err
		if answer != nil && err == nil {
			answer(&op)
		}
		b.add(op)
	}
}

func outcomeOf(err error) history.Outcome {
	e, _ := errors.AsType[*errdef.Error](err)
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, context.DeadlineExceeded):
		return history.Unknown
	case e == nil:
		return history.Failed
	}
	if lifecycle.Ended(err) {
		return history.Ended
	}
	switch e.Code {
	case "already_running":
		return history.Awake
	case "already_paused", "not_running", "not_resumable":
		return history.Asleep
	case "sandbox_create_failed", "sandbox_terminated":
		return history.Ended
	}
	return history.Failed
}

// patience is how long the client waits for an answer.
func (o *observer) patience() (context.Context, context.CancelFunc) {
	if percent(o.rng, 85) {
		return context.WithCancel(o.s.srv.ctx)
	}
	return context.WithTimeout(o.s.srv.ctx, between(o.rng, time.Microsecond, oneOf(o.rng, time.Millisecond, time.Second)))
}

func (o *observer) duration() time.Duration {
	return between(o.rng, time.Microsecond, oneOf(o.rng, 10*time.Millisecond, 500*time.Millisecond, 3*time.Second)).Truncate(time.Microsecond)
}

func (o *observer) create(b *seenBox) {
	ctx, cancel := o.patience()
	defer cancel()
	req := CreateRequest{Template: "test", Settings: b.Settings}
	req.Config.Metadata = map[string]string{"number": strconv.Itoa(slices.Index(o.s.boxes, b))}
	done := o.call(b, history.Create, 0)
	sb, err := o.s.srv.s.Create(ctx, req)
	done(err, serving(sb.Record))
}

// serving notes what an answer says of a sandbox that runs.
func serving(r lifecycle.Record) func(op *history.Op) {
	return func(op *history.Op) { op.Generation, op.End = r.Generation, r.EndAt }
}

func (o *observer) once(b *seenBox) {
	ctx, cancel := o.patience()
	defer cancel()
	s := o.s.srv.s
	switch n := o.rng.IntN(1000); {
	case n < 350:
		o.visit(ctx, b)
	case n < 530:
		done := o.call(b, history.Read, 0)
		sb, err := s.Find(ctx, b.id)
		done(err, func(op *history.Op) { op.See(sb.Record) })
	case n < 660:
		done := o.call(b, history.Pause, 0)
		done(s.Pause(ctx, b.id, PauseRequest{}), nil)
	case n < 750:
		d := o.duration()
		done := o.call(b, history.Resume, d)
		sb, err := s.Resume(ctx, b.id, WakeRequest{Timeout: d})
		done(err, serving(sb.Record))
	case n < 860:
		d := o.duration()
		done := o.call(b, history.Connect, d)
		got, err := s.Connect(ctx, b.id, WakeRequest{Timeout: d})
		done(err, serving(got.Sandbox.Record))
	case n < 990:
		d := o.duration()
		done := o.call(b, history.SetTimeout, d)
		sb, err := s.SetTimeout(ctx, b.id, d, "")
		done(err, serving(sb.Record))
	default:
		o.kill(ctx, b)
	}
}

func (o *observer) kill(ctx context.Context, b *seenBox) {
	done := o.call(b, history.Kill, 0)
	done(o.s.srv.s.Kill(ctx, b.id, ""), nil)
}

// visit gets a lease, and some time later counts.
func (o *observer) visit(ctx context.Context, b *seenBox) {
	done := o.call(b, history.Access, 0)
	lease, err := o.s.srv.s.Acquire(ctx, b.id, Access{Port: 8000, Stream: percent(o.rng, 30)})
	if err != nil {
		done(err, nil)
		return
	}
	done(nil, func(op *history.Op) { op.Generation = lease.Generation })
	cut := o.call(b, history.Cut, 0)
	defer lease.Release()
	if percent(o.rng, 50) {
		time.Sleep(between(o.rng, 0, oneOf(o.rng, time.Millisecond, 200*time.Millisecond)))
	}
	done = o.call(b, history.Count, 0)
	n, err := askThrough(o.s.srv.ctx, lease)
	if errors.Is(err, errCut) { // it was not served
		cut(nil, func(op *history.Op) { op.Generation = lease.Generation })
		return
	}
	done(err, func(op *history.Op) { op.Generation, op.Count = lease.Generation, n })
}
