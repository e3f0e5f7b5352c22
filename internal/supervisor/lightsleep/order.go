package lightsleep

import (
	"container/heap"
	"time"
)

// holder is what an API key holds.
type holder struct {
	key      string
	sleepers []*Sleeper
	bytes    int64
	index    int // in holders
}

// held returns how many bytes a key holds. One that holds nothing has no holder.
func (h *holder) held() int64 {
	if h == nil {
		return 0
	}
	return h.bytes
}

// holders implements heap.Interface. Who holds most is in front.
type holders []*holder

func (h holders) Len() int           { return len(h) }
func (h holders) Less(i, j int) bool { return h[i].bytes > h[j].bytes }
func (h holders) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *holders) Push(x any) {
	n := x.(*holder)
	n.index = len(*h)
	*h = append(*h, n)
}

// Pop implements heap.Interface. It returns the holder.
func (h *holders) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}

// mostLocked returns the key that gives way where there is no room for all, to a new
// one of key: that which holds most, or key itself where no other holds more. So no key
// can push out what keys hold that hold less.
func (r *Room) mostLocked(key string) *holder {
	if own := r.keys[key]; own.held() >= r.holders[0].bytes {
		return own
	}
	return r.holders[0]
}

// score says who of a key goes first, the largest: large ones give back most, and who
// has slept for long is likely to sleep on.
func (s *Sleeper) score(now time.Time) float64 {
	return float64(s.Memory) * now.Sub(s.Since).Seconds()
}

// going lets runtimes go, as many as one call wants. The order of those of a key is
// found when it is first needed, and holds for that call: it changes with time.
type going struct {
	r     *Room
	now   time.Time
	lines map[*holder]*line
	but   *Sleeper // who does not go; nil for nobody
}

func (r *Room) goingLocked() *going { return &going{r: r, now: time.Now()} }

// next lets the first one of a key go.
func (g *going) next(h *holder, why Why) *Sleeper {
	l := g.lines[h]
	if l == nil {
		l = newLine(h, g.now, g.but)
		if g.lines == nil {
			g.lines = map[*holder]*line{}
		}
		g.lines[h] = l
	}
	s := heap.Pop(l).(place).Sleeper
	g.r.letGoLocked(s, why, g.now)
	return s
}

// line implements heap.Interface. Who goes first is in front.
type line []place

type place struct {
	score float64
	*Sleeper
}

func newLine(h *holder, now time.Time, but *Sleeper) *line {
	l := make(line, 0, len(h.sleepers))
	for _, s := range h.sleepers {
		if s != but {
			l = append(l, place{s.score(now), s})
		}
	}
	heap.Init(&l)
	return &l
}

func (l line) Len() int { return len(l) }

// Less compares the memory of those that have just come, whose scores are all 0.
func (l line) Less(i, j int) bool {
	if l[i].score != l[j].score {
		return l[i].score > l[j].score
	}
	return l[i].Memory > l[j].Memory
}

func (l line) Swap(i, j int) { l[i], l[j] = l[j], l[i] }

// Push implements heap.Interface. Nobody comes while others go.
func (l *line) Push(any) { panic("internal error: a line of runtimes grows") }

// Pop implements heap.Interface. It returns the place.
func (l *line) Pop() any {
	old := *l
	last := old[len(old)-1]
	*l = old[:len(old)-1]
	return last
}
