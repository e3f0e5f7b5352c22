package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var drainPauses = flag.Int("drain.pauses", testmode.Choose(2, 4), "how many pauses of each kind there are in TestRequestsOverPauses")

// Of the requests of TestRequestsOverPauses, and of what they meet.
const (
	longestRequest = 900 * time.Millisecond
	longestBreak   = 300 * time.Millisecond // of a client between two requests
	explicitDrain  = time.Second            // how long a pause that is asked for waits for requests
)

// TestRequestsOverPauses has clients ask all the time, for 1 to 900 ms, while the
// sandbox is paused by its timeout and on request. No request is cut that is
// shorter than the drain, each is served once, and the generation rises with each
// pause that was committed and with nothing else.
func TestRequestsOverPauses(t *testing.T) {
	t.Parallel()
	const clients = 8
	ctx := deadline(t, time.Minute+time.Duration(*drainPauses)*15*time.Second)
	s := startServer(t)
	d := &drained{guest: s.startGuest(ctx, sleeper)}
	last := s.lastEvent(ctx, d.sb.ID)

	var asking sync.WaitGroup
	stop := make(chan struct{})
	for n := range uint64(clients) {
		asking.Go(func() { d.keepAsking(ctx, testmode.Rand(n), stop) })
	}
	for n := range *drainPauses {
		// At every other timeout no request follows, so that it is not cancelled.
		d.pauseAtTimeout(ctx, n%2 == 1)
		d.awaitWake(ctx)
		s.pause(ctx, d.sb.ID)
		d.awaitWake(ctx)
	}
	close(stop)
	asking.Wait()

	d.checkServedOnce(ctx)
	d.checkEvents(ctx, last)
}

// drained is a guest that is asked while it is paused.
type drained struct {
	*guest
	asked atomic.Int64 // how many requests there have been
	cut   atomic.Int64 // of them, those that took longer than the drain and were cut
	still sync.RWMutex // held by each request until it is sent; by the test while none may be
}

func (d *drained) keepAsking(ctx context.Context, rng *rand.Rand, stop <-chan struct{}) {
	for {
		d.still.RLock()
		id, after := d.asked.Add(1), time.Millisecond+testmode.N(rng, longestRequest)
		d.still.RUnlock()
		began := time.Now()
		var n int
		if err := d.call(ctx, http.MethodPost, fmt.Sprintf("/hit?id=%d&after=%s", id, after), nil, &n); err != nil {
			// On a busy machine a short request may take longer than the drain.
			if took := time.Since(began); took < explicitDrain {
				d.s.t.Errorf("request %d of %s failed after %s: %v", id, after, took, err)
			}
			d.cut.Add(1)
		}
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-time.After(testmode.N(rng, longestBreak)):
		}
	}
}

// pauseAtTimeout lets the timeout end, and waits for the end of the pause. If
// undisturbed, no request begins until then.
func (d *drained) pauseAtTimeout(ctx context.Context, undisturbed bool) {
	t := d.s.t
	t.Helper()
	last := d.s.lastEvent(ctx, d.sb.ID)
	if undisturbed {
		d.still.Lock()
		defer d.still.Unlock()
	}
	if err := d.s.client.SetTimeout(ctx, d.sb.ID, 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	eventually(t, maxAnswer, "the pause at the timeout ends", func() error {
		for _, e := range d.s.eventTypes(ctx, d.sb.ID, last) {
			if e == "paused" || e == "pause_cancelled" {
				return nil
			}
		}
		return fmt.Errorf("events %q", d.s.eventTypes(ctx, d.sb.ID, last))
	})
}

// awaitWake waits until a request has woken the sandbox.
func (d *drained) awaitWake(ctx context.Context) {
	d.s.t.Helper()
	eventually(d.s.t, maxAnswer, "a request wakes it", func() error { return d.s.is(ctx, d.sb.ID, client.Running) })
}

// checkServedOnce holds that the guest has seen each request once.
func (d *drained) checkServedOnce(ctx context.Context) {
	t := d.s.t
	t.Helper()
	var hits map[string]int
	if err := d.call(ctx, http.MethodGet, "/hits", nil, &hits); err != nil {
		t.Fatal(err)
	}
	for id := int64(1); id <= d.asked.Load(); id++ {
		if n := hits[fmt.Sprint(id)]; n != 1 {
			t.Errorf("request %d was served %d times", id, n)
		}
	}
	t.Logf("%d requests; %d took longer than the drain and were cut", d.asked.Load(), d.cut.Load())
}

// checkEvents holds that each pause was committed or cancelled, and that the
// generation has risen by those that were committed.
func (d *drained) checkEvents(ctx context.Context, after int64) {
	t := d.s.t
	t.Helper()
	count := map[string]int{}
	generation := int64(1)
	for _, e := range d.s.events(ctx, d.sb.ID, after) {
		kind := e.Type
		switch kind {
		case "pausing":
			kind += " by " + e.Cause
		case "resumed":
			if generation++; e.Generation != generation {
				t.Errorf("woken in generation %d, want %d", e.Generation, generation)
			}
		case "pause_failed", "resume_failed":
			t.Errorf("%s: %s", kind, e.Detail)
		}
		count[kind]++
	}
	if now := d.ask(ctx).generation(t); int64(now) != generation {
		t.Errorf("generation %d after %d wakes", now, generation-1)
	}
	if count["pausing by timeout"] != *drainPauses || count["pausing by call"] != *drainPauses {
		t.Errorf("%v, want %d pauses of each kind", count, *drainPauses)
	}
	if all := count["pausing by timeout"] + count["pausing by call"]; count["paused"]+count["pause_cancelled"] != all || count["resumed"] != count["paused"] {
		t.Errorf("%v: of %d pauses, each is to be committed, followed by a wake, or cancelled", count, all)
	}
	t.Logf("events: %v", count)
}
