package usage

import (
	"time"
)

// series is samples over time, oldest first, in bounded room: when it is full,
// the older half of them is joined in pairs. So it covers all the time, the
// last of it most finely.
type series[T any] struct{ kept []T }

// add appends a sample. join makes one of two that follow each other.
func (h *series[T]) add(s T, most int, join func(older, newer T) T) {
	h.thin(most-1, join)
	h.kept = append(h.kept, s)
}

// thin leaves no more than so many samples, at least two.
func (h *series[T]) thin(most int, join func(older, newer T) T) {
	for len(h.kept) > max(most, 2) {
		pairs := max(len(h.kept)/4, 1)
		thinner := make([]T, 0, len(h.kept)-pairs)
		for i := range pairs {
			thinner = append(thinner, join(h.kept[2*i], h.kept[2*i+1]))
		}
		h.kept = append(thinner, h.kept[2*pairs:]...)
	}
}

// between returns a copy of the samples of a time, both ends included to the
// second. A zero end is none.
func (h *series[T]) between(from, to time.Time, at func(T) time.Time) []T {
	var found []T
	for _, s := range h.kept {
		second := at(s).Unix()
		if (from.IsZero() || second >= from.Unix()) && (to.IsZero() || second <= to.Unix()) {
			found = append(found, s)
		}
	}
	return found
}
