package takeover

import (
	"context"
	"errors"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
)

// Ends ends sandboxes of servers that are gone: those that somebody kills, and those whose time is over.
// The clocks of a sandbox run on its server, and when that is gone the others go by them. Whether
// something may be ended is decided by the store, as for what is taken over.
type Ends struct {
	t    *Taker
	idle map[string]idle // by server; only for EndOverdue
}

// EndLost ends a sandbox of another server that is gone. What that server has of it, it removes
// when it is back.
func (e *Ends) EndLost(ctx context.Context, id, actor string) error {
	sb, err := e.t.o.Store.Sandbox(ctx, id)
	if err != nil {
		return err
	}
	_, err = e.end(sb, lifecycle.KillRequested{Meta: calls.By(ids.NewOp(), actor)})
	return err
}

// end ends a sandbox of another server that is gone, if that is what an event leads to.
func (e *Ends) end(sb store.Sandbox, ev lifecycle.Event) (ended bool, err error) {
	res, err := lifecycle.Step(sb.Record, ev, ids.Now())
	if err != nil || !res.Changed || res.Record.State != lifecycle.Terminated || sb.Record.State == lifecycle.Terminated {
		return false, err
	}
	if e.t.leaving(sb.ID) || e.t.o.Knows(sb.ID) { // it is being given up
		return false, store.ErrChanged(sb.ID)
	}
	next := sb
	next.Record, next.Config = res.Record, sb.Config.Settled(res.Record)
	if err := e.t.take(next, res.Entries, func(is store.Sandbox) bool { return is.Record.State == lifecycle.Terminated }); err != nil {
		return false, err
	}
	e.t.arrive(next, sb.Record, res)
	return true, nil
}

// overdueEvery is how often it is looked whether something on a server that is gone is to end.
const overdueEvery = time.Minute

// idle is until when nothing is to end on a server that is gone, by its lease.
type idle struct{ lease, until time.Time }

// WatchOverdue ends what is overdue on servers that are gone, until ctx ends.
func (e *Ends) WatchOverdue(ctx context.Context) {
	for insist.Sleep(ctx, overdueEvery) {
		if err := e.EndOverdue(ctx); err != nil && ctx.Err() == nil {
			e.t.o.Log.Warn("sandboxes of servers that are gone may not have ended in time", "err", err)
		}
	}
}

// EndOverdue ends the sandboxes of servers that are gone for [store.LostAfter] whose time is over, and
// those that were being created there. One call is made at a time.
func (e *Ends) EndOverdue(ctx context.Context) error {
	servers, err := e.t.o.Store.Servers(ctx)
	if err != nil {
		return err
	}
	now, self := ids.Now(), e.t.o.Store.Self()
	was := e.idle
	e.idle = map[string]idle{}
	var errs []error
	for _, srv := range servers {
		if store.Gone(servers, self, srv.ID) < store.LostAfter {
			continue
		}
		known, is := was[srv.ID]
		if !is || !known.lease.Equal(srv.LeaseEndsAt) || !now.Before(known.until) {
			known = idle{srv.LeaseEndsAt, now}
			if known.until, err = e.endOverdueOn(ctx, srv); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		e.idle[srv.ID] = known
	}
	return errors.Join(errs...)
}

// overduePage is how many sandboxes are read at once.
const overduePage = 1000

// endOverdueOn does it for one server, and returns when it is to be looked at next: what that has
// does not change any more.
func (e *Ends) endOverdueOn(ctx context.Context, srv store.Server) (next time.Time, err error) {
	next = ids.Now().Add(365 * 24 * time.Hour)
	q := store.Selection{Owner: srv.ID, Status: store.NotEnded, Order: store.Oldest, Limit: overduePage}
	for {
		p, err := e.t.o.Store.Page(ctx, q)
		if err != nil {
			return next, err
		}
		for _, sb := range p.Sandboxes {
			_, err := e.end(sb, found(sb.Record, srv))
			switch {
			case store.Refused(err): // as long as it is being given up here, for one
				next = ids.Now()
			case err != nil:
				return next, err
			}
			for _, d := range sb.Record.Deadlines(seen(srv)) {
				if d.At.After(ids.Now()) && d.At.Before(next) {
					next = d.At
				}
			}
		}
		if !p.More {
			return next, nil
		}
		at := q.Order.PlaceOf(&p.Sandboxes[len(p.Sandboxes)-1])
		q.After = &at
	}
}

// Overdue ends a sandbox whose time is over, if its server is gone, and returns what its own would
// answer then.
func (e *Ends) Overdue(ctx context.Context, sb store.Sandbox) error {
	servers, err := e.t.o.Store.Servers(ctx)
	if err != nil || store.Gone(servers, e.t.o.Store.Self(), sb.Owner) < 0 {
		return err
	}
	ended, err := e.end(sb, found(sb.Record, store.ServerOf(servers, sb.Owner)))
	if !ended {
		return err
	}
	if sb, err = e.t.o.Store.Sandbox(ctx, sb.ID); err != nil {
		return err
	}
	return sb.Record.Over()
}

// found is the event of a sandbox whose server is gone: its clocks count as that had it last, and
// nobody goes on with what was being created.
func found(r lifecycle.Record, srv store.Server) lifecycle.Event {
	if r.Phase() == lifecycle.Creating {
		return lifecycle.ServerStarted{Op: ids.NewOp()}
	}
	return lifecycle.TimerFired{Op: ids.NewOp(), Activity: seen(srv)}
}

// seen is what a sandbox may have done while its server could tell.
func seen(srv store.Server) lifecycle.Activity {
	return lifecycle.Activity{Since: srv.LeaseEndsAt, Last: srv.LeaseEndsAt, Requests: lifecycle.Work{Last: srv.LeaseEndsAt}}
}
