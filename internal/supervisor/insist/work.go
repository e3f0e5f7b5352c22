package insist

import (
	"iter"
	"sync"
)

// Work is goroutines that somebody can wait for. Unlike with a sync.WaitGroup, more may
// begin while somebody waits for the last: calls go on while a server stops. The zero
// value is ready.
type Work struct {
	mu    sync.Mutex
	n     int
	ended chan struct{} // closed when n becomes 0; nil if nobody waits
}

// Go runs f in a goroutine.
func (w *Work) Go(f func()) {
	w.mu.Lock()
	w.n++
	w.mu.Unlock()
	go func() {
		defer w.end()
		f()
	}()
}

// Each calls f with each of all, of which at most so many at once, and returns when that
// is done.
func Each[T any](most int, all iter.Seq[T], f func(T)) {
	var work sync.WaitGroup
	turns := make(chan struct{}, most)
	for one := range all {
		turns <- struct{}{}
		work.Go(func() {
			defer func() { <-turns }()
			f(one)
		})
	}
	work.Wait()
}

func (w *Work) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n--; w.n == 0 && w.ended != nil {
		close(w.ended)
		w.ended = nil
	}
}

// Wait returns when nothing runs.
func (w *Work) Wait() {
	for {
		w.mu.Lock()
		if w.n == 0 {
			w.mu.Unlock()
			return
		}
		if w.ended == nil {
			w.ended = make(chan struct{})
		}
		ended := w.ended
		w.mu.Unlock()
		<-ended
	}
}
