package lightsleep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const gib = int64(1) << 30

// machine is what a room sees, and what the tests change.
type machine struct {
	mu   sync.Mutex
	host Host
	err  error
	read int // how often it was looked at
}

func (m *machine) look() (Host, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read++
	return m.host, m.err
}

func (m *machine) set(change func(*machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

// world is a room, and what became of the runtimes that were in it.
type world struct {
	t       *testing.T
	m       *machine
	r       *Room
	mu      sync.Mutex
	ended   []string // name and reason, in the order of the calls
	sleeper map[string]*Sleeper
}

// newWorld has a machine with 100 GiB of memory, of which 40 are available.
func newWorld(t *testing.T, o Options) *world {
	w := &world{t: t, m: &machine{host: Host{Memory: 100 * gib, Available: 40 * gib}}, sleeper: map[string]*Sleeper{}}
	o.Look = w.m.look
	if o.Most == 0 {
		o.Most = time.Hour
	}
	w.r = New(o)
	return w
}

// add adds a runtime whose name begins with its key, such as a1.
func (w *world) add(name string, bytes int64) bool {
	s := &Sleeper{Key: name[:1], Memory: bytes, Release: func(why Why) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = append(w.ended, name+" "+string(why))
	}}
	w.sleeper[name] = s
	return w.r.Add(s)
}

func (w *world) must(name string, bytes int64) {
	w.t.Helper()
	if !w.add(name, bytes) {
		w.t.Fatalf("there is no room for %s", name)
	}
}

// want says what has been let go since it was called last, in any order.
func (w *world) want(what string, ended ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.ended)
	slices.Sort(ended)
	if !slices.Equal(w.ended, ended) {
		w.t.Errorf("%s: let go are %q; want %q", what, w.ended, ended)
	}
	w.ended = nil
}

// run runs the room until the test ends.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { w.r.Run(ctx); close(done) }()
	return func() { cancel(); <-done }
}

// TestOff: without a time to stay nothing stays.
func TestOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Most: -1, Memory: gib})
		stop := w.run()
		if w.r.On() || w.add("a", 1) {
			t.Error("a runtime stays in a room that is off")
		}
		stop()
		w.want("off")
		if w.m.read > 0 {
			t.Errorf("the machine was looked at %d times", w.m.read)
		}
	})
}

// TestAdd: what a room refuses, on a machine with 40 of 100 GiB available.
func TestAdd(t *testing.T) {
	for name, tt := range map[string]struct {
		memory, floor int64
		available     int64
		bytes         int64
		err           error
		want          bool
	}{
		"half of the share":           {memory: 8 * gib, available: 40 * gib, bytes: 4 * gib, want: true},
		"more than half of the share": {memory: 8 * gib, available: 40 * gib, bytes: 4*gib + 1},
		"no memory that is known":     {memory: 8 * gib, available: 40 * gib},
		"at the floor":                {memory: 8 * gib, floor: gib, available: gib, bytes: 1, want: true},
		"below the floor":             {memory: 8 * gib, floor: gib, available: gib - 1, bytes: 1},
		"at a tenth":                  {memory: 8 * gib, available: 10 * gib, bytes: 1, want: true},
		"below a tenth":               {memory: 8 * gib, available: 10*gib - 1, bytes: 1},
		// A quarter of 35 GiB and the new one's 5 is 10, of which a key has half.
		"half of a quarter":           {available: 35 * gib, bytes: 5 * gib, want: true},
		"more than half of a quarter": {available: 35 * gib, bytes: 5*gib + 8},
		"unknown machine":             {memory: 8 * gib, available: 40 * gib, bytes: 1, err: errors.New("no /proc")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{Memory: tt.memory, Floor: tt.floor})
			w.m.set(func(m *machine) { m.host.Available, m.err = tt.available, tt.err })
			if got := w.add("a", tt.bytes); got != tt.want {
				t.Errorf("added is %t, want %t", got, tt.want)
			}
			want := int64(0)
			if tt.want {
				want = tt.bytes
			}
			if n, bytes := w.r.Total(); bytes != want || w.r.Of("a") != want || n > 1 {
				t.Errorf("%d hold %d bytes, those of the key %d; want %d", n, bytes, w.r.Of("a"), want)
			}
		})
	}
}

// TestShareOfWhatIsAvailable counts what is in the room as available.
func TestShareOfWhatIsAvailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.must("a1", 4*gib) // a quarter of 44, of which a key has half
		w.m.set(func(m *machine) { m.host.Available = 38 * gib })
		w.must("a2", gib) // (38+4+1)/4/2 is 5.4
		w.want("half of a quarter of 43")
		w.m.set(func(m *machine) { m.host.Available = 30 * gib })
		w.must("a3", gib/4) // (30+5.25)/4/2 is 4.4
		w.want("half of a quarter of 35", "a1 share")
	})
}

// TestOrder: of a key those go first that are large and have slept for long, and no
// more than are needed.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 200})
		w.must("a1", 10)
		time.Sleep(8 * time.Minute) // 10 × 10 minutes in the end
		w.must("a2", 40)            // 40 × 2
		time.Sleep(time.Minute)
		w.must("a3", 50) // 50 × 1
		time.Sleep(time.Minute)
		w.must("a4", 10)
		w.want("the longest asleep", "a1 share")
		w.must("a5", 30)
		w.want("the largest that has slept", "a2 share")
		w.must("a6", 95)
		w.want("as many as needed", "a3 share", "a4 share", "a5 share")
		if got := w.r.Released(); !maps.Equal(got, map[Why]int64{ByShare: 5}) {
			t.Errorf("released are %v", got)
		}
	})
}

// TestOrderOfTheNew: of those that come at the same moment the larger goes first.
func TestOrderOfTheNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 200})
		w.must("a1", 20)
		w.must("a2", 60)
		w.must("a3", 20)
		w.must("a4", 30)
		w.want("the largest", "a2 share")
	})
}

// TestKeyHasHalf: a key pushes out its own alone, however much it brings, and the
// empty one is a key.
func TestKeyHasHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 100})
		w.must("b1", 30)
		time.Sleep(time.Hour / 2)
		for i := range 50 {
			w.must(fmt.Sprintf("a%d", i), 10)
		}
		if a, b := w.r.Of("a"), w.r.Of("b"); a != 50 || b != 30 {
			t.Errorf("a holds %d, b %d; want 50 and 30", a, b)
		}
		for i := range 3 {
			if !w.r.Add(&Sleeper{Memory: 20, Release: func(Why) {}}) {
				t.Errorf("no room for number %d without a key", i)
			}
		}
		if none, a, b := w.r.Of(""), w.r.Of("a"), w.r.Of("b"); none != 40 || a != 30 || b != 30 {
			t.Errorf("those without a key hold %d, a %d, b %d; want 40, 30 and 30", none, a, b)
		}
	})
}

// TestMostGivesWay: where all of the share is used up, who holds most gives way, and a
// key that holds as much as any gives way to its own.
func TestMostGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 100})
		w.must("b1", 30)
		time.Sleep(time.Minute)
		w.must("c1", 20)
		w.must("a1", 25)
		w.must("a2", 25)
		time.Sleep(time.Second)
		w.must("c2", 5)
		w.want("a holds most, although b's has slept longer", "a1 share")
		w.must("a3", 15)
		w.must("c3", 5)
		w.want("all is used up") // a 40, b 30, c 30
		w.must("d1", 25)
		w.want("a holds most again", "a2 share") // a 15, b 30, c 30, d 25
		w.must("c4", 1)
		w.want("of those that hold most, the own", "c1 share")
		w.must("d2", 20)
		w.want("b holds most now", "b1 share")
	})
}

// TestOwnGivesWay: of two keys that hold most, a new one of either pushes out its own.
func TestOwnGivesWay(t *testing.T) {
	for _, key := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Options{Memory: 100})
			for _, name := range []string{"a1", "b1", "a2", "b2", "c1"} {
				w.must(name, 20)
				time.Sleep(time.Minute)
			}
			w.must(key+"3", 10)
			w.want("of "+key, key+"1 share")
		})
	}
}

// TestFit lets those of one key go.
func TestFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 1000})
		w.must("b1", 90)
		w.must("a1", 10)
		w.must("a2", 30)
		w.must("a3", 20)
		w.r.Fit("a", 60, nil)
		w.want("it fits")
		w.r.Fit("a", 59, nil)
		w.want("the largest", "a2 key")
		w.r.Fit("a", -5, nil)
		w.want("all of them", "a1 key", "a3 key")
		w.r.Fit("a", 0, nil)
		w.r.Fit("x", 0, nil)
		w.want("none")
		if n, bytes := w.r.Total(); n != 1 || bytes != 90 || w.r.Of("b") != 90 || w.r.Of("a") != 0 {
			t.Errorf("%d are left with %d bytes", n, bytes)
		}
	})
}

// TestTake: who was taken out is not let go, and the other way round.
func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 100})
		w.must("a1", 20)
		w.must("a2", 30)
		a1, a2 := w.sleeper["a1"], w.sleeper["a2"]
		if a1.Since != time.Now() {
			t.Errorf("it sleeps since %s", a1.Since)
		}
		if !w.r.Take(a1) || w.r.Take(a1) {
			t.Error("it was not taken once")
		}
		w.r.Fit("a", 0, nil)
		if w.r.Take(a2) {
			t.Error("what was let go was taken")
		}
		w.want("let go", "a2 key")
		if w.r.Take(&Sleeper{}) {
			t.Error("what was never there was taken")
		}
		if !w.r.Add(a1) || !w.r.Take(a1) {
			t.Error("it cannot sleep again")
		}
	})
}

// TestAge lets each go when its time is up, to the instant.
func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Most: 5*time.Minute + 7*time.Millisecond, Memory: 1000}) // between the looks at the machine
		defer w.run()()
		w.must("a1", 1)
		time.Sleep(time.Minute)
		w.must("b1", 1)
		w.must("b2", 1)
		time.Sleep(time.Minute + 30*time.Millisecond)
		w.must("a2", 1)
		w.r.Take(w.sleeper["b2"])
		time.Sleep(3*time.Minute - 24*time.Millisecond)
		w.want("a moment before")
		time.Sleep(time.Millisecond)
		w.want("the first", "a1 age")
		time.Sleep(time.Minute - time.Millisecond)
		w.want("a moment before the second")
		time.Sleep(time.Millisecond)
		w.want("the second", "b1 age")
		time.Sleep(time.Hour)
		w.want("the last", "a2 age")
	})
}

// TestEmptyRoom looks at nothing while nobody is there.
func TestEmptyRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 1000})
		defer w.run()()
		for range 3 {
			w.must("a1", 1)
			time.Sleep(time.Second + lookEvery/2)
			if !w.r.Take(w.sleeper["a1"]) {
				t.Fatal("it is gone")
			}
			time.Sleep(time.Hour)
		}
		// One at the Add, ten in a second, and one after it to see that the room is empty.
		w.m.set(func(m *machine) {
			if m.read > 3*12 || m.read < 3*11 {
				t.Errorf("the machine was looked at %d times, want about 36", m.read)
			}
		})
	})
}

// TestFloor lets as many go as cover what is missing, and counts for a second what is
// on its way.
func TestFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 8 * gib})
		defer w.run()()
		w.must("b1", gib)
		w.must("a1", gib)
		w.must("a2", 2*gib)
		w.must("a3", gib/2)
		time.Sleep(time.Minute)
		w.want("enough is available")
		w.m.set(func(m *machine) { m.host.Available = 10*gib - 1 })
		time.Sleep(lookEvery)
		w.want("a byte is missing", "a2 pressure")
		time.Sleep(leaveTime - lookEvery/2)
		w.want("it is on its way")
		w.m.set(func(m *machine) { m.host.Available = 12*gib - 1 })
		time.Sleep(time.Minute)
		w.want("it is there")
		w.m.set(func(m *machine) { m.host.Available = 9*gib - gib/4 })
		time.Sleep(lookEvery)
		w.want("1.25 GiB is missing", "a1 pressure", "b1 pressure")
		time.Sleep(leaveTime + lookEvery)
		w.want("it never came", "a3 pressure")
		if got := w.r.Released()[ByPressure]; got != 4 {
			t.Errorf("%d were let go by pressure", got)
		}
	})
}

// TestStalled lets one go at each look at which tasks have waited for more than a tenth
// of the time, unless there is plenty of memory.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 1000})
		defer w.run()()
		wait := func(available int64, stalled time.Duration) {
			w.m.set(func(m *machine) { m.host.Available, m.host.Stalled = available, m.host.Stalled+stalled })
			time.Sleep(lookEvery)
		}
		w.m.set(func(m *machine) { m.host.Stalled = time.Hour })
		w.must("a1", 1)
		w.must("a2", 2)
		w.must("a3", 3)
		time.Sleep(lookEvery / 2) // between the looks
		wait(20*gib-1, 0)
		w.want("what was before does not count")
		wait(20*gib-1, lookEvery/mostStalled)
		w.want("a tenth")
		wait(20*gib-1, lookEvery/mostStalled+1)
		w.want("more than that", "a3 pressure")
		wait(20*gib-1, lookEvery)
		w.want("all of the time", "a2 pressure")
		wait(20*gib-1, 0)
		w.want("none of it")
		wait(20*gib, lookEvery)
		w.want("there is plenty")
	})
}

// TestBlind: while the machine cannot be looked at, nobody comes and nobody is let go
// for want of memory. The log says it once.
func TestBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		w := newWorld(t, Options{Memory: 1000, Most: time.Minute, Log: log.logger()})
		stop := w.run()
		w.must("a1", 1)
		w.m.set(func(m *machine) { m.err, m.host.Available = errors.New("no /proc"), 0 })
		time.Sleep(10 * time.Second)
		if w.add("a2", 1) {
			t.Error("one came")
		}
		w.want("blind")
		w.m.set(func(m *machine) { m.err = nil })
		time.Sleep(lookEvery)
		w.want("not blind", "a1 pressure")
		stop()
		if n := strings.Count(log.String(), "cannot be looked at"); n != 1 || !strings.Contains(log.String(), "can be looked at again") {
			t.Errorf("the log says it %d times:\n%s", n, log.String())
		}
	})
}

// TestStop: the end of the room lets all go, waits for that, and lets nobody in.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Memory: 1000})
		stop := w.run()
		w.must("a1", 1)
		w.must("b1", 1)
		var slow atomic.Bool
		w.r.Add(&Sleeper{Key: "c", Memory: 1, Release: func(Why) { time.Sleep(time.Second); slow.Store(true) }})
		stop()
		if !slow.Load() {
			t.Error("it did not wait")
		}
		w.want("at the end", "a1 stop", "b1 stop")
		if w.add("a2", 1) || w.r.Take(w.sleeper["a1"]) {
			t.Error("one came, or left twice")
		}
	})
}

// TestMonotonic: what the room measures with is no time of the clock.
func TestMonotonic(t *testing.T) {
	w := newWorld(t, Options{Memory: 1000})
	w.must("a1", 1)
	if since := w.sleeper["a1"].Since; !strings.Contains(since.String(), " m=") {
		t.Errorf("%s changes with the clock", since)
	}
}

// TestReleaseMayCall: Release runs without a lock held, and not within the call that
// causes it.
func TestReleaseMayCall(t *testing.T) {
	w := newWorld(t, Options{Memory: 100})
	var callers sync.Mutex
	done := make(chan struct{})
	s := &Sleeper{Key: "a", Memory: 50, Release: func(Why) {
		callers.Lock()
		defer callers.Unlock()
		w.r.Total()
		w.r.Fit("a", 1000, nil)
		close(done)
	}}
	callers.Lock()
	w.r.Add(s)
	w.r.Fit("a", 0, nil)
	callers.Unlock()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for itself")
	}
}

// TestAtRandom has many goroutines add, take and make room at once. Each runtime that
// was added leaves once, and what is held never is more than the share.
func TestAtRandom(t *testing.T) {
	const workers, turns, share = 8, 2000, 10_000
	for _, fixed := range []int64{share, 0} {
		m := &machine{host: Host{Memory: 100_000, Available: 4 * share, Stalled: 1}}
		r := New(Options{Most: 3 * time.Millisecond, Memory: fixed, Floor: share, Look: m.look})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.Run(ctx); close(done) }()
		var added, taken, released, lost atomic.Int64
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(w), 7))
				var mine []*Sleeper
				for range turns {
					switch rng.IntN(6) {
					case 0, 1, 2:
						left := new(atomic.Int64)
						s := &Sleeper{Key: string("abc"[rng.IntN(3)]), Memory: 1 + rng.Int64N(share/4)}
						s.Release = func(Why) {
							released.Add(1)
							if left.Add(1) != 1 {
								lost.Add(1)
							}
						}
						if r.Add(s) {
							added.Add(1)
							mine = append(mine, s)
						}
						if _, bytes := r.Total(); fixed > 0 && bytes > fixed {
							t.Errorf("%d bytes are held, of %d", bytes, fixed)
						}
						if key := r.Of(s.Key); fixed > 0 && key > fixed/2 {
							t.Errorf("%d bytes are held by one key, of %d", key, fixed/2)
						}
					case 3:
						if len(mine) > 0 {
							i := rng.IntN(len(mine))
							if r.Take(mine[i]) {
								taken.Add(1)
							}
							mine = slices.Delete(mine, i, i+1)
						}
					case 4:
						r.Fit(string("abc"[rng.IntN(3)]), rng.Int64N(share), nil)
					case 5:
						m.set(func(m *machine) {
							m.host.Available, m.host.Stalled = share-10+rng.Int64N(3*share), m.host.Stalled+time.Millisecond
						})
					}
				}
			})
		}
		wg.Wait()
		m.set(func(m *machine) { m.host.Available = 4 * share })
		for range 10 { // some are there at the end
			if r.Add(&Sleeper{Memory: 1, Release: func(Why) { released.Add(1) }}) {
				added.Add(1)
			}
		}
		cancel()
		<-done
		if n, bytes := r.Total(); n != 0 || bytes != 0 {
			t.Errorf("%d are left, with %d bytes", n, bytes)
		}
		var counted int64
		for _, n := range r.Released() {
			counted += n
		}
		if added.Load() == 0 || taken.Load() == 0 || added.Load() != taken.Load()+released.Load() || counted != released.Load() || lost.Load() > 0 {
			t.Errorf("%d added, %d taken, %d released, %d counted, %d released twice", added.Load(), taken.Load(), released.Load(), counted, lost.Load())
		}
		t.Logf("%d added, %d taken, released: %v", added.Load(), taken.Load(), r.Released())
	}
}

// TestAgainstAList compares who goes with what the rules say, worked out with nothing
// clever.
func TestAgainstAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const share = 1e9 // so that no two are the same
		rng := rand.New(rand.NewPCG(3, 4))
		w := newWorld(t, Options{Memory: share})
		var in []*Sleeper
		held := func(key string) (n int64) {
			for _, s := range in {
				if s.Key == key || key == "all" {
					n += s.Memory
				}
			}
			return n
		}
		first := func(key string) int {
			best := -1
			for i, s := range in {
				if s.Key == key && (best < 0 || float64(s.Memory)*time.Since(s.Since).Seconds() > float64(in[best].Memory)*time.Since(in[best].Since).Seconds()) {
					best = i
				}
			}
			return best
		}
		for turn := range 3000 {
			time.Sleep(time.Duration(1 + rng.Int64N(int64(time.Minute))))
			key, bytes := string("abcd"[min(rng.IntN(5), 3)]), 1+rng.Int64N(share/5)
			for held(key)+bytes > share/2 {
				i := first(key)
				in = slices.Delete(in, i, i+1)
			}
			for held("all")+bytes > share {
				most := key
				for _, other := range []string{"a", "b", "c", "d"} {
					if held(other) > held(most) {
						most = other
					}
				}
				i := first(most)
				in = slices.Delete(in, i, i+1)
			}
			name := fmt.Sprintf("%s%d", key, turn)
			w.must(name, bytes)
			in = append(in, w.sleeper[name])
			for _, s := range in {
				if s.age == nil {
					t.Fatalf("turn %d: one of %s is gone that should be there", turn, s.Key)
				}
			}
			if n, _ := w.r.Total(); n != len(in) {
				t.Fatalf("turn %d: %d are there, want %d", turn, n, len(in))
			}
		}
	})
}
