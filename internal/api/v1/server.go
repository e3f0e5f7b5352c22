package v1

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/sandboxid"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
	"github.com/drowse-dev/drowse/internal/supervisor/events"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
)

// Sandboxes is what the dialect needs of the supervisor. Errors that a client
// should understand are *errdef.Error. A sandbox that is unknown is an
// errdef.NotFound with code "sandbox_not_found" everywhere; one that has
// ended is found by Find, Explain and Events, and is [lifecycle.Ended] for all
// that would change it.
type Sandboxes interface {
	Lifecycle
	Settings
	Previews
	Explanations
	EventLog
	Moves
	Accounts
}

// Lifecycle makes sandboxes, finds them, and puts them to sleep and to an end.
type Lifecycle interface {
	// Create returns when the sandbox serves.
	Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error)
	Find(ctx context.Context, id string) (store.Sandbox, error)
	// Page returns a page of a list of all sandboxes, ended ones included.
	Page(ctx context.Context, q store.Selection) (store.Page, error)
	// Pause returns when the pause is committed; errdef.Conflict with code
	// "already_paused" if there is nothing to do.
	Pause(ctx context.Context, id string, q supervisor.PauseRequest) error
	// Connect extends a running sandbox or resumes a paused one; 0 resumes it
	// without a soft timeout and changes nothing of one that runs.
	Connect(ctx context.Context, id string, q supervisor.WakeRequest) (supervisor.Connected, error)
	Kill(ctx context.Context, id, actor string) error
}

// Settings changes sandboxes as they are.
type Settings interface {
	// SetTimeout makes endAt now + d.
	SetTimeout(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error)
	Patch(ctx context.Context, id string, p supervisor.Patch, actor string) (store.Sandbox, error)
	// Hold opens a lease, or prolongs the one of the same id; without an id it
	// makes one.
	Hold(ctx context.Context, id string, l lifecycle.Lease, actor string) (lifecycle.Lease, error)
	ReleaseHold(ctx context.Context, id, holdID, actor string) error
}

// Previews makes links to ports of sandboxes.
type Previews interface {
	// CreatePreview makes a link to a port and returns its token, which is
	// nowhere else.
	CreatePreview(ctx context.Context, id string, req preview.Request) (store.Preview, string, error)
	// Previews returns the links that are good, oldest first; none of a sandbox
	// that has ended.
	Previews(ctx context.Context, id string) ([]store.Preview, error)
	RevokePreview(ctx context.Context, id, link, actor string) error
}

// Explanations says why sandboxes are as they are.
type Explanations interface {
	Explain(ctx context.Context, id string) (supervisor.Explanation, error)
	// Outlooks is Explain without the transitions, for as many as there are of
	// the ids. After ctx has ended it tells what is known without asking inside.
	Outlooks(ctx context.Context, ids []string) map[string]supervisor.Explanation
}

// EventLog is what has happened to sandboxes.
type EventLog interface {
	// EventsAfter returns up to limit events with Seq > after, oldest first.
	EventsAfter(ctx context.Context, of events.Scope, after int64, limit int) (events.Page, error)
	// EventsBefore returns those of a sandbox with Seq < before, newest first.
	EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]store.Event, error)
	// LastEvent returns the Seq of the last event of all sandboxes; 0 before the
	// first.
	LastEvent(ctx context.Context) (int64, error)
	// Changed returns a channel that is closed at the next commit of any
	// sandbox.
	Changed() <-chan struct{}
}

// Moves takes sandboxes out of a server and in again.
type Moves interface {
	// Export returns what reads a paused sandbox; errdef.WrongState with code
	// "not_paused" of one that runs.
	Export(ctx context.Context, id string) (*supervisor.Export, error)
	// Import returns when the sandbox is committed as paused.
	Import(ctx context.Context, r io.Reader, req supervisor.ImportRequest) (store.Sandbox, error)
}

// Accounts tells what API keys use, and the tokens of sandboxes.
type Accounts interface {
	// KeyUse returns what the sandboxes that an API key has made take together.
	KeyUse(key string) store.Use
	// KeyCosts returns what the API keys that have sandboxes, or had some since the
	// server's start, cost it.
	KeyCosts() map[string]cost.Cost
	// EnvdToken and TrafficToken return the tokens of a sandbox, the same for
	// all its life.
	EnvdToken(id string) string
	TrafficToken(id string) string
}

// Keys makes, changes and revokes API keys, as [auth.Keys] does.
type Keys interface {
	// Create returns the key and its text, which is nowhere else.
	Create(ctx context.Context, req auth.Request) (store.Key, string, error)
	// List returns all keys, oldest first.
	List() []store.Key
	Change(ctx context.Context, id string, c auth.Change) (store.Key, error)
	// Rotate returns the key and its new text: the one given, or one that is made.
	Rotate(ctx context.Context, id, text string) (store.Key, string, error)
	Revoke(ctx context.Context, id string) error
}

// SSHKeys are the keys of SSH clients, as [auth.SSHKeys] has them.
type SSHKeys interface {
	// Add lets in who has a key, as the API key of the id key.
	Add(ctx context.Context, key, name, public string) (store.SSHKey, error)
	// Of returns those of an API key, oldest first.
	Of(key string) []store.SSHKey
	// Remove removes one of an API key.
	Remove(ctx context.Context, key, id string) error
}

// DefaultKeepAlive applies where Options say nothing.
const DefaultKeepAlive = 15 * time.Second

// Options are what a handler is made of.
type Options struct {
	Sandboxes Sandboxes             // required
	Volumes   dialect.Volumes       // required
	Templates Templates             // required
	Snapshots Snapshots             // required
	Builds    Builds                // required
	Auth      dialect.Authenticator // required
	Keys      Keys                  // required
	SSHKeys   SSHKeys               // required
	Secrets   Secrets               // required
	Services  Services              // required
	Diaries   Diaries               // required
	Traces    Traces                // required
	Publisher Publisher             // required
	Audit     Audit                 // required
	Doctor    Doctor                // required
	Servers   Servers               // required
	Mover     Mover                 // nil for a server that has its records by itself
	// Domain is the wildcard domain, with the port if it is an unusual one,
	// under which sandboxes are reached by host name. Empty means that there is
	// none, and preview links go by path.
	Domain string
	// Isolation is what every sandbox says it is isolated by: what its driver
	// says.
	Isolation string
	// Room is shared with all other doors of the server. Nil is for one that has no
	// others.
	Room *held.Room
	// KeepAlive is how long a stream of events is silent at most. Zero means
	// DefaultKeepAlive.
	KeepAlive time.Duration
	// Log receives failures of the server, not of clients, and which keys are
	// made and revoked. Nil discards.
	Log *slog.Logger
}

// server is the handler.
type server struct {
	Options
	router   httpapi.Router[route]
	origins  origin.Origins // what sandboxes start from
	document func() []byte  // of the API
	texts    eventTexts
}

// New returns the handler of everything under /v1.
func New(o Options) http.Handler {
	if o.KeepAlive == 0 {
		o.KeepAlive = DefaultKeepAlive
	}
	if o.Room == nil {
		o.Room = held.New()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &server{Options: o, router: newRouter(), origins: origin.Origins{Templates: o.Templates, Snapshots: o.Snapshots, Builds: o.Builds}, document: sync.OnceValue(OpenAPI)}
}

// Owns reports whether a request is of this dialect, by its path alone.
func Owns(r *http.Request) bool {
	path := r.URL.EscapedPath()
	return path == "/v1" || strings.HasPrefix(path, "/v1/")
}

// call is one request on its way through a handler.
type call struct {
	w       http.ResponseWriter // to bound the body with; handlers return their reply
	r       *http.Request
	route   *route
	params  map[string]string
	sandbox string    // the sandbox that the path or the body names
	key     store.Key // whose call it is; none of an open route
	actor   string    // who asks, for the record
	words   map[string]body.Said
	sent    []byte       // the body, of which words are what it says
	log     *slog.Logger // says which route and sandbox
}

// reply is the answer to a call that succeeded.
type reply = dialect.Reply

func ok(body any) (reply, error) { return reply{Status: http.StatusOK, Body: body}, nil }

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{w: w, r: r, log: s.Log}
	dialect.Serve(w, r, func() (reply, error) { return s.dispatch(c) }, func(err error) httpapi.Response { return s.failed(c, err) })
}

// dispatch finds the route, then asks who calls, then what for.
func (s *server) dispatch(c *call) (_ reply, err error) {
	unknown := errdef.New(errdef.NotFound, "unknown_path", "this path is not part of the API").
		WithRemedy("/v1/openapi.json lists what is")
	if c.route, c.params, err = dialect.Route(s.router, c.r.Method, c.r.URL.EscapedPath(), unknown); err != nil {
		return reply{}, err
	}
	c.log = c.log.With("method", c.route.method, "route", c.route.pattern)
	if c.route.access != open {
		if c.key, c.actor, err = dialect.Admit(s.Auth, c.r, auth.Permission(c.route.access)); err != nil {
			return reply{}, err
		}
	}
	if id, named := c.params[sandboxParam]; named {
		if err := s.names(c, id); err != nil {
			return reply{}, err
		}
	}
	if c.words, c.sent, err = c.route.reads().Strict().Read(c.w, c.r, c.key.ID); err != nil {
		if c.sandbox != "" {
			err = s.ifKnown(c, err)
		}
		return reply{}, err
	}
	if id, named := c.words[sandboxOption.Name]; named {
		if err := s.names(c, fmt.Sprint(id.Value)); err != nil {
			return reply{}, err
		}
	}
	rep, err := c.route.handle(s, c)
	rep.Holder = c.key.ID
	return rep, err
}

// names takes down which sandbox the call is about.
func (s *server) names(c *call, id string) error {
	if !sandboxid.Possible(id) {
		return errdef.New(errdef.NotFound, "sandbox_not_found", "sandbox %q does not exist", body.Short(id)).
			WithRemedy("GET /v1/sandboxes lists those that do")
	}
	c.sandbox, c.log = id, c.log.With("sandbox", id)
	return dialect.Seen(c.r.Context(), s.Sandboxes, c.key, id)
}
