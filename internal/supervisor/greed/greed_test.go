package greed

import (
	"errors"
	"testing"
	"time"
)

// program is a Runtime that would use so many processors if it could.
type program struct {
	wants    float64
	used     time.Duration
	confined int
	yields   bool
	told     int // how often
	read     int // how often it was measured
	broken   error
}

func (p *program) CPUTime() (time.Duration, error) {
	p.read++
	return p.used, p.broken
}

func (p *program) Confine(n int) error {
	p.confined = n
	p.told++
	return p.broken
}

func (p *program) Yield(yield bool) error {
	p.yields = yield
	p.told++
	return p.broken
}

const every = time.Second

// host runs programs, and has a Watch look once a second.
type host struct {
	t    *testing.T
	w    *Watch
	now  time.Time
	runs []Running
	busy time.Duration
}

func newHost(t *testing.T, processors int) *host {
	h := unseenHost(t, processors)
	h.look(1)
	return h
}

func unseenHost(t *testing.T, processors int) *host {
	h := &host{t: t, now: time.Unix(1e9, 0)}
	h.w = New(processors, func() (time.Duration, error) { return h.busy, nil })
	return h
}

func (h *host) add(key string, wants float64) *program {
	p := &program{wants: wants}
	h.runs = append(h.runs, Running{key, p})
	return p
}

func (h *host) look(times int) {
	h.t.Helper()
	for range times {
		h.now = h.now.Add(every)
		for _, r := range h.runs {
			p := r.Runtime.(*program)
			gets := p.wants
			if p.confined > 0 {
				gets = min(gets, float64(p.confined))
			}
			p.used += time.Duration(gets * float64(every))
			h.busy += time.Duration(gets * float64(every))
		}
		h.w.Look(h.now, h.runs, func(r Running, err error) {
			if r.Runtime.(*program).broken == nil {
				h.t.Errorf("%s: %v", r.Key, err)
			}
		})
	}
}

func (h *host) want(what string, p *program, confined int, yields bool) {
	h.t.Helper()
	if p.confined != confined || p.yields != yields {
		h.t.Errorf("%s: confined to %d processors, and yields %t; want %d, %t", what, p.confined, p.yields, confined, yields)
	}
}

// TestGreedyBesideAnother has a key that takes all processors yield, and keeps it off
// some while another key's sandbox runs.
func TestGreedyBesideAnother(t *testing.T) {
	h := newHost(t, 4)
	greedy := h.add("a", 3.9)
	h.look(10)
	h.want("alone", greedy, 0, true)
	modest := h.add("b", 0.1)
	h.look(1)
	h.want("as soon as there is another", greedy, 3, true)
	h.look(20)
	h.want("for as long as it wants more", greedy, 3, true)
	h.want("the other", modest, 0, false)
	if greedy.told != 2 || modest.told != 0 {
		t.Errorf("told %d and %d times, want twice and never", greedy.told, modest.told)
	}
	h.runs = h.runs[:1]
	h.look(1)
	h.want("alone again", greedy, 0, true)
}

// TestGreedyTogether: many sandboxes of one key are greedy if they are so
// together, and one that starts later steps back with them.
func TestGreedyTogether(t *testing.T) {
	h := newHost(t, 2)
	h.add("b", 0.2)
	first, second := h.add("a", 0.7), h.add("a", 0.7)
	h.look(2)
	h.want("the first", first, 1, true)
	h.want("the second", second, 1, true)
	third := h.add("a", 0)
	h.look(1)
	h.want("one that started later", third, 1, true)
}

// TestTwoGreedy: of two greedy keys neither yields, because the kernel would divide
// the time by sandboxes; and one does again when the other is done.
func TestTwoGreedy(t *testing.T) {
	h := newHost(t, 4)
	first := h.add("a", 3)
	h.look(2)
	h.want("the only one", first, 0, true)
	second := h.add("b", 3)
	h.look(2)
	h.want("the first of two", first, 3, false)
	h.want("the second of two", second, 3, false)
	second.wants = 0
	h.look(calm + 1)
	h.want("the only one again", first, 3, true)
	h.want("one that is calm", second, 0, false)
}

// TestCalmDown gives back what a key does not need any more, but not for one
// quiet look.
func TestCalmDown(t *testing.T) {
	h := newHost(t, 2)
	h.add("b", 0.2)
	p := h.add("a", 2)
	h.look(2)
	p.wants = 0.1
	h.look(calm - 1)
	h.want("quiet for a while", p, 1, true)
	p.wants = 2
	h.look(1)
	p.wants = 0.1
	h.look(calm - 1)
	h.want("quiet again", p, 1, true)
	h.look(1)
	h.want("quiet for long", p, 0, false)
}

// TestModest leaves keys alone that fit beside the reserve.
func TestModest(t *testing.T) {
	for processors, wants := range map[int]float64{1: 0.7, 2: 0.7, 4: 2.2, 16: 8.9} {
		h := newHost(t, processors)
		h.add("b", 0.3*float64(processors))
		p := h.add("a", wants)
		h.look(10)
		h.want("modest", p, 0, false)
	}
}

// TestOneProcessor has no reserve; but who takes all of it yields.
func TestOneProcessor(t *testing.T) {
	h := newHost(t, 1)
	h.add("b", 0.1)
	p := h.add("a", 0.9)
	h.look(2)
	h.want("greedy", p, 0, true)
}

// TestIdleHost measures no sandbox while the host has nothing to do.
func TestIdleHost(t *testing.T) {
	h := newHost(t, 4)
	p := h.add("a", 1)
	h.look(100)
	if p.read > 0 {
		t.Errorf("it was measured %d times", p.read)
	}
	p.wants = 4
	h.look(2) // the first one only sees where the counters stand
	h.want("greedy", p, 0, true)
}

// TestFoundConfined lifts at its start what a server before this one has left, also
// where there is nobody else.
func TestFoundConfined(t *testing.T) {
	h := unseenHost(t, 2)
	p := h.add("a", 2)
	p.confined, p.yields = 1, true
	h.look(1)
	h.want("found", p, 0, false)
}

// TestBroken goes on with the others where one has ended.
func TestBroken(t *testing.T) {
	h := newHost(t, 2)
	h.add("b", 0.2)
	gone, stays := h.add("a", 1), h.add("a", 2)
	h.look(1)
	gone.broken = errors.New("no such cgroup")
	h.look(1)
	h.want("what stays", stays, 1, true)
}

// TestToldAgain: what cannot be lifted at first is lifted later, on an idle host too.
func TestToldAgain(t *testing.T) {
	h := newHost(t, 2)
	p := h.add("a", 2)
	h.look(2)
	h.want("greedy", p, 0, true)
	p.wants, p.broken = 0, errors.New("busy")
	h.look(calm + 5)
	p.broken, p.yields = nil, true // which the attempts that failed did not lift
	h.look(1)
	h.want("later", p, 0, false)
}

// TestBusy reads what the kernel says, and refuses what it does not understand.
func TestBusy(t *testing.T) {
	got, err := parseBusy("cpu  10 2 30 1000 200 4 5 6 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	if want := 570 * time.Millisecond; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	for _, text := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu 1 2 x 4 5 6 7 8 9"} {
		if _, err := parseBusy(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
	if got, err := Busy(); err != nil || got <= 0 {
		t.Errorf("this host was busy for %s, %v", got, err)
	}
}
