package supervisor

import (
	"context"

	"github.com/drowse-dev/drowse/internal/store"
)

// Events returns up to limit entries of the event log with Seq > after, oldest
// first, of one sandbox or, with an empty id, of all.
func (s *Supervisor) Events(ctx context.Context, sandbox string, after int64, limit int) ([]store.Event, error) {
	return s.o.Store.Events(ctx, sandbox, after, limit)
}

// EventsBefore returns up to limit entries of the event log with Seq < before,
// newest first, of one sandbox or, with an empty id, of all.
func (s *Supervisor) EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]store.Event, error) {
	return s.o.Store.EventsBefore(ctx, sandbox, before, limit)
}

// LastEvent returns the Seq of the last entry of the event log; 0 if there is
// none.
func (s *Supervisor) LastEvent(ctx context.Context) (int64, error) {
	last, err := s.o.Store.LastEvents(ctx, "", 1)
	if err != nil || len(last) == 0 {
		return 0, err
	}
	return last[0].Seq, nil
}

// Changed returns a channel that is closed at the next commit of any sandbox.
func (s *Supervisor) Changed() <-chan struct{} {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	return s.changed
}

func (s *Supervisor) announce() {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}
