package mitos

import (
	"reflect"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
)

const (
	// waitFor is how long the create of a sandbox may be behind that of its template.
	waitFor = 60 * time.Second
	// keepFor is how long what was said of a template holds after the last word.
	keepFor = 24 * time.Hour
	// tidyEvery is how often it is looked which have outlived that, or their template.
	tidyEvery = time.Minute
	// maxPostures is of how many templates an API key may say something. The next one
	// takes the place of the one that was spoken of longest ago.
	maxPostures = 256
	// postureCost is what one takes besides its texts.
	postureCost = 1 << 10
)

// postures are what API keys have said of templates, the last word of each.
//
// The SDK says it before every create, in a call of its own. Two creates at once
// that say different things could get each other's; so the second is refused
// until the first has been made, or for a minute.
type postures struct {
	room    *held.Room
	missing func(key, template string) bool // reports whether a template is gone

	mu   sync.Mutex
	all  map[templateOf]*posted
	of   map[string]int // how many, by key
	tidy time.Time
}

type templateOf struct{ key, template string }

type posted struct {
	posture
	room    *held.Share
	waiting int // creates that are to come
	at      time.Time
}

func newPostures(room *held.Room, missing func(key, template string) bool) *postures {
	return &postures{room: room, missing: missing, all: map[templateOf]*posted{}, of: map[string]int{}}
}

// cost is what it takes to keep.
func (p posture) cost(template string) int {
	n := postureCost + len(template)
	for _, rule := range p.allow {
		n += len(rule) + 16
	}
	return n
}

func (ps *postures) set(key, template string, p posture, now time.Time) error {
	ps.clean(now)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	as := templateOf{key, template}
	old := ps.all[as]
	waiting := 0
	if old != nil {
		same := reflect.DeepEqual(old.posture, p)
		if !same && old.waiting > 0 && now.Sub(old.at) < waitFor {
			return errdef.New(errdef.Exhausted, "template_differs", "template %q was given another network or other resources just now, and the sandbox that these are for is not made yet", template).
				WithRemedy("try again in a moment; for sandboxes of two kinds at once give the template a second name").
				With("retry_after_ms", waitFor.Milliseconds())
		}
		if same {
			waiting = old.waiting
		}
		ps.dropLocked(as)
	}
	if ps.of[key] >= maxPostures {
		ps.dropLocked(ps.oldestLocked(key))
	}
	room := ps.room.Record(key)
	if !room.Grow(p.cost(template)) {
		return errdef.New(errdef.Exhausted, "too_much_kept", "as much is kept for this API key, or for all, as may be").
			WithRemedy("say less of a template, or try again later")
	}
	ps.all[as] = &posted{p, room, waiting + 1, now}
	ps.of[key]++
	return nil
}

func (ps *postures) oldestLocked(key string) (oldest templateOf) {
	for as, p := range ps.all {
		if as.key == key && (oldest.key == "" || p.at.Before(ps.all[oldest].at)) {
			oldest = as
		}
	}
	return oldest
}

func (ps *postures) dropLocked(as templateOf) {
	if p := ps.all[as]; p != nil {
		p.room.Free()
		delete(ps.all, as)
		if ps.of[as.key]--; ps.of[as.key] == 0 {
			delete(ps.of, as.key)
		}
	}
}

// clean drops, now and then, what is old or is of templates that are gone.
func (ps *postures) clean(now time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if now.Sub(ps.tidy) < tidyEvery {
		return
	}
	ps.tidy = now
	for as, p := range ps.all {
		if now.Sub(p.at) > keepFor || ps.missing(as.key, as.template) {
			ps.dropLocked(as)
		}
	}
}

// use returns what holds for a new sandbox, and false if nothing was said.
func (ps *postures) use(key, template string) (posture, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[templateOf{key, template}]
	if p == nil {
		return posture{}, false
	}
	p.waiting = max(0, p.waiting-1)
	return p.posture, true
}
