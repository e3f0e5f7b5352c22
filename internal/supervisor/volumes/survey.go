package volumes

import (
	"context"
	"math"
	"time"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
)

// How volumes are counted in the background.
const (
	// surveyShare is the part of the time, inverted, for which volumes are counted at
	// most, and surveyRest how long there is none at least after one.
	surveyShare = 20
	surveyRest  = 50 * time.Millisecond
	// surveyAgain is how old a count is at least before the next one of that volume.
	surveyAgain = time.Minute
	// mostCounted is how many names of a volume are counted, which bounds the time and
	// the memory that it takes.
	mostCounted = 1_000_000
)

// VolumeUse returns what the files of a volume took of the disk at a time, at which they
// were last counted to their end; the zero time where that is not known.
func (r *Room) VolumeUse(id string) (bytes int64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.disk[id]
	if d == nil {
		return 0, time.Time{}
	}
	return d.used, d.usedAt
}

// VolumeChanged notes that the files of a volume may have changed, other than by a
// sandbox.
func (r *Room) VolumeChanged(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.disk[id]; d != nil {
		d.changes++
	}
}

// Survey counts the files of volumes until ctx ends, one volume at a time: of those
// that may have changed since they were counted, and that nothing else has measured
// lately. It looks for them every so often.
func (r *Room) Survey(ctx context.Context, every time.Duration) {
	for rest := every; insist.Sleep(ctx, rest); {
		begin := time.Now()
		rest = every
		if r.surveyNext(ctx, begin) {
			rest = max(surveyRest, surveyShare*time.Since(begin))
		}
	}
}

// surveyNext counts the volume that has waited longest; false if none is to be counted.
func (r *Room) surveyNext(ctx context.Context, now time.Time) bool {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	id, d, enough := r.due(now, stop)
	if d == nil {
		return false
	}
	taken, err := r.measure(ctx, id, d, enough)
	if err != nil {
		r.o.Log.Debug("volume could not be counted", "volume", id, "err", err) // it may just have been deleted
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d.stop = nil
	switch {
	case err != nil:
		d.changes++
	case taken.Exceeds(enough):
		d.used, d.usedAt = 0, time.Time{} // it has outgrown what was counted before
	}
	return true
}

// due returns the volume that is to be counted now, and how much is enough of it; nil if
// there is none. Stop ends the count if the volume is deleted.
func (r *Room) due(now time.Time, stop context.CancelFunc) (id string, d *usage, enough layer.Usage) {
	r.mu.Lock()
	none := len(r.byID) == 0
	r.mu.Unlock()
	if none { // who writes is asked of every sandbox
		return "", nil, enough
	}
	written := r.o.Written()
	r.mu.Lock()
	defer r.mu.Unlock()
	var waits time.Time
	for each, v := range r.byID {
		if !r.owns(v) {
			continue
		}
		u := r.usageOf(each)
		if written[each] {
			u.changes++
		}
		last := u.tried
		if u.usedAt.After(last) {
			last = u.usedAt
		}
		if u.changes != u.counted && now.Sub(last).Abs() >= surveyAgain && (d == nil || last.Before(waits)) {
			id, d, waits = each, u, last
		}
	}
	if d == nil {
		return "", nil, enough
	}
	d.tried, d.counted, d.stop = now, d.changes, stop
	if written[id] {
		d.changes++ // also after what the count sees
	}
	// What is known of one with a limit says how much room it has: it is counted until
	// there is none.
	enough = layer.Usage{Bytes: math.MaxInt64, Files: r.mostCounted, NameBytes: math.MaxInt64}
	if _, limit, _ := r.diskOf(id); limit != (layer.Usage{}) {
		enough = enough.Most(limit)
	}
	return id, d, enough
}

// usageOf returns what is known of a volume that there is. The caller holds mu.
func (r *Room) usageOf(id string) *usage {
	if r.disk[id] == nil {
		r.disk[id] = &usage{changes: 1}
	}
	return r.disk[id]
}
