package gvisor

import (
	"context"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestMemoryIsWatched lets a guest take more memory than it may. The watch asks
// for it, with room in the meantime; nobody inside gives any back, and the runtime
// is ended, of memory.
func TestMemoryIsWatched(t *testing.T) {
	r := newRig(t)
	i := start(t, r.reopen(t).(*Driver), r.newSpec(t))
	g, ok := memoryGroupOf(i.group)
	if !ok {
		t.Fatal("nothing bounds the guest's memory")
	}
	most := int64(guestSpec.Limits.MemoryMiB+memoryOverhead) << 20
	type plea struct{ bytes, limit int64 }
	pleas := make(chan plea, 1)
	go i.WatchMemory(t.Context(), func(_ context.Context, bytes int64) error {
		limit, _ := g.read(g.limit)
		select {
		case pleas <- plea{bytes, limit}:
		default:
		}
		return nil
	})
	for end := time.Now().Add(testmode.Patience()); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if limit, err := g.read(g.limit); err == nil && limit == most+memoryReserve {
			break
		}
	}
	wantLimit(t, g, most+memoryReserve)
	if err := hold(t, i, guestSpec.Limits.MemoryMiB/2); err != nil {
		t.Fatal(err)
	}
	select {
	case p := <-pleas:
		t.Fatalf("with half of its memory it was asked for %d bytes", p.bytes)
	default:
	}
	_ = hold(t, i, guestSpec.Limits.MemoryMiB/2+memoryOverhead) // it may be ended before it answers
	select {
	case p := <-pleas:
		if p.bytes <= most/reliefSlack || p.limit != 2*(most+memoryReserve) {
			t.Errorf("it was asked for %d bytes with a limit of %d; want more than %d, and %d", p.bytes, p.limit, most/reliefSlack, 2*(most+memoryReserve))
		}
	case <-time.After(testmode.Patience()):
		t.Fatal("it took more memory than it may, and nobody was asked for any")
	}
	select {
	case <-i.Exited():
	case <-time.After(testmode.Patience()):
		t.Fatal("it keeps more memory than it may")
	}
	if by, err := i.EndedBy(); err != nil || by.Limit != runtime.MemoryLimit {
		t.Errorf("it ended of %q, %v; want memory", by, err)
	}
}

func TestLookAgain(t *testing.T) {
	for left, want := range map[int64]time.Duration{
		-1:       leastLook,
		1 << 20:  leastLook,
		64 << 20: 31250 * time.Microsecond,
		64 << 30: mostLook,
	} {
		if got := lookAgain(left); got != want {
			t.Errorf("with %d bytes left it looks again after %s, want %s", left, got, want)
		}
	}
}

func TestTogether(t *testing.T) {
	begin := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct{ at, d, want time.Duration }{
		{0, mostLook, mostLook},
		{1, mostLook, mostLook - 1},
		{mostLook - 1, mostLook, 1},
		{mostLook, mostLook, mostLook},
		{7*mostLook + mostLook/4, mostLook, mostLook * 3 / 4},
		{mostLook - 1, mostLook - 1, mostLook - 1}, // it cannot wait as long
		{1, leastLook, leastLook},
	} {
		if got := together(c.d, begin.Add(c.at)); got != c.want {
			t.Errorf("%s past a moment for all, a look due in %s is in %s, want %s", c.at, c.d, got, c.want)
		}
	}
	// Of a time with a monotonic clock, too.
	if now := time.Now(); !now.Add(together(mostLook, now)).Truncate(mostLook).Equal(now.Truncate(mostLook).Add(mostLook)) {
		t.Errorf("at %s it waits for %s", now, together(mostLook, now))
	}
}
