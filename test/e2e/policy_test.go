package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var (
	pollIdle    = testmode.Scaled(4 * time.Second) // after which polled sandboxes sleep
	pollTimeout = testmode.Scaled(8 * time.Second) // likewise, where it is the timeout that ends
)

const pollPeriod = 250 * time.Millisecond // between two polls

// polled is a route into a sandbox that somebody asks all the time.
type polled struct {
	*guest
	port   int
	target string
}

// poll asks once and returns the status of the answer.
func (p polled) poll(ctx context.Context) (int, error) {
	req, err := p.sb.Request(ctx, http.MethodGet, p.port, p.target, nil)
	if err != nil {
		return 0, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// pollFor polls for a while and returns how often each status was the answer.
func (p polled) pollFor(ctx context.Context, d time.Duration) (map[int]int, error) {
	statuses := map[int]int{}
	for begin := time.Now(); time.Since(begin) < d; time.Sleep(pollPeriod) {
		status, err := p.poll(ctx)
		if err != nil {
			return statuses, err
		}
		statuses[status]++
	}
	return statuses, nil
}

// pollToSleep polls until the sandbox sleeps, which polls of no weight let it,
// and goes on for a while: it must stay asleep, and say so.
func (p polled) pollToSleep(ctx context.Context) error {
	begin, answered := time.Now(), 0
	for ; p.s.is(ctx, p.sb.ID, client.Paused) != nil; time.Sleep(pollPeriod) {
		// An error may be that it fell asleep under the request.
		if status, err := p.poll(ctx); err == nil && status == http.StatusOK {
			answered++
		}
		if time.Since(begin) > testmode.Scaled(90*time.Second) {
			return fmt.Errorf("%s:%d%s: polls keep it awake:\n%s", p.sb.ID, p.port, p.target, p.s.why(ctx, p.sb.ID))
		}
	}
	p.s.t.Logf("port %d%s: asleep after %s and %d polls", p.port, p.target, since(begin), answered)
	if answered < 2 {
		return fmt.Errorf("%s: %d polls were answered while it ran", p.sb.ID, answered)
	}
	return p.staysAsleep(ctx)
}

// staysAsleep polls a sandbox that sleeps.
func (p polled) staysAsleep(ctx context.Context) error {
	last := p.s.lastEvent(ctx, p.sb.ID)
	statuses, err := p.pollFor(ctx, pollIdle)
	if err != nil {
		return err
	}
	if len(statuses) != 1 || statuses[http.StatusBadGateway] == 0 {
		return fmt.Errorf("%s:%d%s: statuses %v while it sleeps, want 502", p.sb.ID, p.port, p.target, statuses)
	}
	if types := p.s.eventTypes(ctx, p.sb.ID, last); len(types) > 0 {
		return fmt.Errorf("%s:%d%s: polls of a sleeping sandbox caused %q", p.sb.ID, p.port, p.target, types)
	}
	return p.s.is(ctx, p.sb.ID, client.Paused)
}

// pollKeepsAwake polls for several times the idle timeout: the sandbox must
// answer each poll, and not fall asleep.
func (p polled) pollKeepsAwake(ctx context.Context) error {
	last := p.s.lastEvent(ctx, p.sb.ID)
	statuses, err := p.pollFor(ctx, pollTimeout+pollIdle)
	if err != nil {
		return err
	}
	if len(statuses) != 1 || statuses[http.StatusOK] == 0 {
		return fmt.Errorf("%s:%d%s: statuses %v, want 200", p.sb.ID, p.port, p.target, statuses)
	}
	// A pause that began is cancelled by the next poll, and was none.
	for _, kind := range p.s.eventTypes(ctx, p.sb.ID, last) {
		if kind == "paused" {
			return fmt.Errorf("%s:%d%s: it fell asleep between polls", p.sb.ID, p.port, p.target)
		}
	}
	return nil
}

// pollers runs two of them at once.
func pollers(ctx context.Context, t *testing.T, what string, first, second func(context.Context) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return first(ctx) })
	group.Go(func() error { return second(ctx) })
	if err := group.Wait(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// TestPollersAndIdleness polls sandboxes four times a second on a path: where
// polls are ignored, they neither keep a sandbox awake nor wake it; where they
// are to keep it awake, they do, but do not wake it. What is polled is the
// agent, which is no work of its own.
func TestPollersAndIdleness(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	ignored, kept := map[string]client.WakePolicy{"49983/files": client.Ignore}, map[string]client.WakePolicy{"49983/files": client.Keep}
	create := func(ports map[string]client.WakePolicy) polled {
		sb := s.create(ctx, client.CreateOptions{
			Timeout: 10 * time.Minute, OnTimeout: client.Pause,
			IdleTimeout: pollIdle, OnIdle: client.Pause, AutoResume: new(true), Ports: ports,
		})
		if err := sb.WriteFile(ctx, "known", strings.NewReader("content")); err != nil {
			t.Fatal(err)
		}
		return polled{&guest{s: s, sb: sb}, agentPort, "/files?path=known"}
	}
	a, b := create(ignored), create(kept)
	pollers(ctx, t, "as created", a.pollToSleep, b.pollKeepsAwake)
	s.pause(ctx, b.sb.ID)
	if err := b.staysAsleep(ctx); err != nil {
		t.Fatalf("a path that keeps awake: %v", err)
	}
	for p, ports := range map[polled]map[string]client.WakePolicy{a: kept, b: ignored} {
		if _, err := s.client.Patch(ctx, p.sb.ID, client.PatchOptions{Ports: ports}); err != nil {
			t.Fatal(err)
		}
		if err := s.is(ctx, p.sb.ID, client.Paused); err != nil {
			t.Fatalf("the patch woke it: %v", err)
		}
		// What no rule fits wakes.
		if exit, out := run(ctx, t, p.sb, "echo", "awake"); out != "awake\n" {
			t.Fatalf("a command in a sandbox that sleeps: %s %q", exit.Status, out)
		}
	}
	pollers(ctx, t, "as patched", a.pollKeepsAwake, b.pollToSleep)
	s.pause(ctx, a.sb.ID)
	if err := a.staysAsleep(ctx); err != nil {
		t.Fatalf("a path that keeps awake: %v", err)
	}
}

// TestPollersAndTimeout does the same with ports and paths of the guest, in
// sandboxes whose timeout begins anew with each activity.
func TestPollersAndTimeout(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	create := func(ports map[string]client.WakePolicy) *guest {
		return s.startGuestIn(ctx, s.create(ctx, client.CreateOptions{
			Timeout: pollTimeout, OnTimeout: client.Pause, RefreshOnActivity: new(true), AutoResume: new(true), Ports: ports,
			StallAfter: time.Second, // the guest is a process that keeps it awake until then
		}), "rest")
	}
	a := create(map[string]client.WakePolicy{"8000": client.Keep, "8000/hits": client.Ignore, "8000/hits/deeper": client.Wake})
	b := create(map[string]client.WakePolicy{"8000": client.Ignore, "8001": client.Keep})
	pollers(ctx, t, "as created", polled{a, guestPort, "/hits"}.pollToSleep, polled{b, secondPort, "/hits"}.pollKeepsAwake)
	s.pause(ctx, b.sb.ID)
	for _, p := range []polled{{a, guestPort, "/state"}, {b, guestPort, "/hits"}, {b, secondPort, "/hits"}} {
		if err := p.staysAsleep(ctx); err != nil {
			t.Errorf("a port that wakes nothing: %v", err)
		}
	}
	// The longest path decides, and what no rule fits wakes: the guest has
	// nothing below /hits.
	if status, err := (polled{a, guestPort, "/hits/deeper"}).poll(ctx); status != http.StatusNotFound || err != nil {
		t.Errorf("a deeper path that wakes: status %d, %v; want the guest's 404", status, err)
	}
	if status, err := (polled{a, secondPort, "/state"}).poll(ctx); status != http.StatusOK || err != nil {
		t.Errorf("a port without a rule: status %d, %v", status, err)
	}
	if _, err := s.client.Patch(ctx, b.sb.ID, client.PatchOptions{Ports: map[string]client.WakePolicy{"8001": client.Ignore}}); err != nil {
		t.Fatal(err)
	}
	if err := (polled{b, secondPort, "/hits"}).staysAsleep(ctx); err != nil {
		t.Errorf("a port that a patch ignores: %v", err)
	}
	if status, err := (polled{b, guestPort, "/hits"}).poll(ctx); status != http.StatusOK || err != nil {
		t.Errorf("a port whose rule a patch removed: status %d, %v", status, err)
	}
}

// TestPollersOfAServer polls a server that was started through the API, and
// that writes a line for every request: what the ignored polls make it do is
// not its own work, and in the end it no longer counts as any.
func TestPollersOfAServer(t *testing.T) {
	t.Parallel()
	const stall = 4 * time.Second
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{
		Timeout: 10 * time.Minute, OnTimeout: client.Pause, AutoResume: new(true), StallAfter: stall,
		Ports: map[string]client.WakePolicy{"8000": client.Ignore},
	})
	s.leave(ctx, sb, "exec python3 -m http.server 8000")
	p := polled{&guest{s: s, sb: sb}, 8000, "/"}
	eventually(t, 20*time.Second, "the server answers", func() error {
		status, err := p.poll(ctx)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	s.setIdle(ctx, sb.ID)
	if err := p.pollToSleep(ctx); err != nil {
		t.Fatal(err)
	}
	// More than once where the machine is busy: to answer takes the server longer then,
	// which looks like work until it stalls again.
	stalls := s.entries(ctx, sb.ID, "hold.stalled")
	if len(stalls) == 0 {
		t.Error("no hold stalled, want that of the server")
	}
	for _, e := range stalls {
		if !strings.HasSuffix(e.Detail, ": python3 -m http.server 8000") {
			t.Errorf("%s stalled, want the server alone", e.Detail)
		}
	}
}
