package held

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// TestWhatLastsLeavesRoom: connections that wait as long as they like take no more
// than half of each bound, and the rest is for what ends.
func TestWhatLastsLeavesRoom(t *testing.T) {
	r := New()
	who := Who{"k", "192.0.2.1"}
	var lasting []*Share
	for {
		s := r.Lasting(who)
		lasting = append(lasting, s)
		if !s.Grow(1 << 20) {
			break
		}
	}
	if n := r.Of("k").Waiting; n != MaxKeyWaiting/2 {
		t.Errorf("what lasts has %d bytes, want %d", n, MaxKeyWaiting/2)
	}
	if !r.Passing(who).Grow(MaxKeyWaiting / 2) {
		t.Error("what ends has no room beside what lasts")
	}
	if r.Passing(who).Grow(1) {
		t.Error("the key has more than it may")
	}
	for _, s := range lasting {
		s.Free()
		s.Free()
		s.Shrink(1)
	}
	if n := r.Of("k").Waiting; n != MaxKeyWaiting/2 {
		t.Errorf("%d bytes are held after what lasted ended", n)
	}
	if lasting[0].Grow(1) {
		t.Error("a share grew after it was freed")
	}
}

func TestOutputLeavesRoomForRecords(t *testing.T) {
	r := New()
	for r.Output("k").Grow(1 << 20) {
	}
	if n := r.Of("k").Kept; n != maxKeyKept*3/4 {
		t.Errorf("output takes %d bytes", n)
	}
	if !r.Record("k").Grow(1<<20) || !r.Output("other").Grow(1<<20) {
		t.Error("there is no room beside it")
	}
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		first, second := r.Passing(Who{Key: "k"}), r.Passing(Who{Key: "k"})
		first.Grow(MaxKeyWaiting)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			time.Sleep(time.Second)
			first.Shrink(10)
			time.Sleep(time.Second)
			first.Shrink(10)
		}()
		begin := time.Now()
		if !second.Await(ctx, 20) || time.Since(begin) != 2*time.Second {
			t.Errorf("room was found after %s", time.Since(begin))
		}
		if second.Await(ctx, 1) || ctx.Err() == nil {
			t.Error("there was room for more than there may be")
		}
	})
}

func TestSessions(t *testing.T) {
	r := New()
	who := Who{"k", "192.0.2.1"}
	var last func()
	for range maxKeySessions {
		leave, err := r.Session(who)
		if err != nil {
			t.Fatal(err)
		}
		last = leave
	}
	if _, err := r.Session(who); !errdef.Is(err, errdef.Exhausted) {
		t.Error("one session too many")
	}
	if _, err := r.Session(Who{"other", who.Address}); err != nil {
		t.Error("another key has no room")
	}
	last()
	last()
	if n := r.Of("k").Sessions; n != maxKeySessions-1 {
		t.Errorf("%d sessions are counted", n)
	}
}
