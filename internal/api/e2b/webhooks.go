package e2b

import (
	"context"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/webhook"
)

// webhookView is a webhook as it can be read: without its secret.
type webhookView struct {
	ID        string            `json:"id"`
	TeamID    string            `json:"teamId"`
	CreatedAt httpapi.Timestamp `json:"createdAt"`
	Name      string            `json:"name"`
	URL       string            `json:"url"`
	Enabled   bool              `json:"enabled"`
	Events    []string          `json:"events"`
}

func viewWebhook(w store.Webhook) webhookView {
	return webhookView{w.ID, teamID, httpapi.Timestamp(w.CreatedAt), w.Name, w.URL, w.Enabled, w.Events}
}

// change is what a body says of a webhook; what it leaves out stays.
type change map[string]body.Said

// apply puts into w what the body says.
func (b change) apply(w *store.Webhook) {
	set(b, "name", &w.Name)
	set(b, "url", &w.URL)
	set(b, "enabled", &w.Enabled)
	set(b, "signatureSecret", &w.Secret)
	set(b, "events", &w.Events)
}

// set changes a field to what was said, if anything was.
func set[T any](b change, option string, field *T) {
	if value, given := said[T](b, option); given {
		*field = value
	}
}

// webhookBody reads the body of create and change.
func (c *call) webhookBody() (change, error) {
	events, _ := said[[]string](c.words, "events")
	for _, kind := range events {
		if err := checkEventType(kind); err != nil {
			return nil, err
		}
	}
	return c.words, nil
}

func (s *server) createWebhook(c *call) (reply, error) {
	said, err := c.webhookBody()
	if err != nil {
		return reply{}, err
	}
	if _, given := said["replayFrom"]; given {
		return reply{}, badRequest(`"replayFrom" is for a webhook that exists`)
	}
	w := store.Webhook{Enabled: true}
	said.apply(&w)
	w, err = s.Webhooks.Create(c.r.Context(), w)
	return reply{Status: http.StatusCreated, Body: viewWebhook(w)}, err
}

func (s *server) changeWebhook(c *call) (reply, error) {
	words, err := c.webhookBody()
	if err != nil {
		return reply{}, err
	}
	var from int64
	if id, given := said[string](words, "replayFrom"); given {
		if from, err = s.findEvent(c.r.Context(), id); err != nil {
			return reply{}, err
		}
	}
	w, err := s.Webhooks.Change(c.r.Context(), c.params[webhookParam], func(w *store.Webhook) {
		words.apply(w)
		if from > 0 {
			w.Cursor = from - 1
		}
	})
	return reply{Status: http.StatusOK, Body: viewWebhook(w)}, err
}

// findEvent returns the place in the log of the event with an id.
func (s *server) findEvent(ctx context.Context, id string) (int64, error) {
	unknown := errdef.New(errdef.NotFound, "event_not_found", "there is no event %.100q, or it is not kept any more", id).
		WithRemedy("list the events")
	digits := strings.ReplaceAll(id, "-", "")
	bytes, err := hex.DecodeString(digits)
	if err != nil || len(bytes) != 16 {
		return 0, unknown
	}
	var seq int64
	for _, b := range bytes[10:] {
		seq = seq<<8 | int64(b)
	}
	found, err := s.Sandboxes.Events(ctx, "", seq-1, 1)
	if err != nil {
		return 0, err
	}
	if len(found) != 1 || found[0].Seq != seq || eventID(found[0].Sandbox, seq) != id {
		return 0, unknown
	}
	return seq, nil
}

func (s *server) webhooks(*call) (reply, error) {
	views := []webhookView{}
	for _, w := range s.Webhooks.List() {
		views = append(views, viewWebhook(w))
	}
	return reply{Status: http.StatusOK, Body: views}, nil
}

func (s *server) webhook(c *call) (reply, error) {
	w, err := s.Webhooks.Get(c.params[webhookParam])
	return reply{Status: http.StatusOK, Body: viewWebhook(w)}, err
}

func (s *server) deleteWebhook(c *call) (reply, error) {
	return reply{Status: http.StatusOK, Body: struct{}{}}, s.Webhooks.Delete(c.r.Context(), c.params[webhookParam])
}

// deliveryView is one try to deliver an event.
type deliveryView struct {
	ID         string            `json:"id"`
	EventID    string            `json:"eventId"`
	EventType  string            `json:"eventType"`
	Timestamp  httpapi.Timestamp `json:"timestamp"`
	Attempt    int               `json:"attempt"`
	Success    bool              `json:"success"`
	StatusCode int               `json:"statusCode,omitzero"`
	Error      string            `json:"error,omitzero"`
	DurationMs int64             `json:"durationMs"`
}

func (s *server) deliveries(c *call) (reply, error) {
	limit, err := pageLimit(c.query)
	if err != nil {
		return reply{}, err
	}
	attempts, err := s.Webhooks.Deliveries(c.r.Context(), c.params[webhookParam])
	if err != nil {
		return reply{}, err
	}
	views := []deliveryView{}
	for _, a := range attempts[:min(limit, len(attempts))] {
		views = append(views, deliveryView{
			a.Delivery, a.Event, a.Type, httpapi.Timestamp(a.At), a.Number, a.OK(), a.Status, a.Err, a.Duration.Milliseconds(),
		})
	}
	return reply{Status: http.StatusOK, Body: views}, nil
}

// statsView is how a webhook does. Delivered and dropped count from when it was
// made.
type statsView struct {
	Delivered       int64             `json:"delivered"`
	Dropped         int64             `json:"dropped"`
	Failures        int               `json:"consecutiveFailures"`
	CaughtUp        bool              `json:"caughtUp"`
	LastDeliveredAt httpapi.Timestamp `json:"lastDeliveredAt,omitzero"`
	LastFailureAt   httpapi.Timestamp `json:"lastFailureAt,omitzero"`
	LastError       string            `json:"lastError,omitzero"`
	NextAttemptAt   httpapi.Timestamp `json:"nextAttemptAt,omitzero"`
}

func (s *server) webhookStats(c *call) (reply, error) {
	st, err := s.Webhooks.Stats(c.r.Context(), c.params[webhookParam])
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusOK, Body: viewStats(st)}, nil
}

func viewStats(st webhook.Stats) statsView {
	return statsView{
		Delivered: st.Delivered, Dropped: st.Dropped, Failures: st.Failures, CaughtUp: st.Cursor >= st.Last,
		LastDeliveredAt: httpapi.Timestamp(st.LastDelivered), LastFailureAt: httpapi.Timestamp(st.LastFailure),
		LastError: st.LastError, NextAttemptAt: httpapi.Timestamp(st.NextTry),
	}
}
