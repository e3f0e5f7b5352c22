package sandbox0

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/ration"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Sandboxes is what the dialect needs of the supervisor. Errors that a client
// should understand are *errdef.Error.
type Sandboxes interface {
	guest.Sandboxes
	Lifecycle
	Settings
}

// Lifecycle makes sandboxes, finds them, and puts them to sleep and to an end.
type Lifecycle interface {
	// Create returns when the sandbox serves.
	Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error)
	// Find also returns sandboxes that have ended.
	Find(ctx context.Context, id string) (store.Sandbox, error)
	// Page returns a page of a list of all sandboxes, ended ones included.
	Page(ctx context.Context, q store.Selection) (store.Page, error)
	// Pause returns when the pause is committed; errdef.Conflict with code
	// "already_paused" if there is nothing to do.
	Pause(ctx context.Context, id string, q supervisor.PauseRequest) error
	// Connect extends a running sandbox or resumes a paused one.
	Connect(ctx context.Context, id string, q supervisor.WakeRequest) (supervisor.Connected, error)
	Kill(ctx context.Context, id, actor string) error
}

// Settings changes sandboxes as they are.
type Settings interface {
	// SetTimeout makes endAt now + d.
	SetTimeout(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error)
	Patch(ctx context.Context, id string, p supervisor.Patch, actor string) (store.Sandbox, error)
}

// Options are what a handler is made of. All but Log, Domain, SSHListen and
// MaxTimeout are required.
type Options struct {
	Sandboxes  Sandboxes
	Templates  dialect.Templates
	Snapshots  Snapshots
	Builds     origin.Builds
	Volumes    dialect.Volumes
	Services   Services
	Contexts   store.CodeContexts
	Domain     string // below which sandboxes have names; may be empty
	SSHListen  string // where SSH clients are served; empty for nowhere
	Auth       dialect.Authenticator
	Room       *held.Room    // where what waits and what is kept counts; nil for one of its own
	MaxTimeout time.Duration // the ttl of sandboxes that are claimed without one; 0 for no limit
	// Log receives failures of the server, not of clients. Nil discards.
	Log *slog.Logger
}

// server is the handler.
type server struct {
	Options
	router   httpapi.Router[route]
	origins  origin.Origins // what sandboxes start from
	contexts *contexts
	listings *ration.Ration // of directories, under way
}

// New returns the handler of everything that Owns names. What outlives a request
// ends with ctx: the reading of what commands print, not the commands.
func New(ctx context.Context, o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Room == nil {
		o.Room = held.New()
	}
	return &server{Options: o, router: newRouter(), origins: origin.Origins{Templates: o.Templates, Snapshots: o.Snapshots, Builds: o.Builds}, contexts: newContexts(ctx, o), listings: ration.New(maxListings)}
}

// generation is what differs between the clients of 0.9 and of 0.10.
type generation struct {
	prefix  string // of the path
	deleted int    // the one status by which a client knows that a sandbox is deleted
	zero    bool   // "no deadline" is the zero time: null ends the client
}

// generations are the prefixes by which a client's base URL chooses. The first
// serves the newest release of each registry, and npm 0.9.
var generations = []generation{
	{prefix: "", deleted: http.StatusAccepted},
	{prefix: "/sandbox0/0.10", deleted: http.StatusAccepted},
	{prefix: "/sandbox0/0.9", deleted: http.StatusOK, zero: true},
}

// base begins every path of the dialect, after the generation's prefix.
const base = "/api/v1"

// split returns the generation of a path and the rest of it.
func split(path string) (generation, string, bool) {
	for _, g := range generations {
		if rest, ok := strings.CutPrefix(path, g.prefix); ok && (rest == base || strings.HasPrefix(rest, base+"/")) {
			return g, rest, true
		}
	}
	return generation{}, "", false
}

// Owns reports whether a request is of this dialect, by its path alone.
func Owns(r *http.Request) bool {
	_, _, ok := split(r.URL.EscapedPath())
	return ok
}

// call is one request on its way through a handler.
type call struct {
	w       http.ResponseWriter // to bound the body with; handlers return their reply
	r       *http.Request
	gen     generation
	route   *route
	params  map[string]string
	sandbox string // the sandbox that the path names
	key     store.Key
	actor   string
	words   words        // what the body says
	log     *slog.Logger // says which route and sandbox
	waiting *held.Share  // for what the call holds until it is answered; free it
}

// reply is the answer to a call that succeeded: its body goes into the envelope.
type reply = dialect.Reply

func ok(data any) (reply, error) { return reply{Status: http.StatusOK, Body: data}, nil }

// done says that something was done, by the name that clients look for.
func done(name string) (reply, error) { return ok(map[string]bool{name: true}) }

// envelope is the body of every answer that is JSON.
type envelope struct {
	Success bool    `json:"success"`
	Data    any     `json:"data,omitempty"`
	Error   *detail `json:"error,omitempty"`
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{w: w, r: r, log: s.Log}
	defer func() {
		if c.waiting != nil {
			c.waiting.Free()
		}
	}()
	dialect.Serve(w, r, func() (reply, error) { return s.dispatch(c) }, c.failed)
}

// dispatch finds the route, then asks who calls, then what for.
func (s *server) dispatch(c *call) (_ reply, err error) {
	gen, path, _ := split(c.r.URL.EscapedPath())
	c.gen = gen
	unknown := fail(http.StatusNotImplemented, codeNotSupported, "%s %s is not part of sandbox0's API as this server has it", body.Short(c.r.Method), body.Short(path))
	if c.route, c.params, err = dialect.Route(s.router, c.r.Method, path, unknown); err != nil {
		return reply{}, err
	}
	c.log = c.log.With("method", c.route.method, "route", c.route.pattern)
	if c.key, c.actor, err = dialect.Admit(s.Auth, c.r, auth.Permission(c.route.access)); err != nil {
		return reply{}, err
	}
	c.waiting = s.Room.Passing(held.From(c.r, c.key.ID))
	if id, named := c.params[sandboxParam]; named {
		if err := s.names(c, id); err != nil {
			return reply{}, err
		}
	}
	if c.r.Header.Get(body.IdempotencyHeader) != "" {
		return reply{}, body.Invalid("the header %q is not supported here: this server would do the same again", body.IdempotencyHeader).
			WithRemedy("leave it out").With("field", body.IdempotencyHeader)
	}
	if c.words, _, err = c.route.reads.Read(c.w, c.r, c.key.ID); err != nil {
		return reply{}, err
	}
	rep, err := c.route.handle(s, c)
	rep.Body, rep.Holder = envelope{Success: true, Data: rep.Body}, c.key.ID
	return rep, err
}

// names takes down which sandbox the call is about. One that has ended is not there.
func (s *server) names(c *call, id string) error {
	sb, err := dialect.Sandbox(c.r.Context(), s.Sandboxes, c.key, id)
	if err == nil {
		c.sandbox, c.log = id, c.log.With("sandbox", id)
		_, err = alive(sb)
	}
	return err
}

// alive returns a sandbox unless it has ended.
func alive(sb store.Sandbox) (store.Sandbox, error) {
	if sb.Record.State == lifecycle.Terminated {
		_, ended := lifecycle.Step(sb.Record, lifecycle.AccessRequested{}, time.Time{}) // refused: it says why
		return store.Sandbox{}, ended
	}
	return sb, nil
}

// find returns the sandbox that a call names.
func (s *server) find(c *call) (store.Sandbox, error) {
	sb, err := s.Sandboxes.Find(c.r.Context(), c.sandbox)
	if err != nil {
		return store.Sandbox{}, err
	}
	return alive(sb)
}

// words are what a body says.
type words map[string]body.Said

// said returns the value of an option, and whether it was said.
func said[T any](w words, name string) (T, bool) {
	v, ok := w[name].Value.(T)
	return v, ok
}
