package v1

import (
	"cmp"
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

// sandboxView is a sandbox as clients see it. What may be missing is null.
type sandboxView struct {
	ID             string             `json:"id"`
	Name           *string            `json:"name" doc:"The name that it was given at create, in the space of names of the API key that created it; null for none."`
	NameTaken      string             `json:"nameTaken,omitempty" doc:"In the answer to an import only: the name of the sandbox that was exported, which this one could not keep, because another sandbox of the API key has it."`
	State          lifecycle.State    `json:"state" doc:"The committed state; pending until it has first run."`
	Sleep          sleep              `json:"sleep,omitempty" doc:"How a paused sandbox sleeps; only while state is paused. light: its frozen runtime stands by, so that a wake takes milliseconds. deep: it takes no memory, and a wake restores its checkpoint. It changes by itself from light to deep."`
	Phase          *lifecycle.Phase   `json:"phase" doc:"The operation in flight."`
	Generation     int64              `json:"generation" doc:"Of the runtime that serves or last served; 0 before the first."`
	Template       string             `json:"template"`
	Alias          *string            `json:"alias" doc:"The template's alias."`
	Key            *string            `json:"key" doc:"The id of the API key that created it; null if unknown."`
	Server         *string            `json:"server" doc:"The id of the server that has it, where several have one database; null otherwise."`
	CreatedAt      httpapi.Timestamp  `json:"createdAt"`
	StartedAt      *httpapi.Timestamp `json:"startedAt" doc:"The last start or resume."`
	Next           *nextView          `json:"next" doc:"What happens next by itself."`
	LastActiveAt   *httpapi.Timestamp `json:"lastActiveAt" doc:"When it was last active: now, while a hold counts; null if that is not known."`
	OpenStreams    int                `json:"openStreams" doc:"How many streams to the sandbox are open: commands, terminals, watches, WebSockets."`
	AwakeBecause   *string            `json:"awakeBecause" doc:"The hold that keeps it awake, the oldest of several, as in its lifecycle; null for none."`
	EndAt          *httpapi.Timestamp `json:"endAt" doc:"When the soft timeout ends; null for never, and while it does not run."`
	PausedAt       *httpapi.Timestamp `json:"pausedAt" doc:"When the last pause was committed."`
	TimeoutSeconds float64            `json:"timeoutSeconds" doc:"The soft timeout asked for at create; 0 for none."`
	Settings       settingsView       `json:"settings"`
	FromServer     []string           `json:"fromServer" doc:"Settings that were not given at create, so that they are the server's defaults of that time."`
	Metadata       map[string]string  `json:"metadata"`
	Ports          store.Ports        `json:"ports" doc:"Ports, and paths of ports, whose traffic has a policy of its own."`
	AllowInternet  *bool              `json:"allowInternetAccess" doc:"Whether the sandbox may reach the internet, as requested; null if not given, which allows it."`
	AllowOut       []string           `json:"allowOut" doc:"Destinations that are always allowed."`
	DenyOut        []string           `json:"denyOut" doc:"Destinations that are denied."`
	EgressProxy    *body.Proxy        `json:"egressProxy" doc:"The proxy through which its connections go out, without the password; null for none."`
	PublicTraffic  bool               `json:"allowPublicTraffic" doc:"Whether its ports are open without the traffic token."`
	HostMask       *string            `json:"maskRequestHost" doc:"The Host header that its servers receive; null for the requested one."`
	HTTPSPorts     []int              `json:"httpsPorts" doc:"Ports whose servers speak TLS."`
	Volumes        map[string]string  `json:"volumes" doc:"Names of volumes, by mount path."`
	Secrets        []usedSecretView   `json:"secrets" doc:"Secrets that it has the use of."`
	Hooks          body.Hooks         `json:"hooks"`
	Limits         limitsView         `json:"limits"`
	Isolation      string             `json:"isolation"`
	Resumed        *bool              `json:"resumed,omitempty" doc:"In the answer to a resume: whether it slept, and was woken by this call or one that it joined."`
	Token          string             `json:"token,omitempty" doc:"The access token of its agent; only in answers about a single sandbox that can still run, for keys that may use it."`
	TrafficToken   string             `json:"trafficToken,omitempty" doc:"The token for its private ports."`
	Checkpoint     *checkpointView    `json:"checkpoint" doc:"What a resume restores."`
	LastError      *string            `json:"lastError" doc:"Why the last operation failed."`
	Tombstone      *tombstoneView     `json:"tombstone" doc:"What ended it."`
}

// sleep says how a paused sandbox sleeps; empty for one that is not paused.
type sleep string

const (
	lightSleep sleep = "light" // its frozen runtime stands by
	deepSleep  sleep = "deep"  // it is its checkpoint alone
)

func viewSleep(sb store.Sandbox) sleep {
	switch {
	case sb.Record.State != lifecycle.Paused:
		return ""
	case sb.Light:
		return lightSleep
	}
	return deepSleep
}

// settingsView has the names of the options, so that it can be sent back.
type settingsView struct {
	OnTimeout              lifecycle.Action  `json:"onTimeout"`
	OnIdle                 lifecycle.Action  `json:"onIdle"`
	AutoResume             bool              `json:"autoResume"`
	IdleTimeoutSeconds     float64           `json:"idleTimeoutSeconds" doc:"0 for no limit."`
	MaxLifetimeSeconds     float64           `json:"maxLifetimeSeconds" doc:"0 for no limit."`
	PausedRetentionSeconds float64           `json:"pausedRetentionSeconds" doc:"0 for no limit."`
	RefreshOnActivity      lifecycle.Refresh `json:"refreshOnActivity"`
	PauseMode              lifecycle.Mode    `json:"pauseMode"`
	FilesystemFallback     bool              `json:"filesystemFallback"`
	StallAfterSeconds      *float64          `json:"stallAfterSeconds" doc:"0 for never, null for the server's default."`
	CheckpointEverySeconds float64           `json:"checkpointEverySeconds" doc:"0 for no checkpoints while it runs."`
}

type limitsView struct {
	CPUs      float64 `json:"cpus"`
	MemoryMiB int     `json:"memoryMiB"`
	DiskMiB   int     `json:"diskMiB" doc:"Limit of its own files; 0 for no limit."`
	PIDs      int     `json:"pids"`
}

type checkpointView struct {
	Mode  lifecycle.Mode `json:"mode"`
	Bytes int64          `json:"bytes" doc:"What the pause wrote."`
	// Durability and Unreplicated are null where there is no object storage.
	Durability   *store.Durability `json:"durability" doc:"Where it is. local: on the disk of its server alone. replicated: in object storage too, so that another server can go on with the sandbox if its own is gone. null without object storage, and while another server has the sandbox."`
	Unreplicated *string           `json:"replicationError" doc:"Why the last try to copy it to object storage has failed, which is tried again; null for no failure."`
	// Reason and Detail are of a pause that was to keep memory, and has not.
	Reason *string `json:"reason" doc:"memory_not_capturable, where a pause that was to keep the memory has kept the files alone; null otherwise."`
	Detail *string `json:"detail" doc:"What kept the memory from being captured."`
}

type tombstoneView struct {
	Reason      lifecycle.Reason  `json:"reason"`
	Code        string            `json:"code" doc:"The error code that calls on this sandbox get, such as idle_timeout."`
	Detail      *string           `json:"detail"`
	At          httpapi.Timestamp `json:"at"`
	Actor       *string           `json:"actor" doc:"Who ended it, if somebody did."`
	Remediation string            `json:"remediation" doc:"What to do."`
}

// lookTime bounds how long an answer about sandboxes waits for what they tell of
// themselves.
const lookTime = time.Second

// views returns sandboxes without their tokens.
func (s *server) views(ctx context.Context, list ...*store.Sandbox) []sandboxView {
	ids := make([]string, len(list))
	for i, sb := range list {
		ids[i] = sb.ID
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	outlooks := s.Sandboxes.Outlooks(ctx, ids)
	views := make([]sandboxView, len(list))
	for i, sb := range list {
		x, ok := outlooks[sb.ID]
		if !ok { // another server has it
			x = awake.AsStored(*sb, time.Now())
		}
		seen := *sb
		if ok { // what a change returns does not tell
			seen.Light, seen.Durability, seen.Unreplicated = seen.Light || x.Sandbox.Light, x.Sandbox.Durability, x.Sandbox.Unreplicated
		}
		views[i] = s.view(&seen)
		next := viewNext(x)
		views[i].Next, views[i].LastActiveAt = &next, timeOrNull(x.LastActive)
		views[i].OpenStreams, views[i].AwakeBecause = openStreams(x), orNull(awakeBecause(x))
	}
	return views
}

func openStreams(x supervisor.Explanation) (n int) {
	for _, h := range x.Holds {
		if h.Kind == awake.HoldStream {
			n++
		}
	}
	return n
}

// awakeBecause names the hold that keeps a sandbox awake; "" for none.
func awakeBecause(x supervisor.Explanation) string {
	if !busy(x) {
		return ""
	}
	h := x.Holds[0] // those that count come first
	if h.Detail == "" {
		return string(h.Kind)
	}
	return string(h.Kind) + ": " + h.Detail
}

// view returns a sandbox without its tokens and what happens next to it.
func (s *server) view(sb *store.Sandbox) sandboxView {
	rec := &sb.Record
	v := sandboxView{
		ID: sb.ID, Name: orNull(sb.Config.Name), State: rec.State, Sleep: viewSleep(*sb), Phase: orNull(rec.Phase()), Generation: rec.Generation,
		Template: sb.Config.TemplateID(), Alias: orNull(sb.Config.TemplateName()), Key: orNull(sb.Config.Key), Server: orNull(cmp.Or(sb.Owner, s.Servers.Self())),
		CreatedAt: httpapi.Timestamp(rec.CreatedAt), StartedAt: timeOrNull(rec.StartedAt),
		EndAt: timeOrNull(rec.EndAt), PausedAt: timeOrNull(rec.PausedAt),
		TimeoutSeconds: rec.Settings.Timeout.Seconds(), Settings: viewSettings(rec.Settings),
		Metadata: sb.Config.Metadata, Ports: sb.Config.Ports, AllowInternet: sb.Config.AllowInternet,
		AllowOut: orEmpty(sb.Config.AllowOut), DenyOut: orEmpty(sb.Config.DenyOut), EgressProxy: body.ViewProxy(sb.Config.Proxy), Volumes: viewMounts(sb.Config.Volumes), Hooks: viewHooks(sb.Config.Hooks),
		Secrets:    viewUsedSecrets(s.Secrets, sb.Config),
		FromServer: orEmpty(sb.Config.FromServer), PublicTraffic: !sb.Config.PrivatePorts, HostMask: orNull(sb.Config.HostMask),
		HTTPSPorts: append([]int{}, sb.Config.HTTPSPorts...),
		Limits:     limitsView(sb.Config.Limits),
		Isolation:  s.Isolation, LastError: orNull(rec.LastError), Tombstone: viewTombstone(rec.Tombstone),
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	if v.Ports == nil {
		v.Ports = store.Ports{}
	}
	v.Checkpoint = viewCheckpoint(*sb)
	return v
}

func viewCheckpoint(sb store.Sandbox) *checkpointView {
	rec := sb.Record
	cp := rec.Checkpoint
	if cp == nil || rec.State == lifecycle.Terminated {
		return nil
	}
	v := &checkpointView{Mode: cp.Mode, Bytes: cp.Bytes, Durability: orNull(sb.Durability), Unreplicated: orNull(sb.Unreplicated)}
	if cp.Without != "" {
		v.Reason, v.Detail = orNull(lifecycle.NotCapturable), orNull(cp.Without)
	}
	return v
}

// viewWithTokens is view for those who may use the sandbox.
func (s *server) viewWithTokens(c *call, sb store.Sandbox) sandboxView {
	v := s.views(c.r.Context(), &sb)[0]
	if sb.Record.State == lifecycle.Terminated || !auth.May(c.key, auth.Use) {
		return v
	}
	if sb.Config.Secure {
		v.Token = s.Sandboxes.EnvdToken(sb.ID)
	}
	if sb.Config.PrivatePorts {
		v.TrafficToken = s.Sandboxes.TrafficToken(sb.ID)
	}
	return v
}

func viewSettings(set lifecycle.Settings) settingsView {
	v := settingsView{
		OnTimeout: set.OnTimeout, OnIdle: cmp.Or(set.OnIdle, set.OnTimeout), AutoResume: set.AutoResume,
		IdleTimeoutSeconds: set.IdleTimeout.Seconds(), MaxLifetimeSeconds: set.MaxLifetime.Seconds(),
		PausedRetentionSeconds: set.PausedRetention.Seconds(), RefreshOnActivity: set.RefreshOnActivity,
		PauseMode: cmp.Or(set.PauseMode, lifecycle.Memory), FilesystemFallback: set.FilesystemFallback, CheckpointEverySeconds: set.CheckpointEvery.Seconds(),
	}
	if set.StallAfter != 0 {
		n := max(0, set.StallAfter).Seconds()
		v.StallAfterSeconds = &n
	}
	return v
}

func viewHooks(h store.Hooks) body.Hooks {
	view := func(h store.Hook) *body.Hook {
		if h.Command == "" {
			return nil
		}
		return &body.Hook{Command: h.Command, TimeoutSeconds: h.Budget.Seconds()}
	}
	return body.Hooks{PrePause: view(h.PrePause), PostResume: view(h.PostResume), PreKill: view(h.PreKill)}
}

func viewTombstone(t *lifecycle.Tombstone) *tombstoneView {
	if t == nil {
		return nil
	}
	return &tombstoneView{
		Reason: t.Reason, Code: t.Reason.Code(), Detail: orNull(t.Detail), At: httpapi.Timestamp(t.At), Actor: orNull(t.Actor),
		Remediation: t.Reason.Remedy(),
	}
}

// orEmpty returns a list that is written as one.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// orNull returns nil for the zero value.
func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func timeOrNull(t time.Time) *httpapi.Timestamp {
	if t.IsZero() {
		return nil
	}
	ts := httpapi.Timestamp(t)
	return &ts
}
