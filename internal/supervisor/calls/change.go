package calls

import (
	"context"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// Patch changes settings, metadata, wake policies or the like of a live or paused
// sandbox.
func (r *Reception) Patch(ctx context.Context, id string, p fields.Patch, actor string) (store.Sandbox, error) {
	if err := fields.Check(store.Config{Metadata: p.Metadata, Ports: p.Ports}); err != nil {
		return store.Sandbox{}, err
	}
	if p.Timeout != nil {
		if err := r.Ceiling.Check(*p.Timeout); err != nil {
			return store.Sandbox{}, err
		}
	}
	b, err := r.findToChange(ctx, id)
	if err != nil {
		return store.Sandbox{}, err
	}
	for {
		sb, ended, err := b.Change(p, actor)
		if err == nil && ended == nil && p.ChangesNetwork() {
			b.OpenNetwork()
		}
		if err != nil || ended == nil {
			return sb, err
		}
		if _, err := Wait(ctx, ended); err != nil {
			return store.Sandbox{}, err
		}
	}
}

// Configure changes what a sandbox is apart from its lifecycle, and logs it with detail.
func (r *Reception) Configure(ctx context.Context, id, actor, detail string, change func(*store.Config) error) error {
	b, err := r.findToChange(ctx, id)
	if err != nil {
		return err
	}
	return b.Configure(actor, detail, change)
}

// SetTimeout makes the soft timeout of a running sandbox end d from now; zero
// ends it at once, and defaults.Unlimited takes the end from it.
func (r *Reception) SetTimeout(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error) {
	if err := r.Ceiling.Check(d); err != nil {
		return store.Sandbox{}, err
	}
	return r.adjust(ctx, id, lifecycle.TimeoutSet{Meta: By("", actor), Timeout: d})
}

// Refresh moves the end of a running sandbox to at least d from now.
func (r *Reception) Refresh(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error) {
	if err := r.Ceiling.Check(d); err != nil {
		return store.Sandbox{}, err
	}
	return r.adjust(ctx, id, lifecycle.ExtendRequested{Meta: By("", actor), Timeout: d})
}

// Hold counts the sandbox as busy until l.Until at the latest. A lease with a
// known id is replaced.
func (r *Reception) Hold(ctx context.Context, id string, l lifecycle.Lease, actor string) (lifecycle.Lease, error) {
	if l.ID == "" {
		l.ID = "hold" + ids.NewOp()
	}
	if err := fields.CheckHold(l); err != nil {
		return lifecycle.Lease{}, err
	}
	sb, err := r.adjust(ctx, id, lifecycle.LeaseRequested{Meta: By("", actor), Lease: l})
	if err != nil {
		return lifecycle.Lease{}, err
	}
	i := slices.IndexFunc(sb.Record.Leases, func(x lifecycle.Lease) bool { return x.ID == l.ID })
	return sb.Record.Leases[i], nil
}

// ReleaseHold ends a lease before its time.
func (r *Reception) ReleaseHold(ctx context.Context, id, hold, actor string) error {
	_, err := r.adjust(ctx, id, lifecycle.LeaseReleased{Meta: By("", actor), ID: hold})
	return err
}

// adjust applies an event that changes a running sandbox in place, waiting for
// an operation in flight to end first.
func (r *Reception) adjust(ctx context.Context, id string, ev lifecycle.Event) (store.Sandbox, error) {
	b, err := r.findToChange(ctx, id)
	if err != nil {
		return store.Sandbox{}, err
	}
	for {
		res, ended, err := b.Request(ev)
		if err != nil {
			return store.Sandbox{}, err
		}
		if res.Verdict == lifecycle.Applies {
			return As(b, res.Record), nil
		}
		if _, err := Wait(ctx, ended); err != nil {
			return store.Sandbox{}, err
		}
	}
}
