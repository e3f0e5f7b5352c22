package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Trace is what the time of an operation of a sandbox went into.
type Trace struct {
	Phase string        `json:"phase"` // creating, resuming, pausing or snapshotting
	Cause string        `json:"cause"` // as in events
	Begin time.Time     `json:"begin"` // by the server's clock
	Took  time.Duration `json:"-"`     // so far, if it is not Done
	Done  bool          `json:"done"`
	Steps []Step        `json:"steps"` // in the order in which they began

	// Raw is the trace as it came.
	Raw json.RawMessage `json:"-"`
}

// Step is a part of an operation. Steps may overlap.
type Step struct {
	Name  string        `json:"name"`  // for people
	Depth int           `json:"depth"` // in how many of the steps before it this one lies
	At    time.Duration `json:"-"`     // since the operation began
	Took  time.Duration `json:"-"`     // so far, if it is not Done
	Done  bool          `json:"done"`
}

// Traces returns what the time of the latest operations of a sandbox went into, oldest
// first: creates, wakes, pauses and snapshots since the server's start. It is no activity.
func Traces(ctx context.Context, c *Client, id string) ([]Trace, error) {
	var answer struct{ Traces []Trace }
	if err := c.on(ctx, http.MethodGet, id, "/traces", nil, &answer); err != nil {
		return nil, fmt.Errorf("traces of sandbox %s: %w", id, err)
	}
	return answer.Traces, nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Trace) UnmarshalJSON(data []byte) error {
	type plain Trace
	in := struct {
		*plain
		DurationMs float64
	}{plain: (*plain)(t)}
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	t.Took, t.Raw = millis(in.DurationMs), json.RawMessage(string(data))
	return nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Step) UnmarshalJSON(data []byte) error {
	type plain Step
	in := struct {
		*plain
		AtMs, DurationMs float64
	}{plain: (*plain)(s)}
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	s.At, s.Took = millis(in.AtMs), millis(in.DurationMs)
	return nil
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
