package e2e

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestMoveUnderLoad moves sandboxes round in a circle of three servers while clients ask for
// them through all of these. No request fails, and each is served once, by the memory that the
// sandbox had.
func TestMoveUnderLoad(t *testing.T) {
	t.Parallel()
	const rounds = 2
	ctx := deadline(t, 4*time.Minute)
	all := startCluster(t, 3, "--blobs", t.TempDir())
	l := &demand{servers: all}
	l.drains.Store(true) // what sleeps is asked for too
	for i, wakes := range []bool{true, true, false} {
		g := all[i].startGuest(ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(wakes)})
		d := &loaded{guest: g}
		for _, via := range all {
			d.via = append(d.via, g.through(ctx, via))
		}
		l.guests = append(l.guests, d)
	}
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for n := range uint64(loadClients / 2) {
		asking.Go(func() { l.keepAsking(ctx, t, testmode.Rand(n), stop) })
	}
	l.await(ctx, t, askedBefore)
	var slowest time.Duration
	for n := range rounds * len(all) {
		for i, d := range l.guests {
			to := serverOf(t, all[(i+n+1)%len(all)])
			began := time.Now()
			// A server that is neither: the one that has it, the one that is to, or a third.
			got, err := client.Move(ctx, all[(i+2*n)%len(all)].client, d.sb.ID, to)
			if err != nil || got.Server != to || got.State != client.Running {
				t.Errorf("move %d of %s to %s: %+v, %v", n, d.sb.ID, to, got, err)
			}
			slowest = max(slowest, time.Since(began))
		}
		l.await(ctx, t, l.asked.Load()+2*loadClients)
	}
	close(stop)
	asking.Wait()
	t.Logf("%d requests, the slowest took %s; the slowest of %d moves took %s",
		l.asked.Load(), time.Duration(l.slowest.Load()).Round(time.Millisecond), rounds*len(all)*len(l.guests), slowest.Round(time.Millisecond))
	for i, d := range l.guests {
		g := d.via[0]
		d.served(ctx, t)
		types := g.s.eventTypes(ctx, d.sb.ID, 0)
		for event, want := range map[string]int{"moved": rounds * len(all), "paused": rounds * len(all), "resumed": rounds * len(all)} {
			if got := len(slices.DeleteFunc(slices.Clone(types), func(e string) bool { return e != event })); got != want {
				t.Errorf("%s has %d events %s, want %d: %v", d.sb.ID, got, event, want, types)
			}
		}
		for n, s := range all {
			if n != i { // where it is again
				eventually(t, goneWithin, "nothing of it is left elsewhere", func() error { return nothingOf(s, d.sb.ID) })
			}
		}
	}
}

// TestMoveRefused: what cannot move stays, and serves.
func TestMoveRefused(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	all := startCluster(t, 2, "--blobs", t.TempDir())
	a, b := all[0], all[1]
	g := a.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)})
	move := func(s *server, to string) (client.Info, error) { return client.Move(ctx, s.client, g.sb.ID, to) }
	here := serverOf(t, a)
	for _, s := range all {
		if got, err := move(s, here); err != nil || got.Server != here || got.Generation != 1 {
			t.Errorf("to where it is: %+v, %v", got, err)
		}
		_, err := move(s, "srv_none")
		wantCode(t, err, "to a server that is none", "server_not_found")
	}
	there := serverOf(t, b)
	b.crash()
	eventually(t, time.Minute, "it is known that the other server is gone", func() error {
		_, err := move(a, "")
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "no_other_server" {
			return fmt.Errorf("a move: %w", err)
		}
		return nil
	})
	_, err := move(a, there)
	wantCode(t, err, "to a server that is gone", "server_unreachable")
	a.pause(ctx, g.sb.ID)
	g.same(g.first, g.ask(ctx))
	b.start() // and takes away what its crash has left
	a.kill(ctx, t, g.sb.ID)
	for _, s := range all {
		_, err := move(s, here)
		wantCode(t, err, "to where it has ended", "sandbox_terminated")
	}
}

// TestWakeWhereThereIsRoom: a sandbox whose server is full wakes on one that has room, with its
// memory, once for all who ask. Where no server has room it stays asleep, and the answer says so.
func TestWakeWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	all := startCluster(t, 2, "--blobs", t.TempDir(), "--max-running", "2")
	a, b := all[0], all[1]
	options := client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)}
	byTraffic := a.startGuest(ctx, options)
	a.pause(ctx, byTraffic.sb.ID)
	byCall := a.startGuest(ctx, options)
	a.pause(ctx, byCall.sb.ID)
	stays, runs := a.create(ctx, options), a.create(ctx, options)
	there := serverOf(t, b)
	wantAt := func(g *guest, server string) {
		t.Helper()
		if info, err := a.client.Get(ctx, g.sb.ID); err != nil || info.Server != server || info.Generation != 2 {
			t.Errorf("it is %+v, %v; want generation 2 on %s", info, err, server)
		}
	}

	var asking sync.WaitGroup
	for _, s := range all {
		g := byTraffic.through(ctx, s)
		for range 5 {
			asking.Go(func() {
				if r, err := g.report(ctx); err != nil || r.PID != g.first.PID {
					t.Errorf("through %s: %+v, %v", s.addr, r, err)
				}
			})
		}
	}
	asking.Wait()
	byTraffic.same(byTraffic.first, byTraffic.ask(ctx))
	wantAt(byTraffic, there)
	a.connect(ctx, byCall.sb.ID)
	byCall.same(byCall.first, byCall.ask(ctx))
	wantAt(byCall, there)
	for _, g := range []*guest{byTraffic, byCall} {
		eventually(t, goneWithin, "nothing of it is left where it was", func() error { return nothingOf(a, g.sb.ID) })
	}

	a.pause(ctx, stays.ID)
	a.create(ctx, options)
	full := func(what string, err error) {
		t.Helper()
		wantCode(t, err, what, "too_many_sandboxes")
		if info, err := b.client.Get(ctx, stays.ID); err != nil || info.State != client.Paused || info.Server == there {
			t.Errorf("%s: it is %+v, %v", what, info, err)
		}
	}
	for _, s := range all {
		_, err := s.client.Connect(ctx, stays.ID, time.Hour)
		full("a wake where no server has room", err)
	}
	a.kill(ctx, t, runs.ID)
	a.connect(ctx, stays.ID)
}
