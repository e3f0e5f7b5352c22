package timers

import (
	"fmt"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"testing"
	"time"
	"unsafe"
)

// box has a deadline.
type box struct{ place Place }

func (b *box) Place() *Place { return &b.place }

// TestTimersAgainstAList sets, moves and clears deadlines at random, and
// compares what is due with a list that is sorted each time.
func TestTimersAgainstAList(t *testing.T) {
	type entry struct {
		when   time.Time
		pauses bool
	}
	rng := rand.New(rand.NewPCG(1, 2))
	tm := New[*box](nil)
	boxes := make([]*box, 50)
	for i := range boxes {
		boxes[i] = &box{}
	}
	model := map[*box]entry{}
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	seconds := rng.Perm(1_000_000) // no two deadlines are the same
	for range 20_000 {
		b := boxes[rng.IntN(len(boxes))]
		switch rng.IntN(4) {
		case 0:
			tm.Clear(b)
			delete(model, b)
		case 1, 2:
			e := entry{epoch.Add(time.Duration(seconds[0]) * time.Second), rng.IntN(2) == 0}
			seconds = seconds[1:]
			tm.Set(b, e.when, e.pauses)
			model[b] = e
		case 3:
			now := epoch.Add(time.Duration(rng.IntN(1_000_000)) * time.Second)
			var want *box
			for b, e := range model {
				if e.when.After(now) {
					continue
				}
				if o := model[want]; want == nil || o.pauses && !e.pauses || o.pauses == e.pauses && e.when.Before(o.when) {
					want = b
				}
			}
			if got := tm.due(now); got != want {
				t.Fatalf("due at %s: %+v, want %+v", now, model[got], model[want])
			}
			delete(model, want)
		}
	}
	// What is left comes in order.
	var left []entry
	for b := tm.due(epoch.AddDate(1, 0, 0)); b != nil; b = tm.due(epoch.AddDate(1, 0, 0)) {
		left = append(left, model[b])
		delete(model, b)
	}
	inOrder := slices.IsSortedFunc(left, func(x, y entry) int {
		switch {
		case x.pauses == y.pauses:
			return x.when.Compare(y.when)
		case y.pauses:
			return -1
		}
		return 1
	})
	if !inOrder || len(model) > 0 {
		t.Errorf("in order: %t; never due: %d", inOrder, len(model))
	}
}

// armAll gives every box a deadline, in random order.
func armAll(tm *Timers[*box], boxes []box) {
	now := time.Now()
	for i := range boxes {
		tm.Set(&boxes[i], now.Add(rand.N(24*time.Hour)), i%2 == 0)
	}
}

// TestDeadlineMemory holds that an armed deadline takes at most 64 bytes beside
// the record.
func TestDeadlineMemory(t *testing.T) {
	const n, most = 100_000, 64
	boxes := make([]box, n)
	tm := New[*box](nil)
	before := heapInUse()
	armAll(tm, boxes)
	each := float64(heapInUse()-before)/n + float64(unsafe.Sizeof(Place{}))
	goruntime.KeepAlive(boxes)
	goruntime.KeepAlive(tm)
	t.Logf("%.1f bytes for each of %d deadlines", each, n)
	if each > most {
		t.Errorf("an armed deadline takes %.1f bytes, want at most %d", each, most)
	}
}

func heapInUse() int64 {
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkRearm moves one of many deadlines.
func BenchmarkRearm(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tm, boxes := New[*box](nil), make([]box, n)
			armAll(tm, boxes)
			now, i := time.Now(), 0
			for b.Loop() {
				i = (i + 7919) % n
				tm.Set(&boxes[i], now.Add(rand.N(24*time.Hour)), i%2 == 0)
			}
		})
	}
}
