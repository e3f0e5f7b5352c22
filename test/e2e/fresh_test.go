package e2e

import (
	"net/http"
	"slices"
	"testing"
	"time"
)

// TestFreshAfterWake wakes a sandbox eight times by asking for random bytes:
// its kernel never gives the same ones again, the generation file has a new
// value, and the clock is right.
func TestFreshAfterWake(t *testing.T) {
	t.Parallel()
	const wakes = 8
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	var seen, generations []string
	for n := range wakes + 1 {
		if n > 0 {
			s.pause(ctx, g.sb.ID)
		}
		var random []string
		if err := g.call(ctx, http.MethodGet, "/random", nil, &random); err != nil {
			t.Fatal(err)
		}
		now := g.ask(ctx)
		for _, value := range random {
			if slices.Contains(seen, value) {
				t.Errorf("wake %d: random bytes %s were given before", n, value)
			}
		}
		seen = append(seen, random...)
		if slices.Contains(generations, now.Generation) {
			t.Errorf("wake %d: the generation file says %s, as before", n, now.Generation)
		}
		generations = append(generations, now.Generation)
		t.Logf("wake %d: generation %s, clock off by %s", n, now.Generation, checkClock(t, now))
	}
}
