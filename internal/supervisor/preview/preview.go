// Package preview makes links to ports of sandboxes and checks them. A link is
// a token that is signed for one sandbox; which links are good is kept with the
// sandbox. A link ends with the API key that made it. Making, checking or
// revoking one is neither activity nor a wake.
package preview

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Param is the parameter of a URL's query that has a preview link's
// token.
const Param = "drowse_preview"

// mostTime is how long a preview link may be good at most.
const mostTime = 30 * 24 * time.Hour

// Sandboxes is what links need of the supervisor.
type Sandboxes interface {
	// Find returns a sandbox, also one that has ended.
	Find(ctx context.Context, id string) (store.Sandbox, error)
	// Get returns a sandbox that has not ended.
	Get(ctx context.Context, id string) (store.Sandbox, error)
	// Configure changes what a sandbox is apart from its lifecycle, and logs it.
	Configure(ctx context.Context, id, actor, detail string, change func(*store.Config) error) error
}

// Links makes and checks links.
type Links struct {
	sandboxes Sandboxes
	key       func(id string) string
	keyLives  func(id string) bool // nil if all do
}

// New returns the links of sandboxes. key returns the key that the links of a
// sandbox are signed with, and keyLives reports whether there still is an API key.
func New(sandboxes Sandboxes, key func(id string) string, keyLives func(id string) bool) *Links {
	return &Links{sandboxes, key, keyLives}
}

// lives reports whether what an actor has granted still holds: it ends with the
// actor's API key.
func (l *Links) lives(actor string) bool {
	key, is := strings.CutPrefix(actor, "key:")
	return !is || l.keyLives == nil || l.keyLives(key)
}

// Request is what a preview link is asked to be.
type Request struct {
	Port  int
	For   time.Duration // from now; its end is rounded up to a whole second
	Actor string
}

// CreatePreview makes a link to a port of a sandbox, asleep or not, and returns
// what is kept of it and the token, which is not. It is neither activity nor a
// wake.
func (l *Links) CreatePreview(ctx context.Context, id string, req Request) (store.Preview, string, error) {
	if _, err := l.sandboxes.Find(ctx, id); err != nil {
		return store.Preview{}, "", err
	}
	if err := req.Check(); err != nil {
		return store.Preview{}, "", err
	}
	t := now()
	p := store.Preview{
		ID: newID(), Port: req.Port, Actor: req.Actor, CreatedAt: t,
		ExpiresAt: t.Add(req.For + time.Second - 1).Truncate(time.Second),
	}
	err := l.sandboxes.Configure(ctx, id, req.Actor, "preview link "+p.ID+" made", func(c *store.Config) error {
		c.Previews = l.granted(*c)
		return c.AddPreview(p, t)
	})
	if err != nil {
		return store.Preview{}, "", err
	}
	return p, l.token(id, p), nil
}

// Check refuses a link that no server makes.
func (r Request) Check() error {
	switch {
	case r.Port < 1 || r.Port > 65535:
		return errdef.New(errdef.Invalid, "port_invalid", "%d is not a port", r.Port).WithRemedy("use a number from 1 to 65535")
	case r.Port == agentapi.Port:
		return errdef.New(errdef.Invalid, "port_invalid", "port %d is that of the sandbox's agent, which has a token of its own", r.Port).
			WithRemedy("give the port of a server in the sandbox")
	case r.For <= 0:
		return errdef.New(errdef.Invalid, "timeout_invalid", "a preview link must expire, and not at once").WithRemedy("give a positive duration")
	case r.For > mostTime:
		return errdef.New(errdef.Invalid, "timeout_too_large", "a preview link may be good for %s at most", mostTime).
			WithRemedy("ask for less, and make another when it expires").
			With("requestedSeconds", r.For.Seconds()).With("allowedSeconds", mostTime.Seconds())
	}
	return nil
}

// Previews returns the links to a sandbox that are good, oldest first; none is
// once it has ended.
func (l *Links) Previews(ctx context.Context, id string) ([]store.Preview, error) {
	sb, err := l.sandboxes.Find(ctx, id)
	if err != nil || sb.Record.State == lifecycle.Terminated {
		return nil, err
	}
	sb.Config.Previews = l.granted(sb.Config)
	return sb.Config.LivePreviews(now()), nil
}

// granted returns the links of a sandbox without those whose makers are no more.
func (l *Links) granted(c store.Config) []store.Preview {
	return slices.DeleteFunc(slices.Clone(c.Previews), func(p store.Preview) bool { return !l.lives(p.Actor) })
}

// RevokePreview makes a link worthless before its time.
func (l *Links) RevokePreview(ctx context.Context, id, link, actor string) error {
	return l.sandboxes.Configure(ctx, id, actor, "preview link "+link+" revoked", func(c *store.Config) error { return c.RemovePreview(link, now()) })
}

// CheckPreview returns nil if the token is that of a link to this port of this
// sandbox which is good now, and otherwise an errdef.Forbidden with code
// "preview_invalid", "preview_expired" or "preview_revoked". It tells of a link
// only to who has it: what is not signed here is invalid, whatever it says.
func (l *Links) CheckPreview(ctx context.Context, id string, port int, token string) error {
	if _, err := l.sandboxes.Find(ctx, id); err != nil {
		return err
	}
	said, ok := l.read(id, token)
	if !ok || said.Sandbox != id || said.Port != port {
		return errdef.New(errdef.Forbidden, "preview_invalid", "this is no preview link to port %d of the sandbox", port).
			WithRemedy("ask whoever gave it to you for the whole link")
	}
	t := now()
	if t.Unix() >= said.Expires {
		return errdef.New(errdef.Forbidden, "preview_expired", "this preview link expired at %s", time.Unix(said.Expires, 0).UTC().Format(time.RFC3339)).
			WithRemedy("ask for a new one")
	}
	sb, err := l.sandboxes.Get(ctx, id)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(sb.Config.Previews, func(p store.Preview) bool { return p.ID == said.Link && l.lives(p.Actor) }) {
		return errdef.New(errdef.Forbidden, "preview_revoked", "this preview link was revoked, or the API key that made it").WithRemedy("ask for a new one")
	}
	return nil
}

// claims is what a preview link says.
type claims struct {
	Link    string `json:"link"`
	Sandbox string `json:"sandbox"`
	Port    int    `json:"port"`
	Expires int64  `json:"expires"` // Unix seconds
}

const (
	form = "p1." // the form of the token: what follows is claims.signature
	// maxToken bounds what is looked at; a real one has some 200 bytes.
	maxToken = 1024
)

func (l *Links) token(id string, p store.Preview) string {
	said, err := json.Marshal(claims{Link: p.ID, Sandbox: id, Port: p.Port, Expires: p.ExpiresAt.Unix()})
	if err != nil {
		panic("internal error: preview: encode a preview link: " + err.Error())
	}
	signed := form + base64.RawURLEncoding.EncodeToString(said)
	return signed + "." + l.sign(id, signed)
}

// sign signs for one sandbox: each has a key of its own.
func (l *Links) sign(id, text string) string {
	h := hmac.New(sha256.New, []byte(l.key(id)))
	h.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// read returns what a token says if it was made here. Signatures
// are compared as text, so that there is one way to write each.
func (l *Links) read(id, token string) (said claims, ok bool) {
	dot := strings.LastIndexByte(token, '.')
	if len(token) > maxToken || dot < len(form) || !strings.HasPrefix(token, form) {
		return said, false
	}
	signed, signature := token[:dot], token[dot+1:]
	if !hmac.Equal([]byte(signature), []byte(l.sign(id, signed))) {
		return said, false
	}
	data, err := base64.RawURLEncoding.DecodeString(signed[len(form):])
	ok = err == nil && json.Unmarshal(data, &said) == nil
	return said, ok
}

// now is the time as it is stored: UTC, in microseconds.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func newID() string {
	b := make([]byte, 8)
	rand.Read(b)
	return "pv" + hex.EncodeToString(b)
}
