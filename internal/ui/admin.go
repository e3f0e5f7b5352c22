package ui

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

type keysData struct {
	Keys []client.Key
	Own  string // the id of the one that somebody has signed in with
	Back string
}

func keys(v *visit) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	list, err := a.Keys(v.r.Context())
	if err != nil {
		return err
	}
	v.render(http.StatusOK, "keys", screen{Title: "API keys", Section: "keys", Data: keysData{list, v.session.holder.ID, v.r.URL.RequestURI()}})
	return nil
}

// changeKeys makes a key, whose text is shown once, changes its limits, or revokes one.
func changeKeys(v *visit) error {
	return v.do(actTime, Path+"/keys", func(ctx context.Context, a api) (notice, error) {
		f := v.r.PostForm
		switch f.Get("do") {
		case "create":
			o := client.KeyOptions{Name: strings.TrimSpace(f.Get("name")), Role: client.Role(f.Get("role"))}
			var err error
			for name, field := range map[string]*int{"maxRunning": &o.Limits.MaxRunning, "maxSandboxes": &o.Limits.MaxSandboxes, "maxMemory": &o.Limits.MaxMemoryMiB, "maxDisk": &o.Limits.MaxDiskMiB, "maxRate": &o.Limits.MaxRate} {
				if *field, err = v.count(name, 0); err != nil {
					return notice{}, err
				}
			}
			if strings.TrimSpace(f.Get("for")) != "" {
				if o.For, err = v.duration("for"); err != nil {
					return notice{}, err
				}
			}
			k, err := a.CreateKey(ctx, o)
			return notice{Text: "The API key " + k.Name + " is made.", Secret: k.Text}, err
		case "limit":
			var change client.KeyLimitsChange
			for name, field := range map[string]**int{"maxRunning": &change.MaxRunning, "maxSandboxes": &change.MaxSandboxes, "maxMemory": &change.MaxMemoryMiB, "maxDisk": &change.MaxDiskMiB, "maxRate": &change.MaxRate} {
				if strings.TrimSpace(f.Get(name)) == "" {
					continue
				}
				n, err := v.count(name, 0)
				if err != nil {
					return notice{}, err
				}
				*field = &n
			}
			k, err := client.LimitKey(ctx, a.Client, f.Get("key"), change)
			return notice{Text: "The limits of the API key " + k.Name + " are changed."}, err
		case "revoke":
			return notice{Text: "The API key is revoked. Its sandboxes live on."}, a.RevokeKey(ctx, f.Get("key"))
		}
		return notice{}, missing(v)
	})
}

// hook is a webhook.
type hook struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	URL       string    `json:"url"`
	Enabled   bool      `json:"enabled"`
	Events    []string  `json:"events"`
	CreatedAt time.Time `json:"createdAt"`
}

// hookStats is how a webhook does.
type hookStats struct {
	Delivered     int64     `json:"delivered"`
	Dropped       int64     `json:"dropped"`
	Failures      int       `json:"consecutiveFailures"`
	CaughtUp      bool      `json:"caughtUp"`
	LastDelivered time.Time `json:"lastDeliveredAt"`
	LastError     string    `json:"lastError"`
	NextAttempt   time.Time `json:"nextAttemptAt"`
}

// delivery is one try to deliver an event.
type delivery struct {
	ID         string    `json:"id"`
	EventID    string    `json:"eventId"`
	EventType  string    `json:"eventType"`
	At         time.Time `json:"timestamp"`
	Attempt    int       `json:"attempt"`
	Success    bool      `json:"success"`
	StatusCode int       `json:"statusCode"`
	Error      string    `json:"error"`
	DurationMs int64     `json:"durationMs"`
}

const (
	hooksPath = "/events/webhooks"
	// eventPrefix begins the names of the events that webhooks are sent.
	eventPrefix = "sandbox.lifecycle."
)

// hookEvents are those names, without the prefix.
var hookEvents = []string{"created", "paused", "resumed", "updated", "checkpointed", "forked", "restored", "killed"}

type hookRow struct {
	hook
	Stats hookStats
}

type hooksData struct {
	Hooks  []hookRow
	Events []string
	Back   string
}

func webhooks(v *visit) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	d := hooksData{Events: hookEvents, Back: v.r.URL.RequestURI()}
	var list []hook
	if err := a.call(v.r.Context(), http.MethodGet, hooksPath, nil, nil, &list); err != nil {
		return err
	}
	for _, h := range list {
		row := hookRow{hook: h}
		if err := a.call(v.r.Context(), http.MethodGet, hooksPath+"/"+url.PathEscape(h.ID)+"/stats", nil, nil, &row.Stats); err != nil {
			return err
		}
		d.Hooks = append(d.Hooks, row)
	}
	v.render(http.StatusOK, "webhooks", screen{Title: "Webhooks", Section: "webhooks", Data: d})
	return nil
}

type hookData struct {
	hookRow
	Deliveries []delivery
	Back       string
}

// webhook shows one webhook, with its last deliveries.
func webhook(v *visit) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	at := hooksPath + "/" + url.PathEscape(v.r.PathValue("id"))
	d := hookData{Back: v.r.URL.RequestURI()}
	for path, out := range map[string]any{at: &d.hook, at + "/stats": &d.Stats} {
		if err := a.call(v.r.Context(), http.MethodGet, path, nil, nil, out); err != nil {
			return err
		}
	}
	if err := a.call(v.r.Context(), http.MethodGet, at+"/deliveries", url.Values{"limit": {"100"}}, nil, &d.Deliveries); err != nil {
		return err
	}
	v.render(http.StatusOK, "webhook", screen{Title: "Webhook " + d.Name, Section: "webhooks", Data: d})
	return nil
}

// changeWebhooks makes, switches or deletes a webhook.
func changeWebhooks(v *visit) error {
	f := v.r.PostForm
	at := hooksPath + "/" + url.PathEscape(f.Get("webhook"))
	return v.do(actTime, Path+"/webhooks", func(ctx context.Context, a api) (notice, error) {
		switch f.Get("do") {
		case "create":
			secret := newSecret()
			body := map[string]any{"name": strings.TrimSpace(f.Get("name")), "url": strings.TrimSpace(f.Get("url")), "signatureSecret": secret, "events": []string{}}
			var events []string
			for _, name := range f["event"] {
				events = append(events, eventPrefix+name)
			}
			if len(events) > 0 {
				body["events"] = events
			}
			return notice{Text: "The webhook is made. It signs what it sends with this secret.", Secret: secret}, a.call(ctx, http.MethodPost, hooksPath, nil, body, nil)
		case "enable", "disable":
			return notice{Text: "The webhook is changed."}, a.call(ctx, http.MethodPatch, at, nil, map[string]any{"enabled": f.Get("do") == "enable"}, nil)
		case "delete":
			v.r.PostForm.Set("back", Path+"/webhooks")
			v.r.Form.Set("back", Path+"/webhooks")
			return notice{Text: "The webhook is deleted."}, a.call(ctx, http.MethodDelete, at, nil, nil, nil)
		}
		return notice{}, missing(v)
	})
}
