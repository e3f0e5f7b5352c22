package insist

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestWork: work begins while others wait, and nobody returns while there is some.
func TestWork(t *testing.T) {
	var w Work
	w.Wait()
	var running atomic.Int64
	var waiting sync.WaitGroup
	for range 2000 {
		end := make(chan struct{})
		running.Add(1)
		w.Go(func() { <-end; running.Add(-1) })
		waiting.Go(w.Wait)
		close(end)
	}
	w.Wait()
	if n := running.Load(); n != 0 {
		t.Errorf("%d run still", n)
	}
	waiting.Wait()
}
