package held

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// TestAnswers: large answers count until they are freed, small ones do not.
func TestAnswers(t *testing.T) {
	r := New()
	who := Who{"k", "192.0.2.1"}
	const size = 4 << 20
	var all []*Share
	for range MaxKeyWaiting / size {
		s, err := r.Answer(who, size)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if _, err := r.Answer(who, size); !errdef.Is(err, errdef.Exhausted) {
		t.Errorf("one answer too many: %v", err)
	}
	if _, err := r.Answer(who, answerPiece); err != nil {
		t.Errorf("a small answer: %v", err)
	}
	if _, err := r.Answer(Who{"other", who.Address}, size); err != nil {
		t.Errorf("another key: %v", err)
	}
	all[0].Free()
	if _, err := r.Answer(who, size); err != nil {
		t.Errorf("after one was taken: %v", err)
	}
}

// TestTold: an answer that must be given waits for room, and not for ever.
func TestTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		who := Who{"k", "192.0.2.1"}
		full, err := r.Answer(who, MaxKeyWaiting)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if s := r.Told(t.Context(), who, 1<<20); s.Has() != 0 || time.Since(begin) != answerPatience {
			t.Errorf("with no room, after %s, it has %d bytes", time.Since(begin), s.Has())
		}
		go func() {
			time.Sleep(time.Second)
			full.Free()
		}()
		begin = time.Now()
		s := r.Told(t.Context(), who, 1<<20)
		if s.Has() != 1<<20 || time.Since(begin) != time.Second {
			t.Errorf("with room, after %s, it has %d bytes", time.Since(begin), s.Has())
		}
		s.Free()
		if r.All() != (Holdings{}) {
			t.Errorf("held at the end: %+v", r.All())
		}
	})
}

// TestMakers: a key makes as many answers at once as there are processors, in the order
// in which they were asked for; another key does not wait for it.
func TestMakers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		var dones []func()
		for range runtime.GOMAXPROCS(0) {
			done, err := r.MakeAnswer(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			dones = append(dones, done)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := r.MakeAnswer(ctx, "k")
			gone <- err
		}()
		got := make(chan func(), 1)
		go func() {
			done, err := r.MakeAnswer(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			got <- done
		}()
		synctest.Wait()
		if len(gone)+len(got) > 0 {
			t.Error("one more has not waited")
		}
		other, err := r.MakeAnswer(t.Context(), "other")
		if err != nil {
			t.Fatal(err)
		}
		other()
		cancel()
		if err := <-gone; err == nil {
			t.Error("a client that has gone got a turn")
		}
		dones[0]()
		(<-got)()
		for _, done := range dones[1:] {
			done()
		}
		if n := r.makers.Keys(); n > 0 {
			t.Errorf("%d keys are remembered", n)
		}
	})
}
