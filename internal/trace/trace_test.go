package trace

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestSteps measures steps that follow, overlap and lie in each other, and one that
// has not ended with its operation.
func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told Operation
		b := Book{Ended: func(op Operation) { told = op }}
		ctx, end := b.Begin(t.Context(), "pausing", "call")
		first := Start(ctx, "first")
		time.Sleep(10 * time.Millisecond)
		within, outer := Within(ctx, "outer")
		time.Sleep(time.Millisecond)
		inner := Start(within, "inner")
		first()
		time.Sleep(2 * time.Millisecond)
		inner()
		outer()
		Start(ctx, "never ends")
		time.Sleep(5 * time.Millisecond)
		if now := b.All()[0]; now.Done || now.Took != 18*time.Millisecond || now.Steps[3].Took != 5*time.Millisecond {
			t.Errorf("while it goes on: %+v", now)
		}
		end()
		time.Sleep(time.Hour)
		op := b.All()[0]
		if !reflect.DeepEqual(told, op) {
			t.Errorf("the end tells %+v, the book %+v", told, op)
		}
		if !op.Done || op.Phase != "pausing" || op.Cause != "call" || op.Took != 18*time.Millisecond {
			t.Errorf("%+v", op)
		}
		const ms = time.Millisecond
		want := []Step{
			{"first", 0, 0, 11 * ms, true}, {"outer", 0, 10 * ms, 3 * ms, true},
			{"inner", 1, 11 * ms, 2 * ms, true}, {"never ends", 0, 13 * ms, 5 * ms, false},
		}
		if !slices.Equal(op.Steps, want) {
			t.Errorf("steps %+v, want %+v", op.Steps, want)
		}
	})
}

// TestWithoutOperation: outside of an operation a step is nothing.
func TestWithoutOperation(t *testing.T) {
	Start(t.Context(), "a")()
	ctx, end := Within(t.Context(), "b")
	end()
	if ctx != t.Context() {
		t.Error("another context")
	}
}

// TestBounds keeps the latest operations, and so many steps of each, from all
// goroutines.
func TestBounds(t *testing.T) {
	var b Book
	for i := range 10 {
		ctx, end := b.Begin(context.Background(), fmt.Sprint(i), "")
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { Start(ctx, "x")() })
		}
		wg.Wait()
		end()
		Start(ctx, "after the end")()
	}
	all := b.All()
	if len(all) != mostOperations || all[0].Phase != "6" || len(all[3].Steps) != mostSteps {
		t.Errorf("%d operations from %s on, with %d steps", len(all), all[0].Phase, len(all[3].Steps))
	}
}
