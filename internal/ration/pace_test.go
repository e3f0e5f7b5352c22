package ration

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: who goes on without pause waits, nobody else does, and it is forgotten.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPace(10, 5)
		took := func(name string) time.Duration {
			begin := time.Now()
			if err := p.Wait(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			return time.Since(begin)
		}
		for range 10 {
			if d := took("often"); d > 0 {
				t.Fatalf("it waited %s for what comes at once", d)
			}
		}
		if d := took("often"); d != time.Second/5 {
			t.Errorf("then it waited %s", d)
		}
		if d := took("other"); d > 0 {
			t.Errorf("another waited %s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if p.Wait(ctx, "often") == nil {
			t.Error("one that ends too early had a turn")
		}
		time.Sleep(2 * time.Second)
		for range 10 {
			if d := took("often"); d > 0 {
				t.Errorf("it waited %s after it had rested", d)
			}
		}
		for i := range 3 * mostPaced {
			took(fmt.Sprint("name ", i))
		}
		if n := len(p.of); n > mostPaced {
			t.Errorf("%d names are remembered, and at most %d may be", n, mostPaced)
		}
	})
}
