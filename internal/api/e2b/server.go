package e2b

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
	"github.com/drowse-dev/drowse/internal/webhook"
)

// Sandboxes is what the dialect needs of the supervisor. Errors that a client
// should understand are *errdef.Error; a sandbox that is unknown or terminated
// is an errdef.NotFound everywhere.
type Sandboxes interface {
	Lifecycle
	Lookups
	Settings
	Telemetry
	EventLog
	Tokens
}

// Lifecycle makes sandboxes and puts them to sleep and to an end.
type Lifecycle interface {
	// Create returns when the sandbox serves. A template that does not exist is
	// an errdef.NotFound with code "template_not_found".
	Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error)
	// Pause returns when the pause is committed; errdef.Conflict with code
	// "already_paused" if there is nothing to do.
	Pause(ctx context.Context, id string, q supervisor.PauseRequest) error
	// Connect extends a running sandbox or resumes a paused one.
	Connect(ctx context.Context, id string, q supervisor.WakeRequest) (supervisor.Connected, error)
	// Resume is an errdef.Conflict with code "already_running" on one that runs.
	Resume(ctx context.Context, id string, q supervisor.WakeRequest) (store.Sandbox, error)
	Kill(ctx context.Context, id, actor string) error
}

// Lookups finds sandboxes.
type Lookups interface {
	Get(ctx context.Context, id string) (store.Sandbox, error)
	// Find also returns one that has ended.
	Find(ctx context.Context, id string) (store.Sandbox, error)
	// Page returns a page of a list of all sandboxes, ended ones included.
	Page(ctx context.Context, q store.Selection) (store.Page, error)
}

// Settings changes sandboxes as they are.
type Settings interface {
	// SetTimeout makes endAt now + d. On a sandbox that does not run it is an
	// errdef.WrongState with code "not_running", as is Refresh.
	SetTimeout(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error)
	// Refresh makes endAt the later of what it is and now + d.
	Refresh(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error)
	// Patch changes what a sandbox is, running or paused.
	Patch(ctx context.Context, id string, p supervisor.Patch, actor string) (store.Sandbox, error)
}

// Telemetry is what sandboxes used, and what they logged.
type Telemetry interface {
	// Samples returns what a sandbox used in a time, oldest first; it is not
	// woken for that. Zero times bound nothing.
	Samples(ctx context.Context, id string, from, to time.Time) ([]usage.Sample, error)
	// LastSample returns the last of them; false if there is none.
	LastSample(id string) (usage.Sample, bool)
	// Fleet returns how many sandboxes ran in a time, oldest first.
	Fleet(ctx context.Context, from, to time.Time) []usage.FleetSample
	// KeyUse returns what the sandboxes that an API key has made take together.
	KeyUse(key string) store.Use
	// SandboxLog returns the log of a sandbox, oldest first; it is not woken for
	// that.
	SandboxLog(ctx context.Context, id string) ([]journal.Line, error)
}

// EventLog is what has happened to sandboxes.
type EventLog interface {
	// Events returns up to limit entries of the event log with Seq > after, oldest
	// first, of one sandbox or, with an empty id, of all.
	Events(ctx context.Context, sandbox string, after int64, limit int) ([]store.Event, error)
	// EventsBefore returns those with Seq < before, newest first.
	EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]store.Event, error)
}

// Tokens are what clients are given to reach a sandbox.
type Tokens interface {
	// EnvdToken and TrafficToken return the tokens of a sandbox, the same for
	// all its life.
	EnvdToken(id string) string
	TrafficToken(id string) string
}

// Webhooks is what the dialect needs of the sender of webhooks. One that is
// unknown is an errdef.NotFound everywhere.
type Webhooks interface {
	Create(ctx context.Context, w store.Webhook) (store.Webhook, error)
	List() []store.Webhook
	Get(id string) (store.Webhook, error)
	Change(ctx context.Context, id string, change func(*store.Webhook)) (store.Webhook, error)
	Delete(ctx context.Context, id string) error
	// Deliveries returns the last attempts, newest first.
	Deliveries(ctx context.Context, id string) ([]webhook.Attempt, error)
	Stats(ctx context.Context, id string) (webhook.Stats, error)
}

// What applies where Options say nothing.
const (
	DefaultEnvdVersion = "0.6.13"
)

// Options are what a handler is made of.
type Options struct {
	Sandboxes Sandboxes         // required
	Volumes   dialect.Volumes   // required
	Webhooks  Webhooks          // required
	Templates dialect.Templates // required
	Snapshots Snapshots         // required
	Builds    Builds            // required
	// Sign returns the proof that this server has given something out for a purpose.
	Sign func(purpose, text string) string // required
	Auth Authenticator                     // required
	Keys Keys                              // required
	// MaxTimeout is the longest timeout that Sandboxes grants, to tell clients of.
	// Zero means that there is no bound.
	MaxTimeout time.Duration
	// DefaultTimeout is that of sandboxes that are created or woken without one,
	// supervisor.Unlimited for none. Zero means what E2B gives: 15 s in the first
	// version of a call, 300 s in the second.
	DefaultTimeout time.Duration
	// Domain is the wildcard domain, with the port if it is an unusual one, under
	// which sandboxes are reached by host name; empty for none. LocalDomain is the
	// one that reaches this server from its own machine, for when there is none.
	Domain, LocalDomain string
	// EnvdVersion is the version of envd that the agent in the sandboxes
	// implements; SDKs choose features by it. Empty means DefaultEnvdVersion.
	EnvdVersion string
	// Log receives failures of the server, not of clients, and which keys are
	// made and revoked. Nil discards.
	Log *slog.Logger
}

// server is the handler.
type server struct {
	Options
	router  httpapi.Router[route]
	origins origin.Origins // what sandboxes start from
}

// New returns the handler of the whole control plane.
func New(o Options) http.Handler {
	if o.EnvdVersion == "" {
		o.EnvdVersion = DefaultEnvdVersion
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &server{Options: o, router: newRouter(), origins: origin.Origins{Templates: o.Templates, Snapshots: o.Snapshots, Builds: o.Builds}}
}

// call is one request on its way through a handler.
type call struct {
	w       http.ResponseWriter // to bound the body with; handlers return their reply
	r       *http.Request
	route   *route
	params  map[string]string // of the path
	sandbox string            // the sandbox that the path names, if it names one
	key     store.Key         // whose call it is; none of an open route
	actor   string            // who asks, for the record
	query   url.Values
	words   map[string]body.Said
	sent    []byte       // the body, of which words are what it says
	log     *slog.Logger // says which route and sandbox
}

// reply is the answer to a call that succeeded.
type reply = dialect.Reply

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{w: w, r: r, log: s.Log}
	dialect.Serve(w, r, func() (reply, error) { return s.dispatch(c) }, c.failed)
}

// dispatch finds the route, then asks who calls, then what for.
func (s *server) dispatch(c *call) (_ reply, err error) {
	path := c.r.URL.EscapedPath()
	if c.route, c.params, err = dialect.Route(s.router, c.r.Method, path, unknownPath(path)); err != nil {
		return reply{}, err
	}
	c.log = c.log.With("method", c.route.method, "route", c.route.pattern)
	if c.route.needs != nothing {
		if c.key, c.actor, err = dialect.Admit(s.Auth, c.r, c.route.needs); err != nil {
			return reply{}, err
		}
	}
	if raw, ok := c.params[sandboxParam]; ok {
		if err := s.names(c, raw); err != nil {
			return reply{}, err
		}
	}
	if err := c.read(); err != nil {
		if c.sandbox != "" {
			err = s.ifKnown(c, err)
		}
		return reply{}, err
	}
	rep, err := c.route.handle(s, c)
	rep.Holder = c.key.ID
	return rep, err
}

// read reads the query, and the body by what the table says of the route.
func (c *call) read() (err error) {
	if c.query, err = url.ParseQuery(c.r.URL.RawQuery); err != nil {
		return badRequest("the query string is malformed: escape each %% as %%25, and use & between parameters")
	}
	c.words, c.sent, err = c.route.reads.Read(c.w, c.r, c.key.ID)
	return err
}

// names takes down which sandbox the call is about.
func (s *server) names(c *call, raw string) (err error) {
	if c.sandbox, err = parseSandboxID(raw); err != nil {
		return err
	}
	c.log = c.log.With("sandbox", c.sandbox)
	return dialect.Seen(c.r.Context(), s.Sandboxes, c.key, c.sandbox)
}
