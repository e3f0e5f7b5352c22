package supervisor

import (
	"context"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// Find returns a sandbox, also one that has ended.
func (s *Supervisor) Find(_ context.Context, id string) (store.Sandbox, error) {
	b, err := s.box(id)
	if err != nil {
		return store.Sandbox{}, err
	}
	return b.view(), nil
}

// Get returns a sandbox that has not ended.
func (s *Supervisor) Get(ctx context.Context, id string) (store.Sandbox, error) {
	sb, err := s.Find(ctx, id)
	if err == nil {
		err = outcome.Alive(&sb)
	}
	if err != nil {
		return store.Sandbox{}, err
	}
	return sb, nil
}

// Admission returns what decides who is let into a sandbox that has not ended.
func (s *Supervisor) Admission(id string) (leases.Admission, error) {
	b, err := s.box(id)
	if err != nil {
		return leases.Admission{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return leases.AdmissionTo(&b.sb), outcome.Alive(&b.sb)
}

// view is the sandbox as callers see it: with the end that activity has moved.
func (b *box) view() store.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.viewLocked()
}

func (b *box) viewLocked() store.Sandbox {
	sb := b.s.replicas.Describe(b.sb)
	sb.Light = b.bed.Stays() != nil
	if sb.Record.Settings.RefreshOnActivity != lifecycle.NoRefresh {
		t := ids.Now()
		sb.Record.EndAt = awake.SoftEnd(sb.Record, b.activityLocked(t), t)
	}
	return sb
}

// List returns all sandboxes that run or are paused, in no order.
func (s *Supervisor) List(context.Context) ([]store.Sandbox, error) {
	return s.collect(func(r lifecycle.Record) bool { return r.State == lifecycle.Running || r.State == lifecycle.Paused }), nil
}

// All returns every sandbox, those that have ended included, in no order.
func (s *Supervisor) All(context.Context) ([]store.Sandbox, error) {
	return s.collect(func(lifecycle.Record) bool { return true }), nil
}

func (s *Supervisor) collect(want func(lifecycle.Record) bool) []store.Sandbox {
	var list []store.Sandbox
	s.each(func(b *box) {
		if sb := b.view(); want(sb.Record) {
			list = append(list, sb)
		}
	})
	return list
}

// CountRunning returns how many sandboxes run, or are about to.
func (s *Supervisor) CountRunning() (n int) {
	s.each(func(b *box) { n += b.snapshot().Use().Running })
	return n
}
