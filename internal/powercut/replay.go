package powercut

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/testmode"
)

var cutsFlag = flag.Int("powercut.cuts", 0, "where to cut the power, in each test; 0 for as many places as the test says")

// raceEnabled is set where the race detector makes everything slow.
var raceEnabled bool

// Replay cuts the power at cuts places, chosen by chance, and calls check for
// each: once with a directory that has nothing but what was durable, and once
// with some more. said is what the process had said before the cut, by lines.
func (r *Recording) Replay(t *testing.T, cuts int, check func(t *testing.T, dir string, said []string)) {
	seed := testmode.Seed()
	random := rand.New(rand.NewPCG(seed, 0))
	if raceEnabled && !testmode.All() {
		cuts = max(cuts/10, min(cuts, 10))
	}
	places := r.places(random, cmp.Or(*cutsFlag, cuts))
	t.Logf("seed %d: %d calls, cut at %d places", seed, len(r.calls), len(places))
	base, err := os.MkdirTemp("/dev/shm", "drowse-powercut-") // memory: what is checked is synced often
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	s := state{durable: r.before.clone(everything(r.before))}
	for _, place := range places {
		for s.at < place {
			s.step(r.calls[s.at])
		}
		last := "the start"
		if place > 0 {
			last = r.calls[place-1].String()
		}
		for i, kept := range [][]change{nil, s.some(random)} {
			dir := filepath.Join(base, fmt.Sprint(place, "-", i))
			t.Run(fmt.Sprint(place, " of ", len(r.calls), " with ", len(kept), " of ", len(s.pending), " changes"), func(t *testing.T) {
				t.Cleanup(func() {
					_ = os.RemoveAll(dir)
					if t.Failed() {
						t.Logf("cut after %s; of what was not durable, these were kept:%s", last, list(kept))
					}
				})
				if err := s.with(kept).store(dir); err != nil {
					t.Fatal(err)
				}
				check(t, dir, s.said())
			})
		}
		if t.Failed() {
			return // one cut is enough to look at
		}
	}
}

// places returns the calls before which to cut. Half of them are around a sync or
// after a promise, where it matters most.
func (r *Recording) places(random *rand.Rand, n int) []int {
	all := random.Perm(len(r.calls) + 1)
	if n >= len(all) {
		slices.Sort(all)
		return all
	}
	chosen := map[int]bool{}
	for _, at := range all {
		after := at > 0 && (r.calls[at-1].syncs() || r.calls[at-1].said != "")
		if before := at < len(r.calls) && r.calls[at].syncs(); len(chosen) < n/2 && (before || after) {
			chosen[at] = true
		}
	}
	for _, at := range all {
		if len(chosen) < n {
			chosen[at] = true
		}
	}
	return slices.Sorted(maps.Keys(chosen))
}

func (c call) syncs() bool { return c.all || c.synced != nil }

// state is what is durable at a place in a recording, and what is not.
type state struct {
	at      int // calls that have returned
	durable *disk
	pending []pending
	output  strings.Builder
}

// pending is a change that may be lost.
type pending struct {
	change
	call int // which made it
}

// step lets one call more happen.
func (s *state) step(c call) {
	for _, change := range c.changes {
		s.pending = append(s.pending, pending{change, s.at})
	}
	if c.syncs() {
		s.pending = slices.DeleteFunc(s.pending, func(p pending) bool {
			covered := p.call < c.began && (c.all || p.of() == c.synced)
			if covered {
				p.apply(s.durable)
			}
			return covered
		})
	}
	s.output.WriteString(c.said)
	s.at++
}

// said returns the whole lines of output.
func (s *state) said() []string { return wholeLines(s.output.String()) }

func wholeLines(output string) []string {
	lines := strings.Split(output, "\n")
	return lines[:len(lines)-1]
}

// Said returns all that the process said, by lines.
func (r *Recording) Said() []string {
	var output strings.Builder
	for _, c := range r.calls {
		output.WriteString(c.said)
	}
	return wholeLines(output.String())
}

// with returns the durable contents with some changes more.
func (s *state) with(kept []change) *disk {
	changed := map[*node]bool{}
	for _, c := range kept {
		changed[c.of()] = true
	}
	d := s.durable.clone(changed)
	for _, c := range kept {
		c.apply(d)
	}
	return d
}

// some returns what a disk may have taken by chance of the pending changes:
// nearly nothing up to all of it.
func (s *state) some(random *rand.Rand) []change {
	likely := []float64{0.1, 0.5, 0.9, 1}[random.IntN(4)]
	var kept []change
	for _, p := range s.pending {
		kept = append(kept, part(p.change, random, likely)...)
	}
	return kept
}

// part returns what was taken of one change.
func part(c change, random *rand.Rand, likely float64) []change {
	w, ok := c.(write)
	if !ok || random.Float64() < likely/2 {
		if random.Float64() < likely {
			return []change{c}
		}
		return nil
	}
	var kept []change
	if random.Float64() < likely {
		kept = append(kept, grow{w})
	}
	for _, sector := range w.sectors() {
		if random.Float64() < likely {
			kept = append(kept, sector)
		}
	}
	return kept
}

func everything(d *disk) map[*node]bool {
	all := map[*node]bool{}
	for n := range d.files {
		all[n] = true
	}
	return all
}

// list writes changes, the last ones if there are many.
func list(changes []change) string {
	const most = 40
	var b strings.Builder
	if n := len(changes) - most; n > 0 {
		fmt.Fprintf(&b, "\n\t%d others", n)
		changes = changes[n:]
	}
	for _, c := range changes {
		fmt.Fprintf(&b, "\n\t%s", c)
	}
	return b.String()
}
