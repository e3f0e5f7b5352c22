package v1

import (
	"cmp"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// defaultTemplate is what a sandbox starts from if nobody says.
const defaultTemplate = "base"

func (s *server) create(c *call) (reply, error) {
	req, err := s.createRequest(c.words)
	if err != nil {
		return reply{}, err
	}
	if req.Config.Idempotency, err = body.Idempotency(c.r.Header, c.route.pattern, c.sent); err != nil {
		return reply{}, err
	}
	sb, err := s.origins.Create(c.r.Context(), s.Sandboxes, c.key, c.actor, req)
	if err != nil {
		return reply{}, err
	}
	return reply{
		Status: http.StatusCreated, Body: s.viewWithTokens(c, sb),
		Header: http.Header{"Location": {"/v1/sandboxes/" + sb.ID}},
	}, nil
}

// createRequest puts what was said over what holds otherwise.
func (s *server) createRequest(words map[string]body.Said) (supervisor.CreateRequest, error) {
	req := supervisor.CreateRequest{Template: defaultTemplate, Config: store.Config{Secure: true}}
	if w, said := words[snapshotOption.Name]; said {
		req.Snapshot = w.Value.(string)
	}
	if _, both := words["template"]; both && req.Snapshot != "" {
		return req, body.Invalid("a sandbox starts from a template or from a snapshot, and both are given").With("field", "snapshot").WithRemedy("leave one of them out")
	}
	body.Create(words, &req)
	return req, nil
}

func (s *server) get(c *call) (reply, error) {
	sb, err := s.Sandboxes.Find(c.r.Context(), c.sandbox)
	if err != nil {
		return reply{}, err
	}
	return ok(s.viewWithTokens(c, sb))
}

// patch changes settings, metadata and port policies.
func (s *server) patch(c *call) (reply, error) {
	var p supervisor.Patch
	for _, o := range body.Options {
		w, ok := c.words[o.Name]
		switch {
		case !ok:
		case o.Patch != nil:
			o.Patch(&p, w.Value)
		default:
			return reply{}, s.ifKnown(c, body.NotChangeable(o, w.Path))
		}
	}
	if len(c.words) == 0 {
		return s.get(c)
	}
	sb, err := s.Sandboxes.Patch(c.r.Context(), c.sandbox, p, c.actor)
	if err != nil {
		return reply{}, err
	}
	return ok(s.viewWithTokens(c, sb))
}

func (s *server) kill(c *call) (reply, error) {
	return reply{Status: http.StatusNoContent}, s.Sandboxes.Kill(c.r.Context(), c.sandbox, c.actor)
}

func (s *server) pause(c *call) (reply, error) {
	if err := s.doPause(c); err != nil {
		return reply{}, err
	}
	return s.get(c)
}

func (s *server) doPause(c *call) error {
	mode := lifecycle.Memory
	if w, ok := c.words["mode"]; ok {
		mode = w.Value.(lifecycle.Mode)
	}
	return s.Sandboxes.Pause(c.r.Context(), c.sandbox, supervisor.PauseRequest{Mode: mode, Actor: c.actor})
}

// resume also extends a sandbox that runs.
func (s *server) resume(c *call) (reply, error) {
	got, err := s.doResume(c)
	if err != nil {
		return reply{}, err
	}
	v := s.viewWithTokens(c, got.Sandbox)
	v.Resumed = &got.Resumed
	return ok(v)
}

// doResume starts the timeout that was asked for. Without one it is the
// sandbox's own, so that a resume never makes a bounded sandbox an unbounded
// one by accident. What else is said of the sandbox is changed with it.
func (s *server) doResume(c *call) (supervisor.Connected, error) {
	sb, err := s.Sandboxes.Find(c.r.Context(), c.sandbox)
	if err != nil {
		return supervisor.Connected{}, err
	}
	delete(c.words, "sandbox")
	p, _, err := body.Change(c.words, sb)
	if err != nil {
		return supervisor.Connected{}, s.ifKnown(c, err)
	}
	timeout := sb.Record.Settings.Timeout
	if w, given := c.words["timeoutSeconds"]; given {
		timeout = cmp.Or(w.Value.(time.Duration), supervisor.Unlimited)
	}
	return s.Sandboxes.Connect(c.r.Context(), c.sandbox, supervisor.WakeRequest{Timeout: timeout, Change: p, Actor: c.actor})
}

func (s *server) setTimeout(c *call) (reply, error) {
	sb, err := s.doSetTimeout(c)
	if err != nil {
		return reply{}, err
	}
	return ok(s.viewWithTokens(c, sb))
}

// doSetTimeout moves the deadline, ends it now or takes it away.
func (s *server) doSetTimeout(c *call) (store.Sandbox, error) {
	return s.Sandboxes.SetTimeout(c.r.Context(), c.sandbox, c.words["timeoutSeconds"].Value.(time.Duration), c.actor)
}

// ifKnown returns err if the sandbox exists and has not ended, and what is
// wrong with it otherwise.
func (s *server) ifKnown(c *call, err error) error {
	sb, missing := s.Sandboxes.Find(c.r.Context(), c.sandbox)
	if missing != nil {
		return missing
	}
	if sb.Record.State == lifecycle.Terminated {
		_, ended := lifecycle.Step(sb.Record, lifecycle.AccessRequested{}, time.Time{}) // refused: it says why
		return ended
	}
	return err
}

// unbuilt answers for an endpoint that is designed and not built.
func (s *server) unbuilt(c *call) (reply, error) {
	err := errdef.New(errdef.Unsupported, "not_supported", "%s %s is not supported by this server yet", c.route.method, c.route.pattern)
	return reply{}, s.ifKnown(c, err)
}

// statusView answers the flat verbs.
type statusView struct {
	Status lifecycle.State `json:"status" doc:"The sandbox's state."`
}

// deadlineView answers set_timeout and resume of the flat verbs.
type deadlineView struct {
	Status         lifecycle.State `json:"status" doc:"The sandbox's state."`
	DeadlineUnix   *float64        `json:"deadline_unix" doc:"When the soft timeout ends, in seconds since 1970; null for never."`
	TimeoutSeconds float64         `json:"timeout_seconds" doc:"The timeout granted; 0 for none."`
	Resumed        *bool           `json:"resumed,omitempty" doc:"In the answer to a resume: whether the sandbox was paused."`
}

func viewDeadline(rec lifecycle.Record, timeout time.Duration) deadlineView {
	v := deadlineView{Status: rec.State, TimeoutSeconds: timeout.Seconds()}
	if !rec.EndAt.IsZero() {
		at := float64(rec.EndAt.UnixMicro()) / 1e6
		v.DeadlineUnix = &at
	}
	return v
}

func (s *server) flatPause(c *call) (reply, error) {
	if err := s.doPause(c); err != nil {
		return reply{}, err
	}
	return ok(statusView{Status: lifecycle.Paused})
}

func (s *server) flatResume(c *call) (reply, error) {
	got, err := s.doResume(c)
	if err != nil {
		return reply{}, err
	}
	rec := got.Sandbox.Record
	timeout := time.Duration(0)
	if !rec.EndAt.IsZero() {
		timeout = rec.Settings.Timeout
		if w, given := c.words["timeoutSeconds"]; given {
			timeout = w.Value.(time.Duration)
		}
	}
	v := viewDeadline(rec, timeout)
	v.Resumed = &got.Resumed
	return ok(v)
}

func (s *server) flatSetTimeout(c *call) (reply, error) {
	sb, err := s.doSetTimeout(c)
	if err != nil {
		return reply{}, err
	}
	return ok(viewDeadline(sb.Record, max(0, c.words["timeoutSeconds"].Value.(time.Duration))))
}
