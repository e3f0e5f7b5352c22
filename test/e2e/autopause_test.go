package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// When a request is sent, counted from the end of a timeout. The commit point
// of the pause lies in between; on a slow machine the latest is later.
const (
	earliestAccess = -20 * time.Millisecond
	latestAccess   = 150 * time.Millisecond
)

// slowestAccess bounds an answer on a machine that others use, too.
const slowestAccess = 20 * time.Second

// TestAccessDuringAutomaticPause sends requests to sandboxes that fall asleep
// at the end of their timeout, at random times around that. Each is answered
// once, by the generation that was to sleep if it came before the commit point
// and by the next if after; none is served twice.
func TestAccessDuringAutomaticPause(t *testing.T) {
	t.Parallel()
	const sandboxes, span = 3, 50 * time.Second
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t)
	var list []*pauser
	for range sandboxes {
		list = append(list, s.newPauser(ctx))
	}
	end := time.Now().Add(span)
	var wg sync.WaitGroup
	for _, p := range list {
		wg.Go(func() {
			for time.Now().Before(end) && !t.Failed() {
				if err := p.round(ctx); err != nil {
					t.Errorf("%s, round %d: %v", p.sb.ID, len(p.meetings), err)
				}
			}
			if err := p.checkHits(ctx); err != nil {
				t.Errorf("%s: %v", p.sb.ID, err)
			}
		})
	}
	wg.Wait()
	added := map[encounter][]time.Duration{}
	for _, p := range list {
		for _, m := range p.meetings {
			added[m.how] = append(added[m.how], m.took-p.usual)
		}
	}
	for _, how := range []encounter{beforeSleep, cancelledSleep, woke} {
		if d := added[how]; len(d) > 0 {
			slices.Sort(d)
			t.Logf("%-22s %3d requests; added latency p50 %4d ms, p99 %4d ms", how, len(d), at(d, 0.5).Milliseconds(), at(d, 0.99).Milliseconds())
		}
	}
	if len(added[cancelledSleep]) == 0 || len(added[woke]) == 0 {
		t.Errorf("the requests missed the commit point: %d before it, %d after", len(added[cancelledSleep]), len(added[woke]))
	}
}

func at(sorted []time.Duration, q float64) time.Duration {
	return sorted[int(q*float64(len(sorted)-1))]
}

// encounter is how a request met a pause.
type encounter string

const (
	beforeSleep    encounter = "before the pause"
	cancelledSleep encounter = "cancelled the pause"
	woke           encounter = "after the commit point"
)

// meeting is one request and the pause that it met.
type meeting struct {
	how  encounter
	took time.Duration
}

// pauser is a guest whose sandbox falls asleep again and again.
type pauser struct {
	*guest
	generation int
	cursor     int64         // of the event log
	usual      time.Duration // a request takes without a pause
	latest     time.Duration // when requests are sent, counted from the end of the timeout
	rng        *rand.Rand
	meetings   []meeting
}

// newPauser starts a guest, and finds out how long its sandbox takes to pause
// and to answer.
func (s *server) newPauser(ctx context.Context) *pauser {
	s.t.Helper()
	p := &pauser{guest: s.startGuest(ctx, sleeper), rng: testmode.Rand(0)}
	p.latest = max(latestAccess, 3*s.pause(ctx, p.sb.ID)/2)
	p.generation = p.ask(ctx).generation(s.t)
	var all []time.Duration
	for range 20 {
		r := p.ask(ctx)
		all = append(all, r.answered.Sub(r.asked))
	}
	slices.Sort(all)
	p.usual = at(all, 0.5)
	return p
}

// round lets one request meet one pause.
func (p *pauser) round(ctx context.Context) error {
	const timeout = 300 * time.Millisecond
	if err := p.skipEvents(ctx); err != nil {
		return err
	}
	asked := time.Now()
	if err := p.s.client.SetTimeout(ctx, p.sb.ID, timeout); err != nil {
		return err
	}
	due := asked.Add(time.Since(asked)/2 + timeout)
	time.Sleep(time.Until(due.Add(earliestAccess + testmode.N(p.rng, p.latest-earliestAccess))))

	var hits int
	began := time.Now()
	failure := p.call(ctx, http.MethodPost, fmt.Sprintf("/hit?id=%d", len(p.meetings)), nil, &hits)
	took := time.Since(began)
	if took > slowestAccess {
		return fmt.Errorf("the answer took %s", took)
	}
	how, err := p.outcome(ctx, began)
	if err != nil {
		return err
	}
	if failure != nil {
		return fmt.Errorf("%s: %w", how, failure)
	}
	p.meetings = append(p.meetings, meeting{how, took})
	return p.checkGeneration(ctx, how)
}

// skipEvents moves the cursor to the end of the event log.
func (p *pauser) skipEvents(ctx context.Context) error {
	for {
		page, err := p.s.client.Events(ctx, client.EventOptions{Sandbox: p.sb.ID, After: p.cursor})
		if err != nil || len(page.Events) == 0 {
			return err
		}
		p.cursor = page.Events[len(page.Events)-1].ID
	}
}

// outcome waits for the end of the pause and says how a request of the given
// time met it.
func (p *pauser) outcome(ctx context.Context, asked time.Time) (how encounter, err error) {
	var began, committed time.Time
	resumed := false
	err = poll(slowestAccess, func() error {
		page, err := p.s.client.Events(ctx, client.EventOptions{Sandbox: p.sb.ID, After: p.cursor})
		if err != nil {
			return err
		}
		for _, e := range page.Events {
			p.cursor = e.ID
			switch e.Type {
			case "pausing":
				began = e.Time
			case "paused":
				committed = e.Time
			case "resumed":
				resumed = true
			case "pause_cancelled":
				how = cancelledSleep
			case "pause_failed", "resume_failed":
				how = encounter(e.Type)
			}
		}
		switch {
		case how != "", !committed.IsZero() && asked.Before(began), resumed:
			return nil
		}
		return errors.New("the pause has not ended")
	})
	switch {
	case err != nil:
		return how, err
	case how == cancelledSleep:
		return how, nil
	case how != "":
		return how, fmt.Errorf("the event log says %s", how)
	case resumed:
		return woke, nil
	}
	return beforeSleep, nil
}

// checkGeneration wakes the sandbox if it is asleep, and compares the
// generation with what follows from the encounter.
func (p *pauser) checkGeneration(ctx context.Context, how encounter) error {
	if how != cancelledSleep {
		p.generation++ // by the request, or by the one that now follows
	}
	r, err := p.report(ctx)
	if err != nil {
		return err
	}
	if got := r.Generation; got != fmt.Sprint(p.generation) {
		return fmt.Errorf("%s: generation %s, want %d", how, got, p.generation)
	}
	return nil
}

// checkHits holds that the guest has served each request once.
func (p *pauser) checkHits(ctx context.Context) error {
	var hits map[string]int
	if err := p.call(ctx, http.MethodGet, "/hits", nil, &hits); err != nil {
		return err
	}
	for n, m := range p.meetings {
		if got := hits[fmt.Sprint(n)]; got != 1 {
			return fmt.Errorf("request %d (%s) was served %d times", n, m.how, got)
		}
	}
	if len(hits) > len(p.meetings) {
		return fmt.Errorf("%d requests were served, and %d sent", len(hits), len(p.meetings))
	}
	return nil
}
