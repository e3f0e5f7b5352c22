package e2b

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

var noContent = reply{status: http.StatusNoContent}

func (s *server) health(*call) (reply, error) { return noContent, nil }

func (s *server) get(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusOK, body: s.detailView(c, sb)}, nil
}

// find returns the sandbox that the path names, if this dialect shows it.
func (s *server) find(c *call) (store.Sandbox, error) {
	sb, err := s.Sandboxes.Get(c.r.Context(), c.sandbox)
	if err == nil && !visible(sb.Record) {
		err = errdef.New(errdef.NotFound, codeSandboxNotFound, "the sandbox does not run yet or no more")
	}
	return sb, err
}

func (s *server) kill(c *call) (reply, error) {
	return noContent, s.Sandboxes.Kill(c.r.Context(), c.sandbox, c.actor)
}

func (s *server) pause(c *call) (reply, error) {
	var body struct {
		Memory *bool `json:"memory"`
	}
	if err := c.decodeOptional(&body); err != nil {
		return reply{}, err
	}
	mode := lifecycle.Memory
	if body.Memory != nil && !*body.Memory {
		mode = lifecycle.Filesystem
	}
	return noContent, s.Sandboxes.Pause(c.r.Context(), c.sandbox, mode, c.actor)
}

// wakeBody is the body of connect and resume.
type wakeBody struct {
	Timeout   *int32 `json:"timeout"`
	Memory    *bool  `json:"memory"`
	AutoPause *bool  `json:"autoPause"` // of resume
}

// refuseMemoryOverride refuses a start from disk alone: it would silently lose
// the memory if it were ignored.
func (b wakeBody) refuseMemoryOverride() error {
	if b.Memory == nil || *b.Memory {
		return nil
	}
	return fail(http.StatusBadRequest, codeMemoryOverride,
		`"memory": false is not supported by this server yet: a sandbox that was paused with memory resumes with it`)
}

// connectV1 allows a timeout of 0 on a running sandbox: it changes nothing.
func (s *server) connectV1(c *call) (reply, error) {
	var body wakeBody
	if err := c.decode(&body); err != nil {
		return reply{}, err
	}
	timeout, err := s.anyTimeout(body.Timeout)
	if err != nil {
		return reply{}, err
	}
	if timeout == 0 {
		if err := s.mustRun(c); err != nil {
			return reply{}, err
		}
	}
	return s.connect(c, body, timeout)
}

func (s *server) connectV2(c *call) (reply, error) {
	var body wakeBody
	if err := c.decodeOptional(&body); err != nil {
		return reply{}, err
	}
	timeout, err := s.positiveTimeout(orDefault(body.Timeout, s.DefaultTimeout))
	if err != nil {
		return reply{}, err
	}
	return s.connect(c, body, timeout)
}

func (s *server) connect(c *call, body wakeBody, timeout time.Duration) (reply, error) {
	if err := body.refuseMemoryOverride(); err != nil {
		return reply{}, s.ifKnown(c, err)
	}
	got, err := s.Sandboxes.Connect(c.r.Context(), c.sandbox, timeout, c.actor)
	if err != nil {
		return reply{}, err
	}
	status := http.StatusOK
	if got.Resumed {
		status = http.StatusCreated
	}
	return reply{status: status, body: s.sandboxView(got.Sandbox)}, nil
}

// mustRun refuses a timeout of 0 on a sandbox that would have to be resumed for
// it. It may pause after this look: then it resumes and expires at once.
func (s *server) mustRun(c *call) error {
	sb, err := s.find(c)
	if err != nil {
		return err
	}
	if state, _ := shown(sb.Record); state != stateRunning {
		return badRequest("Timeout must be greater than 0: the sandbox is %s and would expire as it resumes", state)
	}
	return nil
}

func (s *server) resume(c *call) (reply, error) {
	var body wakeBody
	if err := c.decodeOptional(&body); err != nil {
		return reply{}, err
	}
	timeout, err := s.positiveTimeout(orDefault(body.Timeout, defaultTimeoutV1))
	if err != nil {
		return reply{}, err
	}
	if err := body.refuseMemoryOverride(); err != nil {
		return reply{}, s.ifKnown(c, err)
	}
	if err := s.refuseAutoPauseChange(c, body.AutoPause); err != nil {
		return reply{}, err
	}
	sb, err := s.Sandboxes.Resume(c.r.Context(), c.sandbox, timeout, c.actor)
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusCreated, body: s.sandboxView(sb)}, nil
}

// refuseAutoPauseChange refuses an autoPause that is not what the sandbox has.
func (s *server) refuseAutoPauseChange(c *call, autoPause *bool) error {
	if autoPause == nil {
		return nil
	}
	sb, err := s.find(c)
	if err != nil {
		return err
	}
	if has := sb.Record.Settings.OnTimeout == lifecycle.Pause; has != *autoPause {
		return fail(http.StatusBadRequest, codeNotSupported,
			`"autoPause" cannot be changed by resume: the sandbox was created with %t, leave it out`, has)
	}
	return nil
}

// setTimeout moves endAt to either side; 0 expires the sandbox now.
func (s *server) setTimeout(c *call) (reply, error) {
	var body struct {
		Timeout *int32 `json:"timeout"`
	}
	if err := c.decode(&body); err != nil {
		return reply{}, err
	}
	timeout, err := s.anyTimeout(body.Timeout)
	if err != nil {
		return reply{}, err
	}
	_, err = s.Sandboxes.SetTimeout(c.r.Context(), c.sandbox, timeout, c.actor)
	return noContent, notRunningIsNotFound(err)
}

func (s *server) refresh(c *call) (reply, error) {
	var body struct {
		Duration *int32 `json:"duration"`
	}
	if err := c.decodeOptional(&body); err != nil {
		return reply{}, err
	}
	seconds := orDefault(body.Duration, minRefresh)
	if seconds < 0 || seconds > maxRefresh {
		return reply{}, badRequest(`"duration" must be between 0 and %d seconds (requested %d)`, maxRefresh, seconds)
	}
	d, err := s.granted(max(seconds, minRefresh))
	if err != nil {
		return reply{}, err
	}
	_, err = s.Sandboxes.Refresh(c.r.Context(), c.sandbox, d, c.actor)
	return noContent, notRunningIsNotFound(err)
}

// notRunningIsNotFound gives a sandbox without a running clock the status that
// E2B gives it.
func notRunningIsNotFound(err error) error {
	if e, ok := errors.AsType[*errdef.Error](err); ok && e.Code == codeNotRunning {
		return fail(http.StatusNotFound, e.Code, "%s", e.Error())
	}
	return err
}

// ifKnown returns err if the sandbox exists, and that it does not otherwise.
func (s *server) ifKnown(c *call, err error) error {
	if _, missing := s.find(c); missing != nil {
		return missing
	}
	return err
}

// unbuilt makes routes of endpoints that are E2B's and not yet ours.
func unbuilt(endpoints ...string) []route {
	var table []route
	for _, e := range endpoints {
		method, pattern, _ := strings.Cut(e, " ")
		table = append(table, route{method, pattern, auth.Look, (*server).refuse})
	}
	return table
}

// refuse answers for an endpoint that is not built.
func (s *server) refuse(c *call) (reply, error) {
	err := fail(http.StatusNotImplemented, codeNotSupported, "%s %s is not supported by this server yet", c.route.method, c.route.pattern)
	if c.sandbox == "" {
		return reply{}, err
	}
	return reply{}, s.ifKnown(c, err)
}
