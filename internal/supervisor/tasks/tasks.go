// Package tasks knows what is at work on one sandbox: the effects of its operations, and
// whoever reads its checkpoint. Each can be told to stop, and waited for.
package tasks

import (
	"context"
	"sync"
	"time"
)

// Set is the work in flight. The zero value is ready. It is safe for concurrent use.
type Set struct {
	mu    sync.Mutex
	tasks map[string]*Task // the last of each name
}

// Task is work that can be told to stop.
type Task struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// Begin begins work under a name. Its ctx ends when it is told to stop, and with the
// parent. Whoever does it calls end once.
func (s *Set) Begin(parent context.Context, name string) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(parent)
	t := &Task{cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tasks == nil {
		s.tasks = map[string]*Task{}
	}
	s.tasks[name] = t
	return ctx, func() {
		cancel()
		s.mu.Lock()
		if s.tasks[name] == t {
			delete(s.tasks, name)
		}
		s.mu.Unlock()
		close(t.done)
	}
}

// Stop tells the work of a name to stop, if there is any.
func (s *Set) Stop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks[name]; t != nil {
		t.cancel()
	}
}

// StopAll tells all work to stop, and returns it.
func (s *Set) StopAll() (all []*Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		t.cancel()
		all = append(all, t)
	}
	return all
}

// Await waits until tasks have ended. It calls force once if that takes longer than most:
// then they end.
func Await(tasks []*Task, most time.Duration, force func()) {
	patience := time.NewTimer(most)
	defer patience.Stop()
	for _, t := range tasks {
		select {
		case <-t.done:
			continue
		case <-patience.C:
		}
		force()
		<-t.done
	}
}
