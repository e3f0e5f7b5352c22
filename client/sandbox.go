package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// State is the committed state of a sandbox: one that is falling asleep still
// runs.
type State string

// The states. A pending sandbox has never run; a terminated one has ended.
const (
	Pending    State = "pending"
	Running    State = "running"
	Paused     State = "paused"
	Terminated State = "terminated"
)

// Sleep is how a paused sandbox sleeps. It goes from LightSleep to DeepSleep by itself,
// and nothing else differs but how long a wake takes and what the sleep costs.
type Sleep string

// The ways to sleep.
const (
	LightSleep Sleep = "light" // its frozen runtime stands by and has its memory; a wake takes milliseconds
	DeepSleep  Sleep = "deep"  // it takes no memory; a wake restores its checkpoint
)

// Phase is the operation in flight: creating, snapshotting, pausing, resuming or killing;
// empty for none.
type Phase string

// Action is what happens to a sandbox when one of its clocks runs out.
type Action string

// The actions.
const (
	Kill  Action = "kill"
	Pause Action = "pause"
)

// Mode is what a pause keeps. Memory keeps processes, memory and files;
// Filesystem keeps files alone, and the sandbox boots afresh.
type Mode string

// The modes.
const (
	Memory     Mode = "memory"
	Filesystem Mode = "filesystem"
)

// WakePolicy says what traffic to a port, or to a path of it, does.
type WakePolicy string

// The policies.
const (
	Wake   WakePolicy = "wake"   // counts as activity and wakes it; what traffic does that no rule fits
	Keep   WakePolicy = "keep"   // counts as activity, does not wake it
	Ignore WakePolicy = "ignore" // neither
)

// Never is a duration without end, in the places where zero means a default.
const Never time.Duration = -1

// CreateOptions says what a new sandbox is to be. The zero value is a sandbox
// of the template "base" that runs until it is killed. A zero duration is no
// limit, unless it says otherwise.
type CreateOptions struct {
	// Name is a name to find it by (ListOptions.Name); empty for none. No two sandboxes
	// of an API key have the same name, until one has ended.
	Name string

	Template string // id or alias; empty means "base"
	Snapshot string // id or name of what it starts from instead; empty for none

	Timeout     time.Duration // how long it runs after each start
	OnTimeout   Action        // what then happens; empty means the server's default
	IdleTimeout time.Duration // how long it may do nothing; zero means the server's default, and there is Never
	OnIdle      Action        // what then happens; empty means as OnTimeout

	MaxLifetime     time.Duration // how long it may exist, asleep or not; zero means the server's default, and there is Never
	PausedRetention time.Duration // how long it may stay asleep; zero means the server's default, and there is Never

	// These three are the server's defaults where they are nil. new(false) turns one
	// off, whatever the server's default is.
	AutoResume         *bool // traffic wakes it; needs OnTimeout or OnIdle to pause
	RefreshOnActivity  *bool // activity begins the timeout anew; see RefreshOnRequests
	FilesystemFallback *bool // boot afresh where the server's runtime cannot read the memory image

	// RefreshOnRequests is RefreshOnActivity for requests, streams and holds that
	// somebody asked for: a process alone does not hold the timeout back.
	RefreshOnRequests bool

	PauseMode  Mode          // what automatic pauses keep; empty means Memory
	StallAfter time.Duration // how long work may stand still and count; zero means the server's default, and there is Never

	// CheckpointEvery is how often it is checkpointed while it runs: with its
	// runtime it loses no more than that. Zero means the server's default, and
	// there is Never.
	CheckpointEvery time.Duration

	// IdempotencyKey, where it is not empty, makes one sandbox of several creates
	// with the same options: the first within 24 hours makes it, the others return
	// it, also where the answer to the first was lost. With other options the error
	// has the code idempotency_key_reused, and after the sandbox's end
	// idempotency_sandbox_ended. It is 1 to 255 visible ASCII characters, such as a
	// random UUID.
	IdempotencyKey string

	Ports map[string]WakePolicy // what traffic does, by port ("8080") or port and path ("8080/healthz"), where that is not Wake
	Hooks Hooks

	CPUs      float64 // of the host's, 0.5 for half the time of one; zero means the server's default, as with the next three
	MemoryMiB int
	DiskMiB   int
	PIDs      int // tasks on the host: a process inside takes two

	Metadata   map[string]string // returned as it is, and can be searched for
	Env        map[string]string // in the environment of every command
	NoInternet bool              // nothing outside can be reached from inside, but for AllowOut
	AllowOut   []string          // addresses, networks and names that can be reached in any case
	DenyOut    []string          // addresses and networks that cannot be reached

	// EgressProxy is the proxy through which connections go out; nil for none.
	EgressProxy *EgressProxy

	PrivatePorts bool   // requests to its ports need its traffic token, or a preview link
	HostMask     string // the Host header that servers inside receive; empty means the requested host
	HTTPSPorts   []int  // ports whose servers speak TLS

	Volumes map[string]string // names of volumes, by the absolute path where they are to be

	// Secrets are those that it may use without having them, by their names: the
	// variable that has the placeholder, empty for the secret's own.
	Secrets map[string]string

	Services []Service // processes that start with it; see NewServices
}

// Hooks are commands run inside at points of a sandbox's life. Their failure
// stops nothing.
type Hooks struct {
	PrePause   Hook `json:"prePause,omitzero"`
	PostResume Hook `json:"postResume,omitzero"`
	PreKill    Hook `json:"preKill,omitzero"`
}

// Hook is run by a shell, as root.
type Hook struct {
	Command string
	Timeout time.Duration // when it is killed; zero means the server's default
}

// Settings are the rules by which a sandbox lives. A zero duration is no limit.
type Settings struct {
	OnTimeout          Action        `json:"onTimeout"`
	OnIdle             Action        `json:"onIdle"`
	AutoResume         bool          `json:"autoResume"`
	IdleTimeout        time.Duration `json:"-"`
	MaxLifetime        time.Duration `json:"-"`
	PausedRetention    time.Duration `json:"-"`
	RefreshOnActivity  bool          `json:"-"`                  // or RefreshOnRequests
	RefreshOnRequests  bool          `json:"-"`                  // see CreateOptions
	FilesystemFallback bool          `json:"filesystemFallback"` // see CreateOptions
	PauseMode          Mode          `json:"pauseMode"`
	StallAfter         time.Duration `json:"-"` // zero is the server's default
	CheckpointEvery    time.Duration `json:"-"`
}

// Info is what the server says of a sandbox. It encodes as the JSON of the API,
// without the sandbox's tokens and without what is not known.
type Info struct {
	ID            string                `json:"id"`
	Name          string                `json:"name,omitempty"`      // that it was given; it is unique among those of its Key
	NameTaken     string                `json:"nameTaken,omitempty"` // only of Import: the name that it had and could not keep, as another has it
	State         State                 `json:"state"`
	Sleep         Sleep                 `json:"sleep,omitempty"` // while State is Paused
	Phase         Phase                 `json:"phase,omitempty"`
	Generation    int64                 `json:"generation"` // of the runtime that serves or last served, from 1
	Template      string                `json:"template"`
	Alias         string                `json:"alias,omitempty"`  // of the template
	Key           string                `json:"key,omitempty"`    // the id of the API key that has made it, where that is known
	Server        string                `json:"server,omitempty"` // the id of the one that has it, where several have one database
	CreatedAt     time.Time             `json:"createdAt"`
	StartedAt     time.Time             `json:"startedAt,omitzero"` // last start or wake
	Next          Next                  `json:"next,omitzero"`      // what happens by itself
	LastActiveAt  time.Time             `json:"lastActiveAt,omitzero"`
	OpenStreams   int                   `json:"openStreams,omitzero"`
	AwakeBecause  string                `json:"awakeBecause,omitzero"` // the hold that keeps it awake
	EndAt         time.Time             `json:"endAt,omitzero"`        // when the timeout ends; zero for never, and while asleep
	PausedAt      time.Time             `json:"pausedAt,omitzero"`     // when it last fell asleep
	Timeout       time.Duration         `json:"-"`                     // as asked for at create
	Settings      Settings              `json:"settings"`
	FromServer    []string              `json:"fromServer,omitzero"` // the settings that nobody asked for: the server's defaults
	Metadata      map[string]string     `json:"metadata,omitempty"`
	Ports         map[string]WakePolicy `json:"ports,omitempty"`  // by port, or port and path
	Volumes       map[string]string     `json:"volumes,omitzero"` // names, by where they are
	Secrets       []UsedSecret          `json:"secrets,omitzero"` // that it may use
	Hooks         Hooks                 `json:"hooks,omitzero"`
	AllowInternet *bool                 `json:"allowInternetAccess,omitempty"` // nil if nobody said, which allows it
	AllowOut      []string              `json:"allowOut,omitzero"`             // what it may reach in any case
	DenyOut       []string              `json:"denyOut,omitzero"`              // what it may not reach
	EgressProxy   *EgressProxy          `json:"egressProxy,omitempty"`         // through which its connections go out; never with its password
	Limits        Limits                `json:"limits"`
	Isolation     string                `json:"isolation"`
	Checkpoint    *Checkpoint           `json:"checkpoint,omitempty"` // what it wakes from
	LastError     string                `json:"lastError,omitempty"`  // why the last operation failed
	Tombstone     *Tombstone            `json:"tombstone,omitempty"`  // what ended it; nil before
}

// Limits bound what a sandbox may use.
type Limits struct {
	CPUs      float64 `json:"cpus"`
	MemoryMiB int     `json:"memoryMiB"`
	DiskMiB   int     `json:"diskMiB"`
	PIDs      int     `json:"pids"`
}

// Checkpoint is what a sleeping sandbox wakes from.
type Checkpoint struct {
	Mode  Mode  `json:"mode"`
	Bytes int64 `json:"bytes"` // what the pause wrote
	// Durability is Local while it is on the disk of its server alone, and Replicated when
	// it is in object storage too, from where another server can go on with it. Empty where
	// the server has none, and of a sandbox of another server.
	Durability Durability `json:"durability,omitempty"`
	// ReplicationError is why the last try to copy it there has failed; empty for no failure.
	ReplicationError string `json:"replicationError,omitempty"`
	// Reason is memory_not_capturable where a pause was to keep the memory and has kept
	// the files alone, because of what Detail says. Empty otherwise.
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Durability says where a checkpoint is.
type Durability string

// Where a checkpoint is.
const (
	Local      Durability = "local"
	Replicated Durability = "replicated"
)

// Reason says what ended a sandbox, such as Killed, TimeoutExpired or
// OutOfMemory.
type Reason string

// Tombstone is what remains of a sandbox that has ended.
type Tombstone struct {
	Reason      Reason    `json:"reason"`
	Code        string    `json:"code,omitempty"` // of the error that calls on it get
	Detail      string    `json:"detail,omitempty"`
	At          time.Time `json:"at"`
	Actor       string    `json:"actor,omitempty"` // who ended it, if somebody did
	Remediation string    `json:"remediation,omitempty"`
}

// err is what a call finds that needs the sandbox alive.
func (t *Tombstone) err(id string) *Error {
	text := fmt.Sprintf("the sandbox ended at %s: %s", t.At.UTC().Format(time.RFC3339), t.Reason)
	if t.Detail != "" {
		text += " (" + t.Detail + ")"
	}
	return &Error{
		Status: http.StatusNotFound, Code: cmp.Or(t.Code, codeTerminated), Message: text, Cause: string(t.Reason), Remediation: t.Remediation,
		Context: map[string]any{
			"sandbox": id, "state": string(Terminated), "reason": string(t.Reason), "endedAt": t.At.UTC().Format(time.RFC3339Nano),
		},
	}
}

// Sandbox is a handle to one sandbox. It stays valid while the sandbox sleeps
// and wakes.
type Sandbox struct {
	// ID names the sandbox.
	ID string
	// Template is the id of what it was made from.
	Template string

	client  *Client
	user    string
	token   string // what the agent inside asks for
	traffic string // what private ports ask for
}

// answered is the answer to calls about one sandbox. What is not of the sandbox
// as such, and its tokens, stay out of Info, which is for showing.
type answered struct {
	info    Info
	token   string
	traffic string
	resumed bool // in the answer to a resume
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *answered) UnmarshalJSON(b []byte) error {
	var beside struct {
		Token        string `json:"token"`
		TrafficToken string `json:"trafficToken"`
		Resumed      bool   `json:"resumed"`
	}
	err := errors.Join(json.Unmarshal(b, &beside), json.Unmarshal(b, &a.info))
	a.token, a.traffic, a.resumed = beside.Token, beside.TrafficToken, beside.Resumed
	return err
}

func (c *Client) handle(a answered) *Sandbox {
	return &Sandbox{ID: a.info.ID, Template: a.info.Template, client: c, token: a.token, traffic: a.traffic}
}

// createRequest is the body of a create.
type createRequest struct {
	Name               string                `json:"name,omitempty"`
	Template           string                `json:"template,omitempty"`
	Snapshot           string                `json:"snapshot,omitempty"`
	Timeout            seconds               `json:"timeoutSeconds,omitempty"`
	OnTimeout          Action                `json:"onTimeout,omitempty"`
	IdleTimeout        *seconds              `json:"idleTimeoutSeconds,omitempty"`
	OnIdle             Action                `json:"onIdle,omitempty"`
	MaxLifetime        *seconds              `json:"maxLifetimeSeconds,omitempty"`
	PausedRetention    *seconds              `json:"pausedRetentionSeconds,omitempty"`
	AutoResume         *bool                 `json:"autoResume,omitempty"`
	RefreshOnActivity  *refresh              `json:"refreshOnActivity,omitempty"`
	FilesystemFallback *bool                 `json:"filesystemFallback,omitempty"`
	PauseMode          Mode                  `json:"pauseMode,omitempty"`
	StallAfter         *seconds              `json:"stallAfterSeconds,omitempty"`
	CheckpointEvery    *seconds              `json:"checkpointEverySeconds,omitempty"`
	Ports              map[string]WakePolicy `json:"ports,omitempty"`
	Hooks              Hooks                 `json:"hooks,omitzero"`
	CPUs               float64               `json:"cpus,omitempty"`
	MemoryMiB          int                   `json:"memoryMiB,omitempty"`
	DiskMiB            int                   `json:"diskMiB,omitempty"`
	PIDs               int                   `json:"pids,omitempty"`
	Metadata           map[string]string     `json:"metadata,omitempty"`
	Env                map[string]string     `json:"env,omitempty"`
	AllowInternet      *bool                 `json:"allowInternetAccess,omitempty"`
	AllowOut           []string              `json:"allowOut,omitempty"`
	DenyOut            []string              `json:"denyOut,omitempty"`
	EgressProxy        *EgressProxy          `json:"egressProxy,omitempty"`
	PublicTraffic      *bool                 `json:"allowPublicTraffic,omitempty"`
	HostMask           string                `json:"maskRequestHost,omitempty"`
	HTTPSPorts         []int                 `json:"httpsPorts,omitempty"`
	Volumes            map[string]string     `json:"volumes,omitempty"`
	Secrets            []wireSecret          `json:"secrets,omitempty"`
	Services           []Service             `json:"services,omitempty"`
}

// EgressProxy is a proxy for what a sandbox sends out. Addresses are host:port or
// socks5://host:port for SOCKS 5, and http://host:port for CONNECT.
type EgressProxy struct {
	Address  string `json:"address,omitempty"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"` // in requests only
}

func (o CreateOptions) wire() createRequest {
	r := createRequest{
		Name: o.Name, Template: o.Template, Snapshot: o.Snapshot, Timeout: seconds(o.Timeout), OnTimeout: o.OnTimeout, IdleTimeout: orDefault(o.IdleTimeout), OnIdle: o.OnIdle,
		MaxLifetime: orDefault(o.MaxLifetime), PausedRetention: orDefault(o.PausedRetention), AutoResume: o.AutoResume,
		RefreshOnActivity: refreshed(o.RefreshOnActivity, o.RefreshOnRequests), FilesystemFallback: o.FilesystemFallback, PauseMode: o.PauseMode, StallAfter: orDefault(o.StallAfter),
		CheckpointEvery: orDefault(o.CheckpointEvery), Ports: o.Ports, Hooks: o.Hooks, Metadata: o.Metadata, Env: o.Env,
		CPUs: o.CPUs, MemoryMiB: o.MemoryMiB, DiskMiB: o.DiskMiB, PIDs: o.PIDs,
		AllowOut: o.AllowOut, DenyOut: o.DenyOut, EgressProxy: o.EgressProxy, HostMask: o.HostMask, HTTPSPorts: o.HTTPSPorts, Volumes: o.Volumes, Secrets: wireSecrets(o.Secrets), Services: o.Services,
	}
	if o.NoInternet {
		r.AllowInternet = new(false)
	}
	if o.PrivatePorts {
		r.PublicTraffic = new(false)
	}
	return r
}

// Create makes a sandbox. It is running and takes commands when Create
// returns.
func (c *Client) Create(ctx context.Context, o CreateOptions) (*Sandbox, error) {
	var out answered
	if err := c.callOnce(ctx, http.MethodPost, sandboxesPath, nil, o.IdempotencyKey, o.wire(), &out); err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	return c.handle(out), nil
}

// Get returns what the server says of a sandbox. It neither wakes it nor moves
// a deadline. For one that has ended the error is ErrNotFound and says why, and
// the Info is there all the same.
func (c *Client) Get(ctx context.Context, id string) (Info, error) {
	a, err := c.get(ctx, id)
	return a.info, err
}

// Find is Get to which one that has ended is no error.
func (c *Client) Find(ctx context.Context, id string) (Info, error) {
	a, err := c.find(ctx, id)
	if err != nil {
		return Info{}, fmt.Errorf("get sandbox %s: %w", id, err)
	}
	return a.info, nil
}

// Open returns a handle to a sandbox without waking it or moving a deadline,
// and what the server says of it. For one that has ended there is no handle; it
// is as with Get.
func (c *Client) Open(ctx context.Context, id string) (*Sandbox, Info, error) {
	a, err := c.get(ctx, id)
	if err != nil {
		return nil, a.info, err
	}
	return c.handle(a), a.info, nil
}

// get finds a sandbox that has not ended.
func (c *Client) get(ctx context.Context, id string) (answered, error) {
	a, err := c.find(ctx, id)
	if err == nil && a.info.Tombstone != nil {
		err = a.info.Tombstone.err(a.info.ID)
	}
	if err != nil {
		return a, fmt.Errorf("get sandbox %s: %w", id, err)
	}
	return a, nil
}

func (c *Client) find(ctx context.Context, id string) (answered, error) {
	var a answered
	err := c.on(ctx, http.MethodGet, id, "", nil, &a)
	return a, err
}

// on makes a call on one sandbox.
func (c *Client) on(ctx context.Context, method, id, below string, in, out any) error {
	path, err := sandboxPath(id)
	if err != nil {
		return err
	}
	return c.call(ctx, method, path+below, nil, in, out)
}

// ListOptions selects sandboxes. The zero value selects all that have not
// ended.
type ListOptions struct {
	States   []State           // any of these
	Metadata map[string]string // all of these; a key with "=" cannot be asked for
	Template string            // id or alias
	Name     string            // of a sandbox that the client's API key has made
}

// List returns all sandboxes selected, newest first. It reads page after page:
// one that is created or changes state meanwhile may be missed.
func (c *Client) List(ctx context.Context, o ListOptions) ([]Info, error) {
	for k := range o.Metadata {
		if strings.Contains(k, "=") {
			return nil, fmt.Errorf("list sandboxes: %w", invalid("invalid_metadata", "the metadata key %q has a =, and cannot be asked for", k))
		}
	}
	list := []Info{}
	for after := ""; ; {
		var page struct {
			Sandboxes []Info `json:"sandboxes"`
			Next      string `json:"next"`
		}
		if err := c.call(ctx, http.MethodGet, sandboxesPath, o.query(after), nil, &page); err != nil {
			return nil, fmt.Errorf("list sandboxes: %w", err)
		}
		list = append(list, page.Sandboxes...)
		switch page.Next {
		case "":
			return list, nil
		case after:
			return nil, fmt.Errorf("list sandboxes: the server repeats the cursor %q", after)
		}
		after = page.Next
	}
}

func (o ListOptions) query(after string) url.Values {
	q := url.Values{}
	if after != "" {
		q.Set("after", after)
	}
	if len(o.States) > 0 {
		states := make([]string, len(o.States))
		for i, s := range o.States {
			states[i] = string(s)
		}
		q.Set("state", strings.Join(states, ","))
	}
	for k, v := range o.Metadata {
		q.Add("metadata", k+"="+v)
	}
	if o.Template != "" {
		q.Set("template", o.Template)
	}
	if o.Name != "" {
		q.Set("name", o.Name)
	}
	return q
}

// Pause puts a sandbox to sleep with its memory. It is asleep when Pause
// returns. ErrConflict: it sleeps already.
func (c *Client) Pause(ctx context.Context, id string) error {
	_, err := c.PauseWith(ctx, id, Memory)
	return err
}

// PauseWith is Pause that keeps what mode says, and tells what it wrote.
func (c *Client) PauseWith(ctx context.Context, id string, mode Mode) (Info, error) {
	var a answered
	in := struct {
		Mode Mode `json:"mode,omitempty"`
	}{mode}
	if err := c.on(ctx, http.MethodPost, id, "/pause", in, &a); err != nil {
		return Info{}, fmt.Errorf("pause sandbox %s: %w", id, err)
	}
	return a.info, nil
}

// Resume wakes a sandbox if it sleeps, and gives it at least timeout from now.
// It never shortens the time of a running one. A zero timeout is the sandbox's
// own, and Never wakes it without one.
func (c *Client) Resume(ctx context.Context, id string, timeout time.Duration) (Info, error) {
	a, err := c.resume(ctx, id, timeout)
	if err != nil {
		return Info{}, fmt.Errorf("resume sandbox %s: %w", id, err)
	}
	return a.info, nil
}

func (c *Client) resume(ctx context.Context, id string, timeout time.Duration) (answered, error) {
	var a answered
	in := struct {
		Timeout *seconds `json:"timeoutSeconds,omitempty"`
	}{orDefault(timeout)}
	err := c.on(ctx, http.MethodPost, id, "/resume", in, &a)
	return a, err
}

// Connected is the answer to Connect.
type Connected struct {
	*Sandbox
	Info    Info
	Resumed bool // it slept, and was woken by this call or one that it joined
}

// Connect is Resume that returns a handle and tells whether the sandbox slept.
func (c *Client) Connect(ctx context.Context, id string, timeout time.Duration) (Connected, error) {
	a, err := c.resume(ctx, id, timeout)
	if err != nil {
		return Connected{}, fmt.Errorf("connect to sandbox %s: %w", id, err)
	}
	return Connected{c.handle(a), a.info, a.resumed}, nil
}

// SetTimeout moves the deadline of a running sandbox to d from now; zero means
// now, and Never takes it away. Until then it does not count as idle. ErrConflict: it does not run.
func (c *Client) SetTimeout(ctx context.Context, id string, d time.Duration) error {
	in := map[string]any{"timeoutSeconds": seconds(d)}
	switch d {
	case 0:
		in["timeoutSeconds"] = "now"
	case Never:
		in["timeoutSeconds"] = "none"
	}
	if err := c.on(ctx, http.MethodPost, id, "/timeout", in, nil); err != nil {
		return fmt.Errorf("set the timeout of sandbox %s: %w", id, err)
	}
	return nil
}

// PatchOptions changes a sandbox, running or asleep; what is nil stays as it
// is. A duration of zero is no limit.
type PatchOptions struct {
	OnTimeout          *Action
	OnIdle             *Action
	AutoResume         *bool
	IdleTimeout        *time.Duration
	MaxLifetime        *time.Duration
	PausedRetention    *time.Duration
	RefreshOnActivity  *bool
	RefreshOnRequests  bool // turns RefreshOnActivity on, for requests alone; see CreateOptions
	FilesystemFallback *bool
	StallAfter         *time.Duration // or Never
	CheckpointEvery    *time.Duration
	AllowInternet      *bool                 // whether it may reach anything outside
	Ports              map[string]WakePolicy // replaces all
	Metadata           map[string]string     // replaces all
	AllowOut           []string              // replaces all
	DenyOut            []string              // replaces all
	EgressProxy        *EgressProxy          // one without an address is none
}

// patchRequest is the body of a patch. An empty map or list that is not nil is
// sent.
type patchRequest struct {
	OnTimeout          *Action               `json:"onTimeout,omitempty"`
	OnIdle             *Action               `json:"onIdle,omitempty"`
	AutoResume         *bool                 `json:"autoResume,omitempty"`
	IdleTimeout        *seconds              `json:"idleTimeoutSeconds,omitempty"`
	MaxLifetime        *seconds              `json:"maxLifetimeSeconds,omitempty"`
	PausedRetention    *seconds              `json:"pausedRetentionSeconds,omitempty"`
	RefreshOnActivity  *refresh              `json:"refreshOnActivity,omitempty"`
	FilesystemFallback *bool                 `json:"filesystemFallback,omitempty"`
	StallAfter         *seconds              `json:"stallAfterSeconds,omitempty"`
	CheckpointEvery    *seconds              `json:"checkpointEverySeconds,omitempty"`
	Ports              map[string]WakePolicy `json:"ports,omitzero"`
	Metadata           map[string]string     `json:"metadata,omitzero"`
	AllowInternet      *bool                 `json:"allowInternetAccess,omitempty"`
	AllowOut           []string              `json:"allowOut,omitzero"`
	DenyOut            []string              `json:"denyOut,omitzero"`
	EgressProxy        *EgressProxy          `json:"egressProxy,omitempty"`
}

func (o PatchOptions) wire() patchRequest {
	r := patchRequest{
		OnTimeout: o.OnTimeout, OnIdle: o.OnIdle, AutoResume: o.AutoResume,
		IdleTimeout: (*seconds)(o.IdleTimeout), MaxLifetime: (*seconds)(o.MaxLifetime), PausedRetention: (*seconds)(o.PausedRetention),
		RefreshOnActivity: refreshed(o.RefreshOnActivity, o.RefreshOnRequests), FilesystemFallback: o.FilesystemFallback, StallAfter: (*seconds)(o.StallAfter), CheckpointEvery: (*seconds)(o.CheckpointEvery),
		Ports: o.Ports, Metadata: o.Metadata, AllowInternet: o.AllowInternet,
		AllowOut: o.AllowOut, DenyOut: o.DenyOut, EgressProxy: o.EgressProxy,
	}
	if o.StallAfter != nil && *o.StallAfter == Never {
		r.StallAfter = new(seconds(0))
	}
	return r
}

// Patch changes settings of a sandbox, running or asleep, and returns what they
// then are. The timeout has a call of its own, SetTimeout.
func (c *Client) Patch(ctx context.Context, id string, o PatchOptions) (Info, error) {
	var a answered
	if err := c.on(ctx, http.MethodPatch, id, "", o.wire(), &a); err != nil {
		return Info{}, fmt.Errorf("change sandbox %s: %w", id, err)
	}
	return a.info, nil
}

// Kill ends a sandbox, running or asleep, and deletes what it held.
func (c *Client) Kill(ctx context.Context, id string) error {
	if err := c.on(ctx, http.MethodDelete, id, "", nil, nil); err != nil {
		return fmt.Errorf("kill sandbox %s: %w", id, err)
	}
	return nil
}

// String returns the sandbox's id, and so keeps its tokens out of logs.
func (s *Sandbox) String() string { return s.ID }

// As returns a handle to the same sandbox through which commands run and files
// are read and written as the given user, such as "root". Without it, that is
// the template's default user.
func (s *Sandbox) As(user string) *Sandbox {
	as := *s
	as.user = user
	return &as
}
