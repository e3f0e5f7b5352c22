package v1

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/events"
)

// eventView is an entry of the event log, which is the history of all
// sandboxes: it was written in the transaction of the change that it tells.
type eventView struct {
	ID              int64               `json:"id" doc:"Strictly increasing over all sandboxes; use it as a cursor."`
	Time            httpapi.Timestamp   `json:"time"`
	Type            lifecycle.EntryType `json:"type"`
	Sandbox         string              `json:"sandbox"`
	Generation      int64               `json:"generation"`
	From            lifecycle.Situation `json:"from"`
	To              lifecycle.Situation `json:"to"`
	Cause           *lifecycle.Cause    `json:"cause"`
	Actor           *string             `json:"actor"`
	Operation       *string             `json:"operation" doc:"The operation that the event belongs to."`
	DurationSeconds *float64            `json:"durationSeconds" doc:"Duration of the operation that ended."`
	Bytes           *int64              `json:"bytes" doc:"Bytes that the operation wrote."`
	Freed           *int64              `json:"freed" doc:"Bytes of host memory that were freed; null if unknown."`
	Detail          *string             `json:"detail"`
}

type eventsView struct {
	Events []eventView `json:"events"`
	Next   int64       `json:"next" doc:"Pass it as after to get the next events."`
}

func viewEvent(e store.Event) eventView {
	return eventView{
		ID: e.Seq, Time: httpapi.Timestamp(e.At), Type: e.Type, Sandbox: e.Sandbox, Generation: e.Generation,
		From: e.From, To: e.To, Cause: orNull(e.Cause), Actor: orNull(e.Actor), Operation: orNull(e.Op),
		DurationSeconds: orNull(e.Duration.Seconds()), Bytes: orNull(e.Bytes), Freed: orNull(e.Freed), Detail: orNull(e.Detail),
	}
}

func viewEvents(all []store.Event) []eventView {
	views := make([]eventView, 0, len(all))
	for _, e := range all {
		views = append(views, viewEvent(e))
	}
	return views
}

// sandboxEvents answers for one sandbox, ended ones included.
func (s *server) sandboxEvents(c *call) (reply, error) {
	if _, err := s.Sandboxes.Find(c.r.Context(), c.sandbox); err != nil {
		return reply{}, err
	}
	q := c.query()
	if q.Has(beforeParam) {
		return eventsBefore(s, c, q)
	}
	return s.events(c)
}

// eventsBefore answers with the newest events of a sandbox before another.
func eventsBefore(s *server, c *call, q query) (reply, error) {
	before := int64(math.MaxInt64)
	if q.Get(beforeParam) != fromNow {
		var err error
		if before, err = q.number(beforeParam, before, 0, math.MaxInt64); err != nil {
			return reply{}, err
		}
	}
	limit, err := q.number("limit", defaultPage, 1, maxPage)
	if err != nil {
		return reply{}, err
	}
	if q.Has("after") || q.Has("follow") {
		return reply{}, body.Invalid(`%q is for what has happened: it goes neither with "after" nor with "follow"`, beforeParam).With("field", beforeParam)
	}
	found, err := s.Sandboxes.EventsBefore(c.r.Context(), c.sandbox, before, int(limit))
	if err != nil {
		return reply{}, err
	}
	v := eventsView{Events: viewEvents(found)}
	if n := len(found); n > 0 {
		v.Next = found[n-1].Seq
	}
	return ok(v)
}

// events answers for the sandbox of the call, or for all.
func (s *server) events(c *call) (reply, error) {
	q := c.query()
	after, err := s.after(c, q)
	if err != nil {
		return reply{}, err
	}
	limit, err := q.number("limit", defaultPage, 1, maxPage)
	if err != nil {
		return reply{}, err
	}
	follow, err := follows(c.r, q)
	if err != nil {
		return reply{}, err
	}
	if follow {
		return s.follow(c, after)
	}
	found, err := s.eventsAfter(c.r.Context(), c, after, int(limit))
	if err != nil {
		return reply{}, err
	}
	return ok(eventsView{Events: viewEvents(found.Events), Next: found.Next})
}

// eventsAfter returns up to limit events of the sandbox of the call, or of all
// that its key sees.
func (s *server) eventsAfter(ctx context.Context, c *call, after int64, limit int) (events.Page, error) {
	of := events.Scope{Sandbox: c.sandbox}
	if !auth.SeesAll(c.key) {
		of.Key = c.key.ID
	}
	return s.Sandboxes.EventsAfter(ctx, of, after, limit)
}

// fromNow is the cursor of what is yet to happen.
const fromNow = "now"

// after returns the id of the event after which to begin.
func (s *server) after(c *call, q query) (int64, error) {
	text := q.Get("after")
	if text == fromNow {
		return s.Sandboxes.LastEvent(c.r.Context())
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if text != "" && (err != nil || n < 0) {
		return 0, body.Invalid(`"after" must be the id of an event or %s, not %q`, fromNow, body.Short(text)).With("field", "after")
	}
	return n, nil
}

// follows reports whether a stream is asked for.
func follows(r *http.Request, q query) (bool, error) {
	if q.Get("follow") == "" {
		return strings.Contains(strings.ToLower(r.Header.Get("Accept")), "text/event-stream"), nil
	}
	return q.flag("follow")
}

// follow answers with a stream. A client that comes back says with Last-Event-ID
// what it has seen, and that counts more than where its URL says to begin.
func (s *server) follow(c *call, after int64) (reply, error) {
	if last := c.r.Header.Get("Last-Event-ID"); last != "" {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 {
			return reply{}, body.Invalid("Last-Event-ID is %q, which is no id of an event", body.Short(last)).With("field", "Last-Event-ID")
		}
		after = n
	}
	leave, err := s.Room.Follower(held.From(c.r, c.key.ID))
	if err != nil {
		return reply{}, err
	}
	return reply{Stream: func(w http.ResponseWriter) {
		defer leave()
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		w.WriteHeader(http.StatusOK)
		if c.r.Method == http.MethodHead {
			return
		}
		ctx, cancel := s.Auth.Bind(c.r.Context(), c.key.ID)
		defer cancel()
		st := &eventStream{w: w, out: http.NewResponseController(w), texts: &s.texts}
		if err := s.stream(ctx, c, st, after); err != nil && ctx.Err() == nil {
			c.log.Warn("event stream ended", "err", err) // the client comes back for the rest
		}
	}}, nil
}

// streamPage is how many events are sent at once: they wait in memory for a client
// that does not read.
const streamPage = 100

// streamEvery is how often the log is read for one stream at most. What comes alone
// goes out at once; what comes in a flood, of whatever key, goes out together.
const streamEvery = 50 * time.Millisecond

// stream sends what happens after an event until ctx ends: the client is gone,
// or its key no longer good. The channel is asked for before the log is read, so
// that a commit between the two is noticed.
func (s *server) stream(ctx context.Context, c *call, st *eventStream, after int64) error {
	alive := time.NewTicker(s.KeepAlive)
	defer alive.Stop()
	// The id tells a client where it is before the first event, so that it loses
	// none if the stream breaks until then.
	if err := st.send(fmt.Sprintf("retry: 1000\nid: %d\n\n", after)); err != nil {
		return err
	}
	for {
		changed, next := s.Sandboxes.Changed(), time.After(streamEvery)
		for more := true; more; {
			found, err := s.eventsAfter(ctx, c, after, streamPage)
			if err != nil {
				return fmt.Errorf("read events after %d: %w", after, err)
			}
			if err := st.sendEvents(found.Events); err != nil {
				return err
			}
			after, more = found.Next, found.More
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-alive.C:
			if err := st.send(": keep-alive\n\n"); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
	}
}

// eventTexts are events as streams have them, made once for all who follow. Those
// of one place in it are the ones whose ids leave the same rest.
type eventTexts struct {
	mu sync.Mutex
	of [keptTexts]struct {
		seq  int64
		text string
	}
}

const keptTexts = 1024

func (t *eventTexts) text(e store.Event) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := &t.of[e.Seq%keptTexts]
	if kept.seq != e.Seq {
		data, err := json.Marshal(viewEvent(e))
		if err != nil {
			return "", fmt.Errorf("encode event %d: %w", e.Seq, err)
		}
		kept.seq, kept.text = e.Seq, fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Type, data)
	}
	return kept.text, nil
}

// eventStream writes server-sent events.
type eventStream struct {
	w     http.ResponseWriter
	out   *http.ResponseController
	texts *eventTexts
}

// writeWait is how long a client may not read before it counts as gone.
const writeWait = 30 * time.Second

func (s *eventStream) sendEvents(all []store.Event) error {
	var b strings.Builder
	for _, e := range all {
		text, err := s.texts.text(e)
		if err != nil {
			return err
		}
		b.WriteString(text)
	}
	if b.Len() == 0 {
		return nil
	}
	return s.send(b.String())
}

func (s *eventStream) send(text string) error {
	_ = s.out.SetWriteDeadline(time.Now().Add(writeWait)) // not every connection has one
	if _, err := s.w.Write([]byte(text)); err != nil {
		return fmt.Errorf("write to the client: %w", err)
	}
	if err := s.out.Flush(); err != nil {
		return fmt.Errorf("write to the client: %w", err)
	}
	return nil
}
