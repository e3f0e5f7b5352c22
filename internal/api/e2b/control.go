package e2b

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

var noContent = reply{Status: http.StatusNoContent}

func (s *server) get(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusOK, Body: s.detailView(c, sb)}, nil
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
	mode, _ := said[lifecycle.Mode](c.words, "mode")
	strict, _ := said[bool](c.words, "requireHealthyGuest")
	return noContent, s.Sandboxes.Pause(c.r.Context(), c.sandbox, supervisor.PauseRequest{Mode: mode, Strict: strict, Actor: c.actor})
}

// wake is how a call that wakes a sandbox says that it is to be woken. One that says
// that memory is not to be restored boots it.
func wake(c *call, sb store.Sandbox, words map[string]body.Said, timeout time.Duration) (supervisor.WakeRequest, error) {
	p, _, err := body.Change(words, sb)
	memory, given := said[bool](words, "memory")
	return supervisor.WakeRequest{Timeout: timeout, Change: p, Boot: given && !memory, Actor: c.actor}, err
}

// connectV1 leaves the deadline of a running sandbox as it is where no timeout
// is asked for, or 0, and begins its own timeout anew if it sleeps.
func (s *server) connectV1(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	timeout, given := said[time.Duration](c.words, "timeoutSeconds")
	if state, _ := shown(sb.Record); given && timeout == 0 && state != stateRunning {
		return reply{}, badRequest("Timeout must be greater than 0: the sandbox is %s and would expire as it resumes", state)
	}
	if !given {
		timeout = sb.Record.Settings.Timeout
	}
	return s.connect(c, sb, c.words, timeout)
}

func (s *server) connectV2(c *call) (reply, error) {
	words, timeout, err := s.wakesWith(c, defaultTimeoutV2)
	if err != nil {
		return reply{}, err
	}
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	return s.connect(c, sb, words, timeout)
}

// wakesWith returns what a call that wakes a sandbox says, and its timeout.
func (s *server) wakesWith(c *call, otherwise time.Duration) (map[string]body.Said, time.Duration, error) {
	timeout, err := s.startsWith(c.words, s.defaultTimeout(otherwise))
	return c.words, timeout, err
}

// connect also makes the sandbox what the body says of it.
func (s *server) connect(c *call, sb store.Sandbox, words map[string]body.Said, timeout time.Duration) (reply, error) {
	q, err := wake(c, sb, words, timeout)
	if err != nil {
		return reply{}, err
	}
	got, err := s.Sandboxes.Connect(c.r.Context(), c.sandbox, q)
	if err != nil {
		return reply{}, err
	}
	status := http.StatusOK
	if got.Resumed {
		status = http.StatusCreated
	}
	return reply{Status: status, Body: s.sandboxView(c, got.Sandbox)}, nil
}

func (s *server) resume(c *call) (reply, error) {
	words, timeout, err := s.wakesWith(c, defaultTimeoutV1)
	if err != nil {
		return reply{}, err
	}
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	q, err := wake(c, sb, words, timeout)
	if err != nil {
		return reply{}, err
	}
	sb, err = s.Sandboxes.Resume(c.r.Context(), c.sandbox, q)
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusCreated, Body: s.sandboxView(c, sb)}, nil
}

// setTimeout moves endAt to either side; 0 expires the sandbox now, and -1 takes
// its end away.
func (s *server) setTimeout(c *call) (reply, error) {
	timeout, given := said[time.Duration](c.words, "timeoutSeconds")
	if !given {
		return reply{}, badRequest(`"timeout" is required`)
	}
	_, err := s.Sandboxes.SetTimeout(c.r.Context(), c.sandbox, timeout, c.actor)
	return noContent, notRunningIsNotFound(err)
}

func (s *server) refresh(c *call) (reply, error) {
	d, _ := said[time.Duration](c.words, "duration")
	if d < 0 || d > maxRefresh {
		return reply{}, badRequest(`"duration" must be between 0 and %d seconds`, int(maxRefresh.Seconds()))
	}
	d = max(d, minRefresh)
	_, err := s.Sandboxes.Refresh(c.r.Context(), c.sandbox, d, c.actor)
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
		table = append(table, route{method, pattern, auth.Look, (*server).refuse, dialect.Unjudged})
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
