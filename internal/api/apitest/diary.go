package apitest

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/supervisor/journal"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
)

// SandboxLog returns the lines of Logged.
func (f *Fake) SandboxLog(ctx context.Context, id string) ([]journal.Line, error) {
	_, err := f.Get(ctx, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Logged[id], err
}

// Samples returns those of Measured.
func (f *Fake) Samples(ctx context.Context, id string, from, to time.Time) ([]usage.Sample, error) {
	_, err := f.Get(ctx, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	return within(f.Measured[id], from, to, func(s usage.Sample) time.Time { return s.At }), err
}

// LastSample returns the last of Measured.
func (f *Fake) LastSample(id string) (usage.Sample, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.Measured[id]); n > 0 {
		return f.Measured[id][n-1], true
	}
	return usage.Sample{}, false
}

// Fleet returns those of Ran.
func (f *Fake) Fleet(_ context.Context, from, to time.Time) []usage.FleetSample {
	f.mu.Lock()
	defer f.mu.Unlock()
	return within(f.Ran, from, to, func(s usage.FleetSample) time.Time { return s.At })
}

func within[T any](all []T, from, to time.Time, at func(T) time.Time) []T {
	var found []T
	for _, s := range all {
		if !at(s).Before(from) && (to.IsZero() || !at(s).After(to)) {
			found = append(found, s)
		}
	}
	return found
}
