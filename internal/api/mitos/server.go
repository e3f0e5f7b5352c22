package mitos

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
)

// Sandboxes is what the dialect needs of the supervisor. Errors that a client
// should understand are *errdef.Error.
type Sandboxes interface {
	Lifecycle
	Lookup
	guest.Sandboxes
	SetTimeout(ctx context.Context, id string, d time.Duration, actor string) (store.Sandbox, error)
	CreatePreview(ctx context.Context, id string, req preview.Request) (store.Preview, string, error)
}

// Lifecycle makes sandboxes, and puts them to sleep and to an end.
type Lifecycle interface {
	Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error)
	// Made returns the sandbox that the idempotency key of a Config has made.
	Made(ctx context.Context, as store.Config) (sb store.Sandbox, made bool, err error)
	Fork(ctx context.Context, id string, req supervisor.ForkRequest) ([]supervisor.Forked, error)
	Pause(ctx context.Context, id string, q supervisor.PauseRequest) error
	Connect(ctx context.Context, id string, q supervisor.WakeRequest) (supervisor.Connected, error)
	Kill(ctx context.Context, id, actor string) error
}

// Lookup finds sandboxes.
type Lookup interface {
	// Named returns the sandbox that has a name in the space of an API key, or that
	// had it last.
	Named(key, name string) (id string, ok bool)
	Find(ctx context.Context, id string) (store.Sandbox, error)
	// Page returns a page of a list of all sandboxes, ended ones included.
	Page(ctx context.Context, q store.Selection) (store.Page, error)
	Outlooks(ctx context.Context, ids []string) map[string]supervisor.Explanation
}

// Settings keeps what API keys say of templates, which the SDK does before every create,
// in a call of its own.
type Settings = store.SettingsOfTemplates

// Options are what a handler is made of.
type Options struct {
	Sandboxes Sandboxes             // required
	Templates dialect.Templates     // required
	Snapshots origin.Snapshots      // required
	Builds    origin.Builds         // required
	Settings  Settings              // required
	Auth      dialect.Authenticator // required
	// Domain is the wildcard domain of sandboxes; empty where preview links go by
	// path.
	Domain string
	// MaxTimeout is the largest soft timeout; 0 for no bound. Where there is one, a
	// new sandbox has it, because this dialect has no word for another.
	MaxTimeout time.Duration
	// Judge returns why a create would be refused, by what it asks for alone; nil for
	// never.
	Judge func(supervisor.CreateRequest) error
	Room  *held.Room   // where what waits for clients counts; nil for one of its own
	Log   *slog.Logger // nil discards
}

// server is the handler.
type server struct {
	Options
	router  httpapi.Router[route]
	origins origin.Origins // what sandboxes start from
}

// New returns the handler of everything below [Prefix].
func New(o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Room == nil {
		o.Room = held.New()
	}
	if o.Judge == nil {
		o.Judge = func(supervisor.CreateRequest) error { return nil }
	}
	return &server{Options: o, router: newRouter(), origins: origin.Origins{Templates: o.Templates, Snapshots: o.Snapshots, Builds: o.Builds}}
}

// Owns reports whether a request is of this dialect, by its path alone.
func Owns(r *http.Request) bool {
	path := r.URL.EscapedPath()
	return path == Prefix || strings.HasPrefix(path, Prefix+"/")
}

// call is one request on its way through a handler.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	ctx    context.Context // ends with the request, or when its API key does
	route  *route
	params map[string]string
	id     string // of the sandbox that the call is about
	named  string // what the client calls it
	key    store.Key
	actor  string
	words  map[string]body.Said
	sent   []byte // the body, of which words are what it says
	out    *frames
	log    *slog.Logger       // says which route and sandbox
	end    context.CancelFunc // of ctx
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{w: w, r: r, ctx: r.Context(), end: func() {}, log: s.Log, out: newFrames(w)}
	defer func() { c.end() }()
	dialect.Serve(w, r, func() (dialect.Reply, error) { return s.answer(c) }, c.failed)
}

// answer runs the call.
func (s *server) answer(c *call) (dialect.Reply, error) {
	if err := s.admit(c); err != nil {
		return dialect.Reply{}, err
	}
	if c.route.stream != nil {
		err := s.enters(c)
		if _, elsewhere := store.Elsewhere(err); elsewhere {
			return dialect.Reply{}, err
		}
		return dialect.Reply{Stream: func(http.ResponseWriter) { s.stream(c, err) }}, nil
	}
	answer, err := c.route.handle(s, c)
	return dialect.Reply{Status: http.StatusOK, Body: answer, Holder: c.key.ID}, err
}

// enters returns why a call that answers in frames does not get into its sandbox, where it may be
// passed on to another server: once it has begun to read what it is sent, it could not be. A sandbox
// that has no room here to wake, or is being moved, is gone by then.
func (s *server) enters(c *call) error {
	if c.route.kind != streams || !dialect.Forwards(c.ctx) {
		return nil
	}
	if sb, err := s.Sandboxes.Find(c.ctx, c.id); err == nil && sb.Record.Situation() == lifecycle.Situation(lifecycle.Running) {
		return nil // it gets in as it is
	}
	lease, err := s.Sandboxes.Acquire(c.ctx, c.id, supervisor.Access{Port: agentapi.Port, Actor: c.actor})
	if err == nil {
		lease.Release()
	}
	return err
}

// stream runs a call that answers in frames, unless err is why it cannot. Its errors are in the last one.
func (s *server) stream(c *call, err error) {
	defer dialect.Recover(c.fail)
	if err == nil {
		err = c.route.stream(s, c)
	}
	if err != nil {
		c.fail(err)
	}
}

// admit finds the route, then asks who calls, then what about.
func (s *server) admit(c *call) (err error) {
	unknown := errdef.New(errdef.NotFound, "unknown_path", "this path is not part of the API").
		WithRemedy("point MITOS_BASE_URL at the server's URL with %s behind it", Prefix)
	if c.route, c.params, err = dialect.Route(s.router, c.r.Method, c.r.URL.EscapedPath(), unknown); err != nil {
		return err
	}
	c.log = c.log.With("method", c.route.method, "route", c.route.pattern)
	if c.key, c.actor, err = dialect.Admit(s.Auth, c.r, c.route.access); err != nil {
		return err
	}
	c.ctx, c.end = s.Auth.Bind(c.ctx, c.key.ID)
	if c.route.kind != rest {
		if err := c.checkProtocol(); err != nil {
			return err
		}
		if err := s.names(c, c.addressed()); err != nil {
			return err
		}
	}
	if id, named := c.params[sandboxParam]; named {
		if err := s.names(c, id); err != nil {
			return err
		}
	}
	if c.words, c.sent, err = c.route.reads.Strict().Read(c.w, c.r, c.key.ID); err != nil {
		return garbled(c.sent, err)
	}
	if id, named := c.words[sandboxWord]; named {
		return s.names(c, id.Value.(string))
	}
	return nil
}

// The ways in which calls by RPC say which sandbox they are about.
const (
	headerSandbox = "X-Sandbox-Id"
	querySandbox  = "sandbox"
)

// addressed returns what a call by RPC says of the sandbox that it is about.
func (c *call) addressed() string {
	if c.route.kind == socket {
		return c.r.URL.Query().Get(querySandbox)
	}
	return c.r.Header.Get(headerSandbox)
}

// names takes down which sandbox the call is about. A name is one of the key's
// own. For the key, a sandbox that it does not see is not there.
func (s *server) names(c *call, text string) error {
	c.named = body.Short(text)
	if n := len(c.r.Header.Values(headerSandbox)); n > 1 {
		return body.Invalid("the request has %d headers %s", n, headerSandbox).WithRemedy("send one")
	}
	if text == "" {
		return body.Invalid("the request names no sandbox").WithRemedy("send its id in the header %s", headerSandbox)
	}
	missing := errdef.New(errdef.NotFound, "sandbox_not_found", "sandbox %q does not exist", c.named).
		WithRemedy("list_sandboxes() has those that do; create one with mitos.create()")
	id, ok := s.Sandboxes.Named(c.key.ID, text)
	if !ok {
		id = text
	}
	if _, err := dialect.Sandbox(c.ctx, s.Sandboxes, c.key, id); errdef.Is(err, errdef.NotFound) {
		return missing
	} else if err != nil { // another server may have it
		return err
	}
	c.id, c.log = id, c.log.With("sandbox", id)
	audit.About(c.ctx, id)
	return nil
}

// read reads one message of a stream by a vocabulary.
func (c *call) read(data []byte, v body.Vocabulary) (map[string]body.Said, error) {
	words, err := v.Parse(data, body.NullIsAbsent)
	return words, garbled(data, err)
}

// garbled returns the error of a message, as that of no JSON if it is none.
func garbled(data []byte, err error) error {
	if err != nil && data != nil && !json.Valid(data) {
		return invalidJSON{err}
	}
	return err
}

// guest returns the inside of the sandbox that the call is about.
func (s *server) guest(c *call) inside {
	return inside{guest.Guest{Sandboxes: s.Sandboxes, ID: c.id, Actor: c.actor}}
}

// unbuilt refuses what mitos has and drowse does not.
func unbuilt(_ *server, c *call) (any, error) {
	what := strings.TrimPrefix(strings.TrimPrefix(c.route.pattern, Prefix), "/")
	return nil, errdef.New(errdef.Unsupported, "not_supported", "%s is not supported by this server", what).
		WithRemedy("see what works in docs/works-with.md of drowse").With("op", what)
}
