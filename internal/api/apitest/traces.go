package apitest

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/trace"
)

// Traces is what the time of a Fake's operations went into.
type Traces struct{ f *Fake }

// NewTraces returns the traces of a Fake.
func NewTraces(f *Fake) Traces { return Traces{f} }

// Traces returns a trace of what made the sandbox what it is.
func (x Traces) Traces(_ context.Context, id string) ([]trace.Operation, error) {
	err := x.f.enter()
	defer x.f.mu.Unlock()
	sb, known := x.f.Sandboxes[id]
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, unknown(id)
	}
	steps := []trace.Step{
		{Name: "restore the runtime", At: 1500 * time.Microsecond, Took: 60 * time.Millisecond, Done: true},
		{Name: "run the guest", Depth: 1, At: 10 * time.Millisecond, Took: 40 * time.Millisecond, Done: true},
		{Name: "wait for the agent", At: 62 * time.Millisecond, Took: 18 * time.Millisecond},
	}
	return []trace.Operation{{Phase: "resuming", Cause: "access", Begin: sb.Record.StartedAt, Took: 80 * time.Millisecond, Steps: steps}}, nil
}
