package e2b

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

func (s *server) createV1(c *call) (reply, error) {
	return s.create(c, store.Config{}, defaultTimeoutV1)
}

// createV2 makes secure sandboxes unless it is told otherwise.
func (s *server) createV2(c *call) (reply, error) {
	return s.create(c, store.Config{Secure: true}, defaultTimeoutV2)
}

func (s *server) create(c *call, as store.Config, timeout time.Duration) (reply, error) {
	req, err := s.createRequest(c.words, as, timeout)
	if err != nil {
		return reply{}, err
	}
	if req.Config.Idempotency, err = body.Idempotency(c.r.Header, c.route.pattern, c.sent); err != nil {
		return reply{}, err
	}
	sb, err := s.origins.Create(c.r.Context(), s.Sandboxes, c.key, c.actor, req)
	if e, ok := errors.AsType[*errdef.Error](err); ok && e.Code == codeTemplateNotFound {
		return reply{}, fail(http.StatusNotFound, e.Code, "template '%s' not found", asSent(c.words["template"]))
	}
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusCreated, Body: s.sandboxView(c, sb)}, nil
}

// asSent returns a text as it was sent.
func asSent(w body.Said) (text string) {
	_ = json.Unmarshal(w.Raw, &text) // it has been read as a text before
	return text
}

// createRequest judges the body and translates it.
func (s *server) createRequest(words map[string]body.Said, as store.Config, otherwise time.Duration) (supervisor.CreateRequest, error) {
	req := supervisor.CreateRequest{Config: as}
	if _, given := words["template"]; !given {
		return req, badRequest(`"templateID" is required`)
	}
	timeout, err := s.startsWith(words, s.defaultTimeout(otherwise))
	if err != nil {
		return req, err
	}
	body.Create(words, &req)
	req.Settings.Timeout = max(timeout, 0) // of settings, zero is no limit
	req.Config.Metadata, req.Config.Env = orNoTexts(req.Config.Metadata), orNoTexts(req.Config.Env)
	req.Config.AllowOut, req.Config.DenyOut = orNone(req.Config.AllowOut), orNone(req.Config.DenyOut)
	req.Config.Network = networkOf(words)
	return req, filesystemNeedsPause(words, req.Settings)
}

// filesystemNeedsPause refuses to say what automatic pauses keep of a sandbox
// that says it has none.
func filesystemNeedsPause(words map[string]body.Said, set lifecycle.Settings) error {
	if w, given := words["pauseMode"]; given && set.PauseMode == lifecycle.Filesystem && set.OnTimeout != lifecycle.Pause && set.OnIdle != lifecycle.Pause {
		return badRequest(`%q needs "autoPause": true: a sandbox that is killed at its timeout keeps nothing`, w.Path)
	}
	return nil
}

// orNoTexts makes the empty object the absent one.
func orNoTexts(texts map[string]string) map[string]string {
	if len(texts) == 0 {
		return nil
	}
	return texts
}
