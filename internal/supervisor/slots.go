package supervisor

import (
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// slots bounds how many sandboxes have a runtime at once. A slot is taken
// before the change that needs it is committed.
type slots struct {
	limit int64 // 0 for no bound

	mu    sync.Mutex
	taken int64
}

// claims reports whether a record has, or is about to have, a runtime.
func claims(r lifecycle.Record) bool {
	return r.State == lifecycle.Running || r.Phase() == lifecycle.Creating || r.Phase() == lifecycle.Resuming
}

// move takes or gives back what the change from before to after needs.
func (s *slots) move(before, after lifecycle.Record) error {
	had, needs := claims(before), claims(after)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case had == needs:
	case had:
		s.taken--
	case s.limit > 0 && s.taken >= s.limit:
		return errdef.New(errdef.Exhausted, "too_many_sandboxes",
			"you have reached the maximum number of concurrent E2B sandboxes (%d)", s.limit).
			WithRemedy("pause or kill some, or start the server with a larger --max-running")
	default:
		s.taken++
	}
	return nil
}

// hold takes a slot for a runtime that is there already, bound or not.
func (s *slots) hold(r lifecycle.Record) {
	if claims(r) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken++
	}
}
