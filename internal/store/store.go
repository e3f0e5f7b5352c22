// Package store keeps what drowse must never lose: a record per sandbox, the
// event log, API keys, volumes, snapshots, templates that were built, webhooks and
// the server's secret.
//
// A commit is one transaction: the record and the log entries of the change
// become durable together or not at all, and when Commit returns they survive
// a power cut. The store knows nothing of runtimes or HTTP; one supervisor
// writes a given record.
package store

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
)

// Sandbox is everything durable about one sandbox.
type Sandbox struct {
	ID string `json:"id"`
	// Rev counts the commits of the record: 0 for one that is new.
	Rev    int64            `json:"-"`
	Config Config           `json:"config"`
	Record lifecycle.Record `json:"record"`
	// ActiveAt is when it was active last, as far as that is stored.
	ActiveAt time.Time `json:"activeAt,omitzero"`
	// RequestedAt is the same of requests, streams and leases alone.
	RequestedAt time.Time `json:"requestedAt,omitzero"`
	// Light says that it is paused and that its frozen runtime stands by, so that a
	// wake only thaws it. The running server knows that; no store does.
	Light bool `json:"-"`
	// Durability is where its checkpoint is, as far as that is known; no record has it.
	// Unreplicated says why the last try to copy it has failed; empty for no failure.
	Durability   Durability `json:"-"`
	Unreplicated string     `json:"-"`
	// Owner is the server that has it, as of [Owners].
	Owner string `json:"-"`
}

// Config is what a sandbox was asked to be, apart from its lifecycle.
type Config struct {
	Template      string            `json:"template"` // resolved template id
	Alias         string            `json:"alias,omitempty"`
	Built         Built             `json:"built,omitzero"`  // the template that was built over that one, if it started from one
	Image         string            `json:"image,omitempty"` // the digest that pins the image of the template; empty for the host's system
	Key           string            `json:"key,omitempty"`   // the id of the API key that has made it; empty where that is not known
	Name          string            `json:"name,omitempty"`  // chosen by its creator, unique among the sandboxes of Key that have not ended; empty for none
	Metadata      map[string]string `json:"metadata,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
	Secure        bool              `json:"secure"`                  // the agent refuses requests without the sandbox's token
	PrivatePorts  bool              `json:"privatePorts,omitempty"`  // user ports need the traffic token
	HostMask      string            `json:"hostMask,omitempty"`      // the Host that servers on user ports see; ${PORT} stands for theirs
	HTTPSPorts    []int             `json:"httpsPorts,omitempty"`    // user ports whose servers speak TLS
	AllowInternet *bool             `json:"allowInternet,omitempty"` // as asked; nil when not said, which allows it
	AllowOut      []string          `json:"allowOut,omitempty"`      // addresses, networks and names that it may reach all the same
	DenyOut       []string          `json:"denyOut,omitempty"`       // addresses and networks that it may not reach
	Proxy         *Proxy            `json:"proxy,omitempty"`         // through which its connections go out; nil for none
	Network       json.RawMessage   `json:"network,omitempty"`       // what else was asked of the network, returned as it was
	Limits        Limits            `json:"limits"`
	Ports         Ports             `json:"ports,omitempty"`
	Hooks         Hooks             `json:"hooks"`
	User          string            `json:"user,omitempty"`     // as whom commands run that do not say; empty for the template's own
	Workdir       string            `json:"workdir,omitempty"`  // where they run; empty for the template's own
	Build         string            `json:"build,omitempty"`    // the build of a template that the sandbox is for; empty for none
	Previews      []Preview         `json:"previews,omitempty"` // links that are good, and some that have expired
	Volumes       []VolumeMount     `json:"volumes,omitempty"`
	Secrets       []SecretUse       `json:"secrets,omitempty"`
	Authority     string            `json:"authority,omitempty"` // names the certificate authority that its trust stores know; empty for none
	Services      []service.Service `json:"services,omitempty"`
	// Entrances narrow which requests from outside reach a port.
	Entrances []service.Entrance `json:"entrances,omitempty"`
	// Lineage is what it started from, and what that was of, nearest first.
	Lineage []Ancestor `json:"lineage,omitempty"`
	// FromServer names the settings of the lifecycle that the server's defaults
	// gave, and nobody else.
	FromServer []string `json:"fromServer,omitempty"`
	// Idempotency binds the sandbox to the create that made it; nil where that had
	// no idempotency key.
	Idempotency *Idempotency `json:"idempotency,omitempty"`
	// Before is what a resume under way has changed, as it was before; nil if it
	// changed nothing, and when it has ended.
	Before *Changeable `json:"before,omitempty"`
}

// Built is a template that was built of steps: its files are those of a snapshot.
type Built struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"` // by which the sandbox's API key calls it; empty for that of another key
}

// TemplateID returns the id of the template that the sandbox was created from. That of
// the files below its own is Template.
func (c Config) TemplateID() string { return cmp.Or(c.Built.ID, c.Template) }

// TemplateName returns what that template is called; empty for nothing.
func (c Config) TemplateName() string {
	if c.Built.ID != "" {
		return c.Built.Name
	}
	return c.Alias
}

// IsOf reports whether the sandbox was created from the template of this id or name.
func (c Config) IsOf(template string) bool {
	return template == c.TemplateID() || template != "" && template == c.TemplateName()
}

// Ancestor is a moment of a sandbox, which another goes on from.
type Ancestor struct {
	Sandbox    string    `json:"sandbox"`
	Generation int64     `json:"generation"`
	At         time.Time `json:"at"`
	Snapshot   string    `json:"snapshot,omitempty"` // empty for a fork
	Name       string    `json:"name,omitempty"`     // of the snapshot, at that time
}

// Changeable is what can be changed of a Config together with settings of the
// lifecycle.
type Changeable struct {
	Metadata      map[string]string `json:"metadata,omitempty"`
	Ports         Ports             `json:"ports,omitempty"`
	AllowInternet *bool             `json:"allowInternet,omitempty"`
	AllowOut      []string          `json:"allowOut,omitempty"`
	DenyOut       []string          `json:"denyOut,omitempty"`
	FromServer    []string          `json:"fromServer,omitempty"`
	Services      []service.Service `json:"services,omitempty"`

	Entrances []service.Entrance `json:"entrances,omitempty"`
	Proxy     *Proxy             `json:"proxy,omitempty"` // without an address: none
}

// Changeable returns what can be changed.
func (c Config) Changeable() Changeable {
	return Changeable{c.Metadata, c.Ports, c.AllowInternet, c.AllowOut, c.DenyOut, c.FromServer, c.Services, c.Entrances, c.Proxy}
}

// Changed returns c with those of the values that are not nil.
func (c Config) Changed(v Changeable) Config {
	if v.Metadata != nil {
		c.Metadata = v.Metadata
	}
	if v.Ports != nil {
		c.Ports = v.Ports
	}
	if v.AllowInternet != nil {
		c.AllowInternet = v.AllowInternet
	}
	if v.AllowOut != nil {
		c.AllowOut = v.AllowOut
	}
	if v.DenyOut != nil {
		c.DenyOut = v.DenyOut
	}
	if v.FromServer != nil {
		c.FromServer = v.FromServer
	}
	if v.Services != nil {
		c.Services = v.Services
	}
	if v.Entrances != nil {
		c.Entrances = v.Entrances
	}
	if v.Proxy != nil {
		c.Proxy = v.Proxy
		if c.Proxy.Address == "" {
			c.Proxy = nil
		}
	}
	return c
}

// Settled returns what a sandbox with the record is, when a resume may have ended:
// one that failed has changed nothing.
func (c Config) Settled(now lifecycle.Record) Config {
	if c.Before == nil || now.Phase() == lifecycle.Resuming {
		return c
	}
	if now.State == lifecycle.Paused {
		c = c.With(*c.Before)
	}
	c.Before = nil
	return c
}

// With returns c with other values of what can be changed.
func (c Config) With(v Changeable) Config {
	c.Metadata, c.Ports, c.AllowInternet, c.AllowOut, c.DenyOut, c.FromServer = v.Metadata, v.Ports, v.AllowInternet, v.AllowOut, v.DenyOut, v.FromServer
	c.Services, c.Entrances, c.Proxy = v.Services, v.Entrances, v.Proxy
	return c
}

// Idempotency is by what a second create is known as the same.
type Idempotency struct {
	Key     string `json:"key"`     // as the client has chosen it
	Request string `json:"request"` // a digest of what was asked for
	// At is when it was asked for; zero in older records, for when the sandbox was created.
	At time.Time `json:"at,omitzero"`
}

// Hooks are commands run inside, as root by a shell, at points of the
// lifecycle. They get a bounded time; their failure is logged and stops
// nothing.
type Hooks struct {
	PrePause   Hook `json:"prePause,omitzero"`
	PostResume Hook `json:"postResume,omitzero"`
	PreKill    Hook `json:"preKill,omitzero"`
}

// Hook is one command; an empty one does nothing.
type Hook struct {
	Command string        `json:"command"`
	Budget  time.Duration `json:"budget"` // it is killed after this
}

// Limits bound what a sandbox may use. In a request zero says nothing.
type Limits struct {
	CPUs      float64 `json:"cpus"`      // to the hundredth
	MemoryMiB int     `json:"memoryMiB"` // guest memory
	DiskMiB   int     `json:"diskMiB"`   // what its own layers may hold; 0 for no limit
	PIDs      int     `json:"pids"`      // host tasks; a guest process takes two
}

// VCPUs returns the CPUs for clients that know whole ones alone: not fewer than there
// are.
func (l Limits) VCPUs() int { return int(math.Ceil(l.CPUs)) }

// Event is an entry of the event log as stored.
type Event struct {
	Seq     int64  `json:"seq"` // strictly increasing over all sandboxes
	Sandbox string `json:"sandbox"`
	Key     string `json:"key"` // that of the sandbox
	lifecycle.Entry
}

// Webhook is a receiver of events, and how far it has got in the event log.
type Webhook struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	URL       string    `json:"url"`
	Events    []string  `json:"events"` // the types that it gets
	Enabled   bool      `json:"enabled"`
	Secret    string    `json:"-"` // what deliveries are signed with
	CreatedAt time.Time `json:"createdAt"`
	Cursor    int64     `json:"cursor"`    // Seq of the last event that it has got, or does not want
	Delivered int64     `json:"delivered"` // how many it has got
	Dropped   int64     `json:"dropped"`   // how many were given up
	// Moves is how often Cursor was set otherwise than by deliveries, and Changes how often
	// anything was.
	Moves   int64 `json:"moves,omitempty"`
	Changes int64 `json:"changes,omitempty"`
}

// Store is the durable state of one server, or of several. All methods are safe for
// concurrent use. Lookups of what is not there return an errdef.NotFound.
type Store interface {
	Sandboxes
	Events
	Keys
	SSHKeys
	UsedSecrets
	Volumes
	Snapshots
	BuiltTemplates
	SettingsOfTemplates
	CodeContexts
	Webhooks
	Secrets
	Leases
	Owners
	Offices
	Replicas
	// Close flushes and releases the store.
	Close() error
}

// Sandboxes is the records of sandboxes.
type Sandboxes interface {
	// Commit makes sb's record and the log entries durable in one transaction, and the
	// record then has the next revision. Nothing happens, and [Refused] tells it from a
	// store that cannot write, where the record has not the revision that sb has
	// (errdef.Conflict), where a new one has an id, or a name of its API key, that
	// another has (errdef.Exists), or an idempotency key that has made another in the
	// last day (errdef.Conflict), where the key would use more than it may
	// (errdef.Exhausted), and where the sandbox would go on from a snapshot that is not
	// there any more (errdef.NotFound). A sandbox gives up its name when it has ended, and
	// its idempotency key when it never came up.
	Commit(ctx context.Context, sb Sandbox, entries []lifecycle.Entry) error
	// CommitEnd is Commit of a sandbox of which nothing but the tombstone is left. Where
	// its API key has more than MostTombstones, or MostTombstoneBytes, on this server, the
	// oldest of these are forgotten in the same transaction, whose ids are returned.
	CommitEnd(ctx context.Context, sb Sandbox, entries []lifecycle.Entry) (forgotten []string, err error)
	// Sandboxes returns every record, terminated ones included.
	Sandboxes(ctx context.Context) ([]Sandbox, error)
	// Forget deletes the record of a terminated sandbox and its log entries.
	Forget(ctx context.Context, id string) error
}

// Events is the event log.
type Events interface {
	// Events returns up to limit entries with Seq > after, oldest first, of
	// one sandbox or, with an empty id, of all.
	Events(ctx context.Context, sandbox string, after int64, limit int) ([]Event, error)
	// EventsOfKey returns up to limit entries with Seq > after, oldest first, of
	// all sandboxes that an API key has made.
	EventsOfKey(ctx context.Context, key string, after int64, limit int) ([]Event, error)
	// EventsBefore returns up to limit entries with Seq < before, newest first,
	// of one sandbox or, with an empty id, of all.
	EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]Event, error)
	// LastEvents returns the last n entries of one sandbox or, with an empty
	// id, of all, newest first.
	LastEvents(ctx context.Context, sandbox string, n int) ([]Event, error)
}

// Keys is the API keys.
type Keys interface {
	// AddKey stores a key; errdef.Exists if its hash, id or name is known.
	AddKey(ctx context.Context, k Key) error
	// Keys returns all keys, oldest first.
	Keys(ctx context.Context) ([]Key, error)
	// UpdateKey changes the key of an id as it is stored, and returns it as it is then.
	// errdef.NotFound if there is no such key, errdef.Exists if another has the name or
	// the hash.
	UpdateKey(ctx context.Context, id string, c KeyChange) (Key, error)
	// KeysUsed notes when keys were last used, by their ids, unless a later use is noted.
	// Unknown ones are passed over: they may have just been removed.
	KeysUsed(ctx context.Context, at map[string]time.Time) error
	// RemoveKey removes a key, with its SSH keys, secrets and what it said of
	// templates; errdef.NotFound if there is none of that id, and [ErrLastAdmin] if it is
	// the last one that lasts.
	RemoveKey(ctx context.Context, id string) error
}

// SSHKeys is the public keys of SSH clients.
type SSHKeys interface {
	// AddSSHKey stores a key; errdef.Exists if its API key has it, or its id is
	// known, errdef.NotFound if there is no such API key, and errdef.Exhausted if it has
	// [MostSSHKeys].
	AddSSHKey(ctx context.Context, k SSHKey) error
	// SSHKeys returns all of them, oldest first.
	SSHKeys(ctx context.Context) ([]SSHKey, error)
	// RemoveSSHKey removes one; errdef.NotFound if there is none of that id.
	RemoveSSHKey(ctx context.Context, id string) error
}

// UsedSecrets is the secrets that sandboxes use.
type UsedSecrets interface {
	// PutSecret stores a new secret; errdef.Exists if its API key has one of its name,
	// or its id is known, errdef.NotFound if there is no such API key, and errdef.Exhausted if
	// it has [MostSecrets].
	PutSecret(ctx context.Context, x Secret) error
	// ChangeSecret changes the value and the rule of a secret as it is stored by then,
	// whoever has changed it last, and returns what it has become. An error of change, which
	// may be called again, is returned, and nothing has changed; errdef.NotFound if there is
	// none of that id. Change asks no store.
	ChangeSecret(ctx context.Context, id string, change func(*Secret) error) (Secret, error)
	// AllSecrets returns all of them, oldest first.
	AllSecrets(ctx context.Context) ([]Secret, error)
	// RemoveSecret removes one; errdef.NotFound if there is none of that id.
	RemoveSecret(ctx context.Context, id string) error
}

// Volumes is the volumes.
type Volumes interface {
	// AddVolume stores a volume; errdef.Exists if its name or id is known.
	AddVolume(ctx context.Context, v Volume) error
	// Volumes returns all volumes, oldest first.
	Volumes(ctx context.Context) ([]Volume, error)
	// RemoveVolume deletes a volume. Whether it is in use is for others to know.
	RemoveVolume(ctx context.Context, id string) error
}

// Webhooks is where events are delivered.
type Webhooks interface {
	// PutWebhook makes a webhook durable: a new one, or in the place of the one
	// with its id. It is errdef.Exhausted if there are [MostWebhooks] others.
	PutWebhook(ctx context.Context, w Webhook) error
	// ChangeWebhook changes a webhook as it is stored by then, whoever has changed it last,
	// and returns what it has become. An error of change, which may be called again, is
	// returned, and nothing has changed; errdef.NotFound if there is none of that id.
	ChangeWebhook(ctx context.Context, id string, change func(*Webhook) error) (Webhook, error)
	// Webhooks returns all webhooks, oldest first.
	Webhooks(ctx context.Context) ([]Webhook, error)
	// DeleteWebhook removes one.
	DeleteWebhook(ctx context.Context, id string) error
}

// Secrets is what the server signs with.
type Secrets interface {
	// Secret returns the random secret of the given name, 32 bytes, made on
	// first use and the same ever after.
	Secret(ctx context.Context, name string) ([]byte, error)
}
