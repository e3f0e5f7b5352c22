package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Event is an entry of the event log, which is the history of all sandboxes.
// Each was written in one transaction with the change that it tells.
type Event struct {
	ID         int64         `json:"id"` // strictly increasing over all sandboxes: a cursor
	Time       time.Time     `json:"time"`
	Type       string        `json:"type"` // such as created, paused, hold.stalled, terminated
	Sandbox    string        `json:"sandbox"`
	Generation int64         `json:"generation"`
	From       string        `json:"from"` // a state, or the phase of an operation in flight
	To         string        `json:"to"`
	Cause      string        `json:"cause,omitempty"` // such as call, timeout, idle, access
	Actor      string        `json:"actor,omitempty"`
	Operation  string        `json:"operation,omitempty"` // that it belongs to
	Duration   time.Duration `json:"-"`                   // of the operation that ended
	Bytes      int64         `json:"bytes,omitempty"`     // what the operation wrote
	Freed      int64         `json:"freed,omitempty"`     // bytes of the machine's memory that it gave back
	Detail     string        `json:"detail,omitempty"`

	// Raw is the event as it came.
	Raw json.RawMessage `json:"-"`
}

// EventTerminated is the type of the last event of a sandbox.
const EventTerminated = "terminated"

// EventOptions selects events. The zero value selects all of all sandboxes.
type EventOptions struct {
	Sandbox string // of one sandbox
	After   int64  // with a greater id; FromNow for those that are yet to happen
	Limit   int    // at most so many, in Events; zero means the server's default
}

// FromNow, as EventOptions.After, is the end of the event log.
const FromNow int64 = -1

// EventPage is a part of the event log, oldest first.
type EventPage struct {
	Events []Event `json:"events"`
	Next   int64   `json:"next"` // EventOptions.After to go on
}

func (o EventOptions) path() (string, error) {
	if o.Sandbox == "" {
		return "/v1/events", nil
	}
	path, err := sandboxPath(o.Sandbox)
	return path + "/events", err
}

func (o EventOptions) query() url.Values {
	q := url.Values{}
	switch {
	case o.After == FromNow:
		q.Set("after", "now")
	case o.After != 0:
		q.Set("after", strconv.FormatInt(o.After, 10))
	}
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	return q
}

// Events reads the event log, oldest first. An empty page is its end for now.
func (c *Client) Events(ctx context.Context, o EventOptions) (EventPage, error) {
	var page EventPage
	path, err := o.path()
	if err == nil {
		err = c.call(ctx, http.MethodGet, path, o.query(), nil, &page)
	}
	if err != nil {
		return EventPage{}, fmt.Errorf("read events: %w", err)
	}
	return page, nil
}

// How a stream is held.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// streamSilence is how long a stream may be silent before it counts as
	// dead. The server says something every 15 seconds.
	streamSilence = time.Minute
	maxLine       = 1 << 20
)

// errSilent says that a stream broke off without a word.
var errSilent = errors.New("the server was silent for " + streamSilence.String())

// Follow yields the events that there are, unless it is told to begin FromNow,
// and then each as it happens, every
// one once and in order. A connection that breaks is taken up again where it
// broke off, as often as it takes. The sequence ends with an error: that of the
// context, or that the server refuses or was not there to begin with.
func (c *Client) Follow(ctx context.Context, o EventOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		f := follower{client: c, options: o, yield: yield, wait: firstRetry}
		if err := f.run(ctx); err != nil {
			yield(Event{}, fmt.Errorf("follow events: %w", err))
		}
	}
}

// follower is one Follow.
type follower struct {
	client  *Client
	options EventOptions
	yield   func(Event, error) bool

	reached bool // the server has answered once
	wait    time.Duration
}

// errEnough says that the caller wants no more.
var errEnough = errors.New("enough")

func (f *follower) run(ctx context.Context) error {
	for {
		err := f.connect(ctx)
		switch {
		case errors.Is(err, errEnough):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !f.reached || isFinal(err):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(f.wait):
			f.wait = min(2*f.wait, lastRetry)
		}
	}
}

// isFinal reports whether a server would say the same again.
func isFinal(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status < http.StatusInternalServerError && e.Status != http.StatusTooManyRequests
}

// connect reads one stream until it breaks.
func (f *follower) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(streamSilence, func() { cancel(errSilent) })
	defer watchdog.Stop()

	path, err := f.options.path()
	if err != nil {
		return err
	}
	f.options.Limit = 0
	req, err := f.client.request(ctx, http.MethodGet, path, f.options.query(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	if f.reached && f.options.After != FromNow {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(f.options.After, 10))
	}
	resp, err := f.client.send(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return invalid("no_stream", "the server answered %q, not a stream of events", kind)
	}
	f.reached = true
	return f.read(resp.Body, func() { watchdog.Reset(streamSilence) })
}

// read yields the events of a stream. alive is called for every line.
func (f *follower) read(body io.Reader, alive func()) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	var data strings.Builder
	var id string
	for lines.Scan() {
		alive()
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "data":
			data.WriteString(value)
		case field == "id":
			id = value
		case lines.Text() == "" && data.Len() > 0:
			if err := f.deliver(data.String()); err != nil {
				return err
			}
			data.Reset()
		case lines.Text() == "":
			f.moveTo(id)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// moveTo takes note of where the stream is if no event says so.
func (f *follower) moveTo(id string) {
	if n, err := strconv.ParseInt(id, 10, 64); err == nil && n > f.options.After {
		f.options.After = n
	}
}

func (f *follower) deliver(data string) error {
	var e Event
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return invalid("bad_event", "understand an event: %v", err)
	}
	if e.ID <= f.options.After {
		return nil // seen
	}
	f.options.After, f.wait = e.ID, firstRetry
	if !f.yield(e, nil) {
		return errEnough
	}
	return nil
}
