package mitos

import (
	"context"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/names"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
)

// lookTime bounds how long a list waits for what sandboxes tell of themselves.
const lookTime = time.Second

func health(s *server, c *call) (any, error) {
	one, err := s.visible(c, 1)
	if err != nil {
		return nil, err
	}
	known, err := s.Templates.Templates()
	return map[string]any{"status": "ok", "mock": false, "templates": len(known), "sandboxes": one.Count(store.Alive)}, err
}

// visible returns so many of the sandboxes that have not ended and that the key sees, oldest
// first; all for 0.
func (s *server) visible(c *call, most int) (store.Page, error) {
	return dialect.Sandboxes(c.r, s.Sandboxes.Page, c.key, store.Selection{Status: store.Alive, Order: store.Oldest, Limit: most})
}

func list(s *server, c *call) (any, error) {
	page, err := s.visible(c, 0)
	if err != nil {
		return nil, err
	}
	all := page.Sandboxes
	ids := make([]string, len(all))
	for i, sb := range all {
		ids[i] = sb.ID
	}
	ctx, cancel := context.WithTimeout(c.ctx, lookTime)
	defer cancel()
	outlooks := s.Sandboxes.Outlooks(ctx, ids)
	views := make([]sandboxView, len(all))
	for i, sb := range all {
		views[i] = s.view(c, sb, outlooks[sb.ID].Holds)
	}
	return views, nil
}

// create is what mitos calls the fork of a template.
func create(s *server, c *call) (any, error) {
	name, template := c.words["id"].Value.(string), c.words["template"].Value.(string)
	req := supervisor.CreateRequest{Config: store.Config{Key: c.key.ID, Name: name, Secure: true}}
	var err error
	if req.Config.Idempotency, err = body.Idempotency(c.r.Header, c.route.pattern, c.sent); err != nil {
		return nil, err
	}
	begin := time.Now()
	// Before all else: what was said of the template may be known no longer, or be for
	// another create.
	if sb, made, err := s.Sandboxes.Made(c.ctx, req.Config); err != nil {
		return nil, err
	} else if made {
		audit.About(c.ctx, sb.ID)
		return s.made(c, sb, template, begin), nil
	}
	// First: also a create that is refused was the one to come.
	said, known, err := s.Settings.UseTemplateSettings(c.ctx, c.key.ID, template, time.Now())
	if err != nil {
		return nil, err
	}
	if w, given := c.words["region"]; given {
		return nil, notSupported(w.Path, "this server is in one place", "leave it out")
	}
	if err := names.Check(name); err != nil {
		return nil, err
	}
	if !known {
		return nil, errdef.New(errdef.NotFound, "template_not_found", "template %q was not created with this API key in the last %d hours", template, int(store.SettingsLife.Hours())).
			WithRemedy("create it first, as mitos.create() does: POST %s/templates", v1)
	}
	req.Settings.Timeout = s.MaxTimeout
	apply(said, &req)
	if err := s.startFrom(c, template, &req); err != nil {
		return nil, err
	}
	sb, err := s.origins.Create(c.ctx, s.Sandboxes, c.key, c.actor, req)
	if err != nil {
		return nil, err
	}
	return s.made(c, sb, template, begin), nil
}

// made is the answer to a create of a template.
func (s *server) made(c *call, sb store.Sandbox, template string, begin time.Time) sandboxView {
	v := s.view(c, sb, nil)
	v.TemplateID, v.ForkTimeMS = template, milliseconds(time.Since(begin))
	return v
}

func terminate(s *server, c *call) (any, error) {
	if err := s.Sandboxes.Kill(c.ctx, c.id, c.actor); err != nil {
		return nil, err
	}
	return map[string]string{"status": "terminated", "id": c.named}, nil
}

// fork starts a child that goes on from what the sandbox is now.
func fork(s *server, c *call) (_ any, err error) {
	if frozen, given := c.words["pause_source"]; given && !frozen.Value.(bool) {
		return nil, errdef.New(errdef.Unsupported, "not_supported", "pause_source is false, and a running sandbox is always frozen for the moment of its capture").
			WithRemedy("leave it out").With("field", "pause_source")
	}
	req := supervisor.ForkRequest{Count: 1, Key: c.key.ID, Actor: c.actor, Name: c.words["id"].Value.(string)}
	if err := names.Check(req.Name); err != nil {
		return nil, err
	}
	if req.Once, err = body.Idempotency(c.r.Header, c.r.URL.EscapedPath(), c.sent); err != nil {
		return nil, err
	}
	begin := time.Now()
	children, err := s.Sandboxes.Fork(c.ctx, c.id, req)
	if err != nil {
		return nil, err
	}
	if children[0].Err != nil {
		return nil, children[0].Err
	}
	v := s.view(c, children[0].Sandbox, nil)
	v.ForkTimeMS = milliseconds(time.Since(begin))
	if echo, given := c.words["template"]; given {
		v.TemplateID = echo.Value.(string)
	}
	return v, nil
}

func setTimeout(s *server, c *call) (any, error) {
	d := c.words["timeout_seconds"].Value.(time.Duration)
	sb, err := s.Sandboxes.SetTimeout(c.ctx, c.id, d, c.actor)
	if err != nil {
		return nil, err
	}
	return map[string]any{"status": "ok", "deadline_unix": deadline(sb.Record), "timeout_seconds": int64(d / time.Second)}, nil
}

// status is the answer of pause and resume.
func status(state lifecycle.State) any { return map[string]lifecycle.State{"status": state} }

func pause(s *server, c *call) (any, error) {
	err := s.Sandboxes.Pause(c.ctx, c.id, supervisor.PauseRequest{Actor: c.actor})
	if e, ok := asError(err); ok && e.Code == "already_paused" {
		err = nil
	}
	return status(lifecycle.Paused), err
}

// resume starts the timeout anew that the sandbox was created with; it leaves one
// that runs as it is.
func resume(s *server, c *call) (any, error) {
	sb, err := s.Sandboxes.Find(c.ctx, c.id)
	if err != nil {
		return nil, err
	}
	if sb.Record.State == lifecycle.Running && sb.Record.Phase() == "" {
		return status(lifecycle.Running), nil
	}
	if _, err := s.Sandboxes.Connect(c.ctx, c.id, supervisor.WakeRequest{Timeout: sb.Record.Settings.Timeout, Actor: c.actor}); err != nil {
		return nil, err
	}
	return status(lifecycle.Running), nil
}

// previewTime is how long a preview link is good: as with mitos' own server.
const previewTime = time.Hour

func createPreview(s *server, c *call) (any, error) {
	p, token, err := s.Sandboxes.CreatePreview(c.ctx, c.id, preview.Request{Port: c.words["port"].Value.(int), For: previewTime, Actor: c.actor})
	if err != nil {
		return nil, err
	}
	link := fmt.Sprintf("%s/?%s=%s", httpapi.PortURL(c.r, s.Domain, c.id, p.Port), preview.Param, token)
	return map[string]any{"url": link, "expires_unix": p.ExpiresAt.Unix()}, nil
}
