package v1

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/trace"
)

// Traces knows what the time of operations went into.
type Traces interface {
	// Traces returns the latest of a sandbox, oldest first.
	Traces(ctx context.Context, id string) ([]trace.Operation, error)
}

type tracesView struct {
	Traces []traceView `json:"traces" doc:"The latest 4 since the server's start, oldest first."`
}

type traceView struct {
	Phase      string            `json:"phase" doc:"creating, resuming, pausing or snapshotting."`
	Cause      string            `json:"cause" doc:"What set it off, as in the events."`
	Begin      httpapi.Timestamp `json:"begin"`
	DurationMs float64           `json:"durationMs" doc:"So far, if it is not done."`
	Done       bool              `json:"done"`
	Steps      []stepView        `json:"steps" doc:"In the order in which they began. They may overlap. What lies in no step is between them."`
}

type stepView struct {
	Name       string  `json:"name" doc:"For people: it may change with each release."`
	Depth      int     `json:"depth" doc:"In how many of the steps before it this one lies."`
	AtMs       float64 `json:"atMs" doc:"When it began, since the operation did."`
	DurationMs float64 `json:"durationMs" doc:"So far, if it is not done."`
	Done       bool    `json:"done"`
}

func traces(s *server, c *call) (reply, error) {
	all, err := s.Options.Traces.Traces(c.r.Context(), c.sandbox)
	if err != nil {
		return reply{}, err
	}
	v := tracesView{Traces: []traceView{}}
	for _, op := range all {
		t := traceView{Phase: op.Phase, Cause: op.Cause, Begin: httpapi.Timestamp(op.Begin), DurationMs: millis(op.Took), Done: op.Done, Steps: []stepView{}}
		for _, p := range op.Steps {
			t.Steps = append(t.Steps, stepView{Name: p.Name, Depth: p.Depth, AtMs: millis(p.At), DurationMs: millis(p.Took), Done: p.Done})
		}
		v.Traces = append(v.Traces, t)
	}
	return ok(v)
}

// millis has microseconds, and no more.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
