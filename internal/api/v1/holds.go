package v1

import (
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

// holdView is evidence of work in progress.
type holdView struct {
	ID           string             `json:"id"`
	Kind         awake.HoldKind     `json:"kind"`
	Detail       string             `json:"detail" doc:"The port, command or reason."`
	Since        httpapi.Timestamp  `json:"since"`
	LastProgress *httpapi.Timestamp `json:"lastProgress"`
	Until        *httpapi.Timestamp `json:"until" doc:"When it stops counting without progress; null for never."`
	Counts       bool               `json:"counts" doc:"False if it has stalled, if its port's policy is ignore, and of a process where refreshOnActivity is requests and there is no idle timeout."`
}

type holdsView struct {
	Holds []holdView `json:"holds"`
}

func viewHolds(holds []awake.Hold) []holdView {
	views := make([]holdView, 0, len(holds))
	for _, h := range holds {
		views = append(views, holdView{
			ID: h.ID, Kind: h.Kind, Detail: h.Detail, Since: httpapi.Timestamp(h.Since),
			LastProgress: timeOrNull(h.LastProgress), Until: timeOrNull(h.Until), Counts: h.Counts,
		})
	}
	return views
}

func (s *server) holds(c *call) (reply, error) {
	x, err := s.Sandboxes.Explain(c.r.Context(), c.sandbox)
	if err != nil {
		return reply{}, err
	}
	return ok(holdsView{Holds: viewHolds(x.Holds)})
}

var holdIDForm = lazyregexp.New(`^[A-Za-z0-9._-]{1,64}$`)

// maxReason bounds what is kept of why somebody holds.
const maxReason = 200

func (s *server) hold(c *call) (reply, error) {
	l := lifecycle.Lease{Reason: strings.TrimSpace(c.words["reason"].Value.(string))}
	if l.Reason == "" || len(l.Reason) > maxReason {
		return reply{}, body.Invalid(`"reason" must have 1 to %d bytes`, maxReason).With("field", "reason")
	}
	if w, given := c.words["id"]; given {
		l.ID = w.Value.(string)
		if !holdIDForm.MatchString(l.ID) {
			return reply{}, body.Invalid(`"id" must have 1 to 64 letters, digits, dots, dashes or underscores`).With("field", "id")
		}
	}
	l.Until = now().Add(c.words["seconds"].Value.(time.Duration))
	l, err := s.Sandboxes.Hold(c.r.Context(), c.sandbox, l, c.actor)
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusCreated, Body: holdView{
		ID: l.ID, Kind: awake.HoldLease, Detail: l.Reason, Since: httpapi.Timestamp(l.Since),
		LastProgress: timeOrNull(l.Since), Until: timeOrNull(l.Until), Counts: true,
	}}, nil
}

func (s *server) releaseHold(c *call) (reply, error) {
	return reply{Status: http.StatusNoContent}, s.Sandboxes.ReleaseHold(c.r.Context(), c.sandbox, c.params[holdParam], c.actor)
}
