package mitos

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
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
	Pause(ctx context.Context, id string, mode lifecycle.Mode, actor string) error
	Connect(ctx context.Context, id string, timeout time.Duration, p supervisor.Patch, actor string) (supervisor.Connected, error)
	Kill(ctx context.Context, id, actor string) error
}

// Lookup finds sandboxes.
type Lookup interface {
	// Named returns the sandbox that has a name in the space of an API key, or that
	// had it last.
	Named(key, name string) (id string, ok bool)
	Find(ctx context.Context, id string) (store.Sandbox, error)
	List(ctx context.Context) ([]store.Sandbox, error)
	Outlooks(ctx context.Context, ids []string) map[string]supervisor.Explanation
}

// Templates is what sandboxes can start from.
type Templates interface {
	Template(ref string) (templates.Template, error)
	Templates() ([]templates.Template, error)
}

// Snapshots finds snapshots by id or name.
type Snapshots interface {
	Snapshot(key, ref string) (store.Snapshot, error)
}

// Authenticator knows the API keys.
type Authenticator interface {
	auth.Checker
	Bind(ctx context.Context, id string) (context.Context, context.CancelFunc)
}

// Options are what a handler is made of.
type Options struct {
	Sandboxes Sandboxes     // required
	Templates Templates     // required
	Snapshots Snapshots     // required
	Builds    origin.Builds // required
	Auth      Authenticator // required
	// Domain is the wildcard domain of sandboxes; empty where preview links go by
	// path.
	Domain string
	// MaxTimeout is the largest soft timeout; 0 for no bound. Where there is one, a
	// new sandbox has it, because this dialect has no word for another.
	MaxTimeout time.Duration
	// Judge returns why a create would be refused, by what it asks for alone; nil for
	// never.
	Judge func(supervisor.CreateRequest) error
	Room  *held.Room   // where what is kept counts; nil for one of its own
	Log   *slog.Logger // nil discards
}

// server is the handler.
type server struct {
	Options
	router   httpapi.Router[route]
	postures *postures
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
	s := &server{Options: o, router: newRouter()}
	s.postures = newPostures(o.Room, s.missing)
	return s
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
	sent   []byte // the body, once it has been parsed
	out    *frames
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	httpapi.AllowOrigins(w.Header())
	if r.Method == http.MethodOptions {
		httpapi.Preflight(w, r)
		return
	}
	c := &call{w: w, r: r, ctx: r.Context()}
	c.out = newFrames(w)
	defer httpapi.Recover(func(p any, stack []byte) {
		id := httpapi.RequestID()
		s.Log.Error("handler panicked", c.attrs("request", id, "panic", p, "stack", string(stack))...)
		s.fail(c, internalError(id))
	})
	release, err := s.admit(c)
	defer release()
	if err != nil {
		s.fail(c, err)
		return
	}
	if c.route.stream != nil {
		if err := c.route.stream(s, c); err != nil {
			s.fail(c, err)
		}
		return
	}
	answer, err := c.route.handle(s, c)
	if err != nil {
		s.fail(c, err)
		return
	}
	res, err := httpapi.Answer(c.r, c.key.ID, http.StatusOK, nil, answer)
	if err != nil {
		s.fail(c, err)
		return
	}
	res.WriteTo(w)
}

// admit finds the route, then asks who calls, then what about. The function that
// it returns is to be called in any case.
func (s *server) admit(c *call) (release func(), err error) {
	release = func() {}
	route, params, allowed := s.router.Match(c.r.Method, c.r.URL.EscapedPath())
	switch {
	case route != nil:
	case len(allowed) > 0:
		return release, errdef.New(errdef.Invalid, "method_not_allowed", "method %s is not allowed here", body.Short(c.r.Method)).
			WithRemedy("use %s", strings.Join(allowed, ", ")).With("allowed", allowed)
	default:
		return release, errdef.New(errdef.NotFound, "unknown_path", "this path is not part of the API").
			WithRemedy("point MITOS_BASE_URL at the server's URL with %s behind it", Prefix)
	}
	c.route, c.params = route, params
	if c.key, err = auth.Admit(s.Auth, c.r, route.access); err != nil {
		return release, err
	}
	c.actor = "key:" + c.key.ID
	ctx, cancel := s.Auth.Bind(c.ctx, c.key.ID)
	c.ctx, release = ctx, func() { cancel() }
	if err := c.checkQuery(); err != nil {
		return release, err
	}
	if route.kind != rest {
		if err := c.checkProtocol(); err != nil {
			return release, err
		}
		return release, s.names(c, c.addressed())
	}
	if id, named := params[sandboxParam]; named {
		return release, s.names(c, id)
	}
	return release, nil
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

// checkQuery refuses parameters: no route but the terminal's has one.
func (c *call) checkQuery() error {
	for name, values := range c.r.URL.Query() {
		if c.route.kind == socket && name == querySandbox && len(values) == 1 {
			continue
		}
		return errdef.New(errdef.Invalid, "unknown_field", "%q is not a parameter here", body.Short(name)).
			WithRemedy("leave it out").With("field", body.Short(name))
	}
	return nil
}

// idForm is that of drowse's own ids.
var idForm = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

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
	if id, ok := s.Sandboxes.Named(c.key.ID, text); ok {
		c.id = id
		audit.About(c.ctx, id)
		return nil
	}
	if !idForm.MatchString(text) {
		return missing
	}
	sb, err := s.Sandboxes.Find(c.ctx, text)
	if err == nil && !auth.Sees(c.key, sb.Config.Key) || errdef.Is(err, errdef.NotFound) {
		return missing
	}
	c.id = text
	audit.About(c.ctx, text)
	return err
}

// parse reads the body by a vocabulary.
func (c *call) parse(v body.Vocabulary) (map[string]body.Said, error) {
	data, err := httpapi.ReadBody(c.w, c.r, c.key.ID)
	if err != nil {
		return nil, err
	}
	c.sent = data
	return c.words(data, v)
}

// words reads one message by a vocabulary.
func (c *call) words(data []byte, v body.Vocabulary) (map[string]body.Said, error) {
	words, err := v.Parse(data, body.NullIsAbsent)
	if err != nil && data != nil && !json.Valid(data) {
		return nil, invalidJSON{err}
	}
	return words, err
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

// attrs are the log attributes of a call, with more put before them.
func (c *call) attrs(more ...any) []any {
	more = slices.Clip(more)
	if c.route != nil {
		more = append(more, "method", c.route.method, "route", c.route.pattern)
	}
	if c.id != "" {
		more = append(more, "sandbox", c.id)
	}
	return more
}
