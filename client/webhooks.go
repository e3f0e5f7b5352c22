package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Webhooks are the receivers to which a server delivers events. Only an admin key
// may see or change them. They are E2B's: what E2B's clients make is here as well.
type Webhooks struct{ c *Client }

// NewWebhooks returns the webhooks of the server of a client.
func NewWebhooks(c *Client) Webhooks { return Webhooks{c} }

// Webhook is a receiver of events.
type Webhook struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	URL       string    `json:"url"`
	Enabled   bool      `json:"enabled"`
	Events    []string  `json:"events"` // such as sandbox.lifecycle.paused
	CreatedAt time.Time `json:"createdAt"`
}

// WebhookOptions says what a new webhook is to be.
type WebhookOptions struct {
	Name   string   `json:"name"`
	URL    string   `json:"url"`
	Events []string `json:"events"`
	Secret string   `json:"signatureSecret"` // what deliveries are signed with
}

// WebhookStats is how a webhook does.
type WebhookStats struct {
	Delivered       int64     `json:"delivered"`
	Dropped         int64     `json:"dropped"` // given up after 7 days
	Failures        int       `json:"consecutiveFailures"`
	CaughtUp        bool      `json:"caughtUp"`
	LastDeliveredAt time.Time `json:"lastDeliveredAt,omitzero"`
	LastFailureAt   time.Time `json:"lastFailureAt,omitzero"`
	LastError       string    `json:"lastError,omitempty"`
	NextAttemptAt   time.Time `json:"nextAttemptAt,omitzero"`
}

// Delivery is one try to deliver an event.
type Delivery struct {
	ID         string    `json:"id"` // the same for all tries of the event
	EventID    string    `json:"eventId"`
	EventType  string    `json:"eventType"`
	At         time.Time `json:"timestamp"`
	Attempt    int       `json:"attempt"` // from 1
	Success    bool      `json:"success"`
	StatusCode int       `json:"statusCode,omitempty"` // 0 without an answer
	Error      string    `json:"error,omitempty"`
	DurationMs int64     `json:"durationMs"`
}

const webhooksPath = "/events/webhooks"

func (w Webhooks) call(ctx context.Context, method, id, below string, query url.Values, in, out any) error {
	path := webhooksPath
	if id != "" {
		path += "/" + url.PathEscape(id) + below
	}
	return w.c.call(ctx, method, path, query, in, out)
}

// Create makes a webhook. It gets what happens from now on.
func (w Webhooks) Create(ctx context.Context, o WebhookOptions) (Webhook, error) {
	var out Webhook
	if err := w.call(ctx, http.MethodPost, "", "", nil, o, &out); err != nil {
		return Webhook{}, fmt.Errorf("make webhook %s: %w", o.Name, err)
	}
	return out, nil
}

// List returns all webhooks, oldest first.
func (w Webhooks) List(ctx context.Context) ([]Webhook, error) {
	var out []Webhook
	if err := w.call(ctx, http.MethodGet, "", "", nil, nil, &out); err != nil {
		return nil, fmt.Errorf("list webhooks: %w", err)
	}
	return out, nil
}

// Stats returns how a webhook does.
func (w Webhooks) Stats(ctx context.Context, id string) (WebhookStats, error) {
	var out WebhookStats
	if err := w.call(ctx, http.MethodGet, id, "/stats", nil, nil, &out); err != nil {
		return WebhookStats{}, fmt.Errorf("read how webhook %s does: %w", id, err)
	}
	return out, nil
}

// Deliveries returns the last tries to deliver since the server's start, newest first,
// most of them at most; 0 is as many as there are.
func (w Webhooks) Deliveries(ctx context.Context, id string, most int) ([]Delivery, error) {
	query := url.Values{}
	if most > 0 {
		query.Set("limit", strconv.Itoa(most))
	}
	var out []Delivery
	if err := w.call(ctx, http.MethodGet, id, "/deliveries", query, nil, &out); err != nil {
		return nil, fmt.Errorf("list the deliveries of webhook %s: %w", id, err)
	}
	return out, nil
}

// Enable switches a webhook on or off. What happens while it is off it does not get.
func (w Webhooks) Enable(ctx context.Context, id string, on bool) (Webhook, error) {
	var out Webhook
	if err := w.call(ctx, http.MethodPatch, id, "", nil, map[string]bool{"enabled": on}, &out); err != nil {
		return Webhook{}, fmt.Errorf("change webhook %s: %w", id, err)
	}
	return out, nil
}

// Retry has a webhook that waits after a failure try again at once. With the id of
// an event that is still in the event log, it gets all events again from that one on.
func (w Webhooks) Retry(ctx context.Context, id, fromEvent string) (Webhook, error) {
	in := map[string]string{}
	if fromEvent != "" {
		in["replayFrom"] = fromEvent
	}
	var out Webhook
	if err := w.call(ctx, http.MethodPatch, id, "", nil, in, &out); err != nil {
		return Webhook{}, fmt.Errorf("retry webhook %s: %w", id, err)
	}
	return out, nil
}

// Remove removes a webhook, and breaks off what is being delivered.
func (w Webhooks) Remove(ctx context.Context, id string) error {
	if err := w.call(ctx, http.MethodDelete, id, "", nil, nil, nil); err != nil {
		return fmt.Errorf("remove webhook %s: %w", id, err)
	}
	return nil
}
