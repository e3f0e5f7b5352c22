package sandbox0

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// The words for what a sandbox is. It is always the committed state: a phase is
// never shown.
const (
	statusStarting = "starting"
	statusRunning  = "running"
	statusPaused   = "paused"
)

// statuses are all words that clients know.
var statuses = []string{statusStarting, statusRunning, statusPaused, "terminating", "failed"}

func statusOf(rec lifecycle.Record) string {
	switch rec.State {
	case lifecycle.Running:
		return statusRunning
	case lifecycle.Paused:
		return statusPaused
	}
	return statusStarting
}

// team is the one team that there is.
const team = "default"

// lives are the deadlines of a sandbox.
type lives struct {
	ExpiresAt     *httpapi.Timestamp `json:"expires_at"`
	HardExpiresAt *httpapi.Timestamp `json:"hard_expires_at"`
}

func viewLives(g generation, sb store.Sandbox) lives {
	rec := sb.Record
	hard := time.Time{}
	if life := rec.Settings.MaxLifetime; life > 0 {
		hard = rec.CreatedAt.Add(life)
	}
	end := time.Time{}
	if rec.State == lifecycle.Running {
		end = rec.EndAt
	}
	return lives{g.deadline(end), g.deadline(hard)}
}

// deadline returns a time as the generation has it; the zero time is none.
func (g generation) deadline(t time.Time) *httpapi.Timestamp {
	if t.IsZero() && !g.zero {
		return nil
	}
	at := httpapi.Timestamp(t)
	return &at
}

// names are those of the runtime, in both generations.
type names struct {
	PodName   string `json:"pod_name"`
	RuntimeID string `json:"runtime_id"`
}

func viewNames(sb store.Sandbox) names {
	name := fmt.Sprintf("%s-%d", sb.ID, sb.Record.Generation)
	return names{name, name}
}

func templateOf(sb store.Sandbox) string {
	return cmp.Or(sb.Config.TemplateName(), sb.Config.TemplateID())
}

type claimView struct {
	SandboxID string      `json:"sandbox_id"`
	Status    string      `json:"status"`
	Template  string      `json:"template"`
	ClusterID *string     `json:"cluster_id"`
	Mounts    []mountView `json:"bootstrap_mounts"`
	names
}

func viewClaim(sb store.Sandbox) claimView {
	return claimView{SandboxID: sb.ID, Status: statusOf(sb.Record), Template: templateOf(sb), Mounts: viewMounts(sb.Config.Volumes), names: viewNames(sb)}
}

type resourcesView struct {
	Memory string `json:"memory"`
}

type detailView struct {
	ID         string            `json:"id"`
	TemplateID string            `json:"template_id"`
	TeamID     string            `json:"team_id"`
	UserID     string            `json:"user_id"`
	Status     string            `json:"status"`
	Paused     bool              `json:"paused"`
	AutoResume bool              `json:"auto_resume"`
	Resources  resourcesView     `json:"resources"`
	Mounts     []mountView       `json:"mounts"`
	Services   []appView         `json:"services"`
	SSH        *sshView          `json:"ssh,omitempty"`
	Generation int64             `json:"runtime_generation"`
	ClaimedAt  httpapi.Timestamp `json:"claimed_at"`
	CreatedAt  httpapi.Timestamp `json:"created_at"`
	UpdatedAt  httpapi.Timestamp `json:"updated_at"`
	names
	lives
}

// sshView is where SSH clients reach a sandbox.
type sshView struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Username string `json:"username"`
}

// detail returns everything about a sandbox.
func (s *server) detail(c *call, sb store.Sandbox) detailView {
	v := viewDetail(c.gen, sb)
	v.Services, v.SSH = s.viewApps(c, sb), s.viewSSH(c, sb)
	return v
}

// viewSSH returns nil where no SSH clients are served. They come by the server's own
// name, or by the one that the caller has for it.
func (s *server) viewSSH(c *call, sb store.Sandbox) *sshView {
	_, text, err := net.SplitHostPort(s.SSHListen)
	port, bad := strconv.Atoi(text)
	if err != nil || bad != nil {
		return nil
	}
	host := cmp.Or(s.Domain, c.r.Host)
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return &sshView{host, port, sb.ID}
}

func viewDetail(g generation, sb store.Sandbox) detailView {
	rec := sb.Record
	return detailView{
		ID: sb.ID, TemplateID: templateOf(sb), TeamID: team, UserID: sb.Config.Key,
		Status: statusOf(rec), Paused: rec.State == lifecycle.Paused, AutoResume: rec.Settings.AutoResume,
		Resources: resourcesView{fmt.Sprintf("%dMi", sb.Config.Limits.MemoryMiB)}, Mounts: viewMounts(sb.Config.Volumes), Generation: rec.Generation,
		ClaimedAt: httpapi.Timestamp(rec.CreatedAt), CreatedAt: httpapi.Timestamp(rec.CreatedAt), UpdatedAt: httpapi.Timestamp(updated(rec)),
		names: viewNames(sb), lives: viewLives(g, sb),
	}
}

// updated is when the sandbox last changed its state.
func updated(rec lifecycle.Record) time.Time {
	at := rec.CreatedAt
	for _, t := range []time.Time{rec.StartedAt, rec.PausedAt, rec.EndSetAt} {
		if t.After(at) {
			at = t
		}
	}
	return at
}

type statusView struct {
	SandboxID  string            `json:"sandbox_id"`
	TemplateID string            `json:"template_id"`
	TeamID     string            `json:"team_id"`
	UserID     string            `json:"user_id"`
	Status     string            `json:"status"`
	ClaimedAt  httpapi.Timestamp `json:"claimed_at"`
	CreatedAt  httpapi.Timestamp `json:"created_at"`
	names
	lives
}

func viewStatus(g generation, sb store.Sandbox) statusView {
	d := viewDetail(g, sb)
	return statusView{SandboxID: sb.ID, TemplateID: d.TemplateID, TeamID: team, UserID: d.UserID, Status: d.Status, ClaimedAt: d.ClaimedAt, CreatedAt: d.CreatedAt, names: d.names, lives: d.lives}
}

type summaryView struct {
	ID         string            `json:"id"`
	TemplateID string            `json:"template_id"`
	Status     string            `json:"status"`
	Paused     bool              `json:"paused"`
	Generation int64             `json:"runtime_generation"`
	ClusterID  *string           `json:"cluster_id"`
	CreatedAt  httpapi.Timestamp `json:"created_at"`
	UpdatedAt  httpapi.Timestamp `json:"updated_at"`
	lives
}

func viewSummary(g generation, sb store.Sandbox) summaryView {
	d := viewDetail(g, sb)
	return summaryView{ID: d.ID, TemplateID: d.TemplateID, Status: d.Status, Paused: d.Paused, Generation: d.Generation, CreatedAt: d.CreatedAt, UpdatedAt: d.UpdatedAt, lives: d.lives}
}

type listView struct {
	Sandboxes []summaryView `json:"sandboxes"`
	Count     int           `json:"count"`
	HasMore   bool          `json:"has_more"`
}

type messageView struct {
	Message string `json:"message"`
}

type pausedView struct {
	SandboxID string `json:"sandbox_id"`
	Paused    bool   `json:"paused"`
	Status    string `json:"status"`
}

type resumedView struct {
	SandboxID string `json:"sandbox_id"`
	Resumed   bool   `json:"resumed"`
	Restored  bool   `json:"restored_memory"`
}

type refreshedView struct {
	SandboxID string `json:"sandbox_id"`
	lives
}

// networkView is a policy as clients send it.
type networkView struct {
	Mode   string     `json:"mode"`
	Egress egressView `json:"egress"`
}

type egressView struct {
	AllowedCIDRs   []string `json:"allowedCidrs"`
	AllowedDomains []string `json:"allowedDomains"`
	DeniedCIDRs    []string `json:"deniedCidrs"`
}

func viewNetwork(sb store.Sandbox) networkView {
	v := networkView{Mode: allowAll, Egress: egressView{AllowedCIDRs: []string{}, AllowedDomains: []string{}, DeniedCIDRs: append([]string{}, sb.Config.DenyOut...)}}
	if in := sb.Config.AllowInternet; in != nil && !*in {
		v.Mode = blockAll
	}
	for _, rule := range sb.Config.AllowOut {
		if isAddress(rule) {
			v.Egress.AllowedCIDRs = append(v.Egress.AllowedCIDRs, rule)
		} else {
			v.Egress.AllowedDomains = append(v.Egress.AllowedDomains, rule)
		}
	}
	return v
}
