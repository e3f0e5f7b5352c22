package e2b

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// clientID is required of every answer and has no meaning any more.
const clientID = "drowse"

// The states that clients know.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// sandboxView answers create, connect and resume. Without the domain an SDK
// would use the one that it is configured with, which is E2B's cloud if nobody
// says.
type sandboxView struct {
	TemplateID         string `json:"templateID"`
	SandboxID          string `json:"sandboxID"`
	ClientID           string `json:"clientID"`
	Alias              string `json:"alias,omitempty"`
	EnvdVersion        string `json:"envdVersion"`
	EnvdAccessToken    string `json:"envdAccessToken,omitempty"`
	TrafficAccessToken string `json:"trafficAccessToken,omitempty"`
	Domain             string `json:"domain,omitempty"`
}

// listedView is an item of a list.
type listedView struct {
	TemplateID  string            `json:"templateID"`
	SandboxID   string            `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	Alias       string            `json:"alias,omitempty"`
	StartedAt   httpapi.Timestamp `json:"startedAt"`
	EndAt       httpapi.Timestamp `json:"endAt"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int               `json:"memoryMB"`
	DiskSizeMB  int               `json:"diskSizeMB"`
	State       string            `json:"state"`
	EnvdVersion string            `json:"envdVersion"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// detailView answers get.
type detailView struct {
	listedView
	EnvdAccessToken     string          `json:"envdAccessToken,omitempty"`
	AllowInternetAccess *bool           `json:"allowInternetAccess,omitempty"`
	Network             json.RawMessage `json:"network,omitempty"`
	Lifecycle           lifecycleView   `json:"lifecycle"`
	Domain              string          `json:"domain,omitempty"`
	VolumeMounts        []volumeMount   `json:"volumeMounts,omitempty"`
}

type lifecycleView struct {
	AutoResume bool             `json:"autoResume"`
	OnTimeout  lifecycle.Action `json:"onTimeout"`
}

// domain returns what the host names of sandboxes end in: the server's own, or
// the one by which the client has reached the control plane, or this machine.
func (s *server) domain(c *call) string {
	if s.Domain != "" {
		return s.Domain
	}
	if domain, ok := strings.CutPrefix(c.r.Host, "api."); ok && domainForm.MatchString(domain) {
		return domain
	}
	return s.LocalDomain
}

var domainForm = lazyregexp.New(`^[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?$`)

func (s *server) sandboxView(c *call, sb store.Sandbox) sandboxView {
	v := sandboxView{
		TemplateID:      sb.Config.TemplateID(),
		SandboxID:       sb.ID,
		ClientID:        clientID,
		Alias:           sb.Config.TemplateName(),
		EnvdVersion:     s.EnvdVersion,
		EnvdAccessToken: s.envdToken(sb),
		Domain:          s.domain(c),
	}
	if sb.Config.PrivatePorts {
		v.TrafficAccessToken = s.Sandboxes.TrafficToken(sb.ID)
	}
	return v
}

func (s *server) listedView(sb *store.Sandbox) listedView {
	state, endAt := shown(sb.Record)
	return listedView{
		TemplateID:  sb.Config.TemplateID(),
		SandboxID:   sb.ID,
		ClientID:    clientID,
		Alias:       sb.Config.TemplateName(),
		StartedAt:   httpapi.Timestamp(sb.Record.StartedAt),
		EndAt:       httpapi.Timestamp(endAt),
		CPUCount:    sb.Config.Limits.VCPUs(),
		MemoryMB:    sb.Config.Limits.MemoryMiB,
		DiskSizeMB:  sb.Config.Limits.DiskMiB,
		State:       state,
		EnvdVersion: s.EnvdVersion,
		Metadata:    sb.Config.Metadata,
	}
}

// detailView has the token only for a key that may use the sandbox.
func (s *server) detailView(c *call, sb store.Sandbox) detailView {
	v := detailView{
		listedView:          s.listedView(&sb),
		AllowInternetAccess: sb.Config.AllowInternet,
		Network:             networkView(sb.Config),
		Lifecycle: lifecycleView{
			AutoResume: sb.Record.Settings.AutoResume,
			OnTimeout:  sb.Record.Settings.OnTimeout,
		},
		VolumeMounts: mountViews(sb.Config),
		Domain:       s.domain(c),
	}
	if auth.May(c.key, auth.Use) {
		v.EnvdAccessToken = s.envdToken(sb)
	}
	return v
}

// envdToken returns the token that the sandbox's agent asks for, or "".
func (s *server) envdToken(sb store.Sandbox) string {
	if !sb.Config.Secure {
		return ""
	}
	return s.Sandboxes.EnvdToken(sb.ID)
}

// noEnd stands for the end of a sandbox without a timeout, which E2B does not
// know: endAt is required. Clients in any time zone can
// represent it.
var noEnd = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// shown returns the state and the endAt of a record in E2B's terms: a sandbox
// being paused is paused, since its pause began, and one being resumed is
// paused until it serves. One that is only checkpointed runs all the time.
func shown(r lifecycle.Record) (state string, endAt time.Time) {
	switch {
	case r.Checkpointing() && r.Op.Carry != nil:
		return stateRunning, endShown(r.Op.Carry.EndAt)
	case r.Checkpointing():
		return stateRunning, endShown(r.EndAt)
	case r.Phase() == lifecycle.Pausing:
		return statePaused, r.Op.StartedAt
	case r.State == lifecycle.Paused:
		return statePaused, r.PausedAt
	default:
		return stateRunning, endShown(r.EndAt)
	}
}

func endShown(end time.Time) time.Time {
	if end.IsZero() {
		return noEnd
	}
	return end
}
