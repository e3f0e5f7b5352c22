package gvisor

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// Bounds of what is known of launches.
const (
	// demandFor is for how long an owner's last launch counts.
	demandFor = time.Minute
	// demandHalves is the time in which a launch comes to count half.
	demandHalves = 10 * time.Second
	// demandPeers is how many times as much as others an owner may launch and take the
	// last runtime that waits all the same.
	demandPeers = 1.5
)

// demand knows who has launched how much lately. Runtimes that wait are few, and who
// launches all the time would take every one of them, and have them be of use to nobody
// else: so those are served first who launch least. It is the pool's, under its lock.
type demand map[string]launches

// launches are those of one owner.
type launches struct {
	weight float64 // how many, the older the less, at the time of the last one
	last   time.Time
	shape  runtime.Spec // of the last one
}

// at returns what the launches of an owner weigh at a time.
func (l launches) at(now time.Time) float64 {
	return l.weight * math.Exp2(-now.Sub(l.last).Seconds()/demandHalves.Seconds())
}

// launched notes a launch. What the server launches for itself, to try whether it can, has
// no owner, and nobody leaves anything to it.
func (d demand) launched(owner string, shape runtime.Spec, now time.Time) {
	if owner == "" {
		return
	}
	maps.DeleteFunc(d, func(_ string, l launches) bool { return now.Sub(l.last) > demandFor })
	d[owner] = launches{d[owner].at(now) + 1, now, shape}
}

// several reports whether more than one owner has launched lately.
func (d demand) several() bool { return len(d) > 1 }

// mayTakeLast reports whether an owner whose launch was noted may take the last runtime
// that waits: nobody else launches a good deal less.
func (d demand) mayTakeLast(owner string, now time.Time) bool {
	before := d[owner].at(now) - 1
	for other, l := range d {
		if other != owner && before > demandPeers*l.at(now)+1 {
			return false
		}
	}
	return true
}

// shapes returns what runtimes that wait should be like: those of the owners who launch
// least come first.
func (d demand) shapes(now time.Time) (shapes []runtime.Spec) {
	owners := slices.SortedFunc(maps.Keys(d), func(a, b string) int {
		return cmp.Or(cmp.Compare(d[a].at(now), d[b].at(now)), d[b].last.Compare(d[a].last), cmp.Compare(a, b))
	})
	for _, owner := range owners {
		shapes = append(shapes, d[owner].shape)
	}
	return shapes
}
