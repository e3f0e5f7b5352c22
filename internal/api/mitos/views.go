package mitos

import (
	"cmp"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

// sandboxView is a sandbox. The SDK fails where one of the first four is missing.
type sandboxView struct {
	ID         string            `json:"id"`
	TemplateID string            `json:"template_id"`
	Endpoint   string            `json:"endpoint"` // always empty: the SDK has the server's URL
	ForkTimeMS float64           `json:"fork_time_ms"`
	CreatedAt  httpapi.Timestamp `json:"created_at"`

	State         lifecycle.State `json:"state"`
	Paused        bool            `json:"paused"`
	ActiveStreams int             `json:"active_streams"`
	DeadlineUnix  *int64          `json:"deadline_unix"` // null for never
}

// view returns a sandbox as the key of a call calls it.
func (s *server) view(c *call, sb store.Sandbox, holds []awake.Hold) sandboxView {
	v := sandboxView{
		ID: s.called(c, sb), TemplateID: cmp.Or(sb.Config.TemplateName(), sb.Config.TemplateID()), CreatedAt: httpapi.Timestamp(sb.Record.CreatedAt),
		State: sb.Record.State, Paused: sb.Record.State == lifecycle.Paused, DeadlineUnix: deadline(sb.Record),
	}
	for _, h := range holds {
		if h.Kind == awake.HoldStream {
			v.ActiveStreams++
		}
	}
	return v
}

// called returns by what the key of a call can call a sandbox.
func (s *server) called(c *call, sb store.Sandbox) string {
	if sb.Config.Name != "" && sb.Config.Key == c.key.ID {
		return sb.Config.Name
	}
	return sb.ID
}

// deadline is the end of the soft timeout in whole seconds, nil for never.
func deadline(rec lifecycle.Record) *int64 {
	if rec.EndAt.IsZero() {
		return nil
	}
	return new(rec.EndAt.Unix())
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
