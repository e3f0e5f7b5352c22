package held

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestRefusals has one client be refused by many requests at once, which costs
// another one nothing, and is forgiven later.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRefusals()
		ctx, stop := context.WithCancel(t.Context())
		took := func(client string) time.Duration {
			begin := time.Now()
			r.Wait(ctx, client)
			return time.Since(begin)
		}
		for range refusalsAtOnce {
			if d := took("bad"); d > 0 {
				t.Fatalf("it waited %s within what is free", d)
			}
		}
		if d := took("bad"); d == 0 {
			t.Error("it did not wait beyond what is free")
		}
		// As many loops as there may be connections: none waits longer than it
		// may, and all together are not faster than that.
		const loops = 4096
		answers := make(chan time.Duration, loops)
		for range loops {
			go func() { answers <- took("bad") }()
		}
		late := 0
		for range loops {
			d := <-answers
			if d > refusalPatience {
				t.Errorf("a refusal was held back for %s", d)
			}
			if d == refusalPatience {
				late++
			}
		}
		if most := refusalsPerSecond * int(refusalPatience/time.Second); late < loops-most-1 {
			t.Errorf("%d of %d waited as long as there is patience, want all but %d", late, loops, most)
		}
		if d := took("other"); d > 0 {
			t.Errorf("another client waited %s", d)
		}
		time.Sleep(time.Minute)
		if d := took("bad"); d > 0 {
			t.Errorf("it waited %s after a minute", d)
		}
		stop()
		for range 2 * refusalsAtOnce {
			if d := took("at the end"); d > 0 {
				t.Fatalf("it waited %s when the server ended", d)
			}
		}
	})
}
