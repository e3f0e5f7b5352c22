package supervisor

import (
	"sync"
	"testing"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestPausesWaitForTheirTurn pauses many sandboxes of one key while none can write its
// image. So many are written at once as a key has turns, those of another key are not
// held up by them, and in the end all are.
func TestPausesWaitForTheirTurn(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	now, most := 0, 0
	goOn := make(chan struct{})
	b.set(func() {
		b.checkpoint = func() error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-goOn
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}
	})
	s, _ := b.open()
	all, each := s.captures.Turns()
	underway := func() int {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	paused := make(chan error, all+2)
	pause := func(key string) string {
		id := create(t, s, CreateRequest{Config: store.Config{Key: key}})
		go func() { paused <- s.Pause(t.Context(), id, PauseRequest{}) }()
		return id
	}
	var ids []string
	for range all + 1 {
		ids = append(ids, pause("greedy"))
	}
	testmode.Eventually(t, "the pauses of all", func() bool {
		for _, id := range ids {
			if record(t, s, id).Phase() != lifecycle.Pausing {
				return false
			}
		}
		return underway() >= each
	})
	pause("modest")
	testmode.Eventually(t, "the pause of another key", func() bool { return underway() > each })
	close(goOn)
	for range all + 2 {
		if err := <-paused; err != nil {
			t.Error(err)
		}
	}
	if most > each+1 {
		t.Errorf("%d images were written at once; a key has %d turns, and another key wrote one", most, each)
	}
}
