package supervisor

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// PreviewParam is the parameter of a URL's query that has a preview link's
// token.
const PreviewParam = "drowse_preview"

// maxPreview is how long a preview link may be good at most.
const maxPreview = 30 * 24 * time.Hour

// PreviewRequest is what a preview link is asked to be.
type PreviewRequest struct {
	Port  int
	For   time.Duration // from now; its end is rounded up to a whole second
	Actor string
}

// CreatePreview makes a link to a port of a sandbox, asleep or not, and returns
// what is kept of it and the token, which is not. It is neither activity nor a
// wake.
func (s *Supervisor) CreatePreview(_ context.Context, id string, req PreviewRequest) (store.Preview, string, error) {
	b, err := s.box(id)
	if err != nil {
		return store.Preview{}, "", err
	}
	if err := req.check(); err != nil {
		return store.Preview{}, "", err
	}
	t := now()
	p := store.Preview{
		ID: "pv" + newOp(), Port: req.Port, Actor: req.Actor, CreatedAt: t,
		ExpiresAt: t.Add(req.For + time.Second - 1).Truncate(time.Second),
	}
	if err := b.configure(req.Actor, "preview link "+p.ID+" made", func(c *store.Config) error { return c.AddPreview(p, t) }); err != nil {
		return store.Preview{}, "", err
	}
	return p, s.previewToken(id, p), nil
}

func (r PreviewRequest) check() error {
	switch {
	case r.Port < 1 || r.Port > 65535:
		return errdef.New(errdef.Invalid, "port_invalid", "%d is not a port", r.Port).WithRemedy("use a number from 1 to 65535")
	case r.Port == agentapi.Port:
		return errdef.New(errdef.Invalid, "port_invalid", "port %d is that of the sandbox's agent, which has a token of its own", r.Port).
			WithRemedy("give the port of a server in the sandbox")
	case r.For <= 0:
		return errdef.New(errdef.Invalid, "timeout_invalid", "a preview link must expire, and not at once").WithRemedy("give a positive duration")
	case r.For > maxPreview:
		return errdef.New(errdef.Invalid, "timeout_too_large", "a preview link may be good for %s at most", maxPreview).
			WithRemedy("ask for less, and make another when it expires").
			With("requestedSeconds", r.For.Seconds()).With("allowedSeconds", maxPreview.Seconds())
	}
	return nil
}

// Previews returns the links to a sandbox that are good, oldest first; none is
// once it has ended.
func (s *Supervisor) Previews(ctx context.Context, id string) ([]store.Preview, error) {
	sb, err := s.Find(ctx, id)
	if err != nil || sb.Record.State == lifecycle.Terminated {
		return nil, err
	}
	return sb.Config.LivePreviews(now()), nil
}

// RevokePreview makes a link worthless before its time.
func (s *Supervisor) RevokePreview(_ context.Context, id, link, actor string) error {
	b, err := s.box(id)
	if err != nil {
		return err
	}
	return b.configure(actor, "preview link "+link+" revoked", func(c *store.Config) error { return c.RemovePreview(link, now()) })
}

// CheckPreview returns nil if the token is that of a link to this port of this
// sandbox which is good now, and otherwise an errdef.Forbidden with code
// "preview_invalid", "preview_expired" or "preview_revoked". It tells of a link
// only to who has it: what is not signed here is invalid, whatever it says.
func (s *Supervisor) CheckPreview(_ context.Context, id string, port int, token string) error {
	b, err := s.box(id)
	if err != nil {
		return err
	}
	claims, ok := s.readPreviewToken(id, token)
	if !ok || claims.Sandbox != id || claims.Port != port {
		return errdef.New(errdef.Forbidden, "preview_invalid", "this is no preview link to port %d of the sandbox", port).
			WithRemedy("ask whoever gave it to you for the whole link")
	}
	t := now()
	if t.Unix() >= claims.Expires {
		return errdef.New(errdef.Forbidden, "preview_expired", "this preview link expired at %s", time.Unix(claims.Expires, 0).UTC().Format(time.RFC3339)).
			WithRemedy("ask for a new one")
	}
	sb := b.snapshot()
	if err := alive(sb); err != nil {
		return err
	}
	if !slices.ContainsFunc(sb.Config.Previews, func(p store.Preview) bool { return p.ID == claims.Link }) {
		return errdef.New(errdef.Forbidden, "preview_revoked", "this preview link was revoked").WithRemedy("ask for a new one")
	}
	return nil
}

// previewClaims is what a preview link says.
type previewClaims struct {
	Link    string `json:"link"`
	Sandbox string `json:"sandbox"`
	Port    int    `json:"port"`
	Expires int64  `json:"expires"` // Unix seconds
}

const (
	previewForm = "p1." // the form of the token: what follows is claims.signature
	// maxPreviewToken bounds what is looked at; a real one has some 200 bytes.
	maxPreviewToken = 1024
)

func (s *Supervisor) previewToken(id string, p store.Preview) string {
	claims, err := json.Marshal(previewClaims{Link: p.ID, Sandbox: id, Port: p.Port, Expires: p.ExpiresAt.Unix()})
	if err != nil {
		panic("internal error: supervisor: encode a preview link: " + err.Error())
	}
	signed := previewForm + base64.RawURLEncoding.EncodeToString(claims)
	return signed + "." + s.signPreview(id, signed)
}

// signPreview signs for one sandbox: each has a key of its own.
func (s *Supervisor) signPreview(id, text string) string {
	h := hmac.New(sha256.New, []byte(s.derive("preview", id)))
	h.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// readPreviewToken returns what a token says if it was made here. Signatures
// are compared as text, so that there is one way to write each.
func (s *Supervisor) readPreviewToken(id, token string) (claims previewClaims, ok bool) {
	dot := strings.LastIndexByte(token, '.')
	if len(token) > maxPreviewToken || dot < len(previewForm) || !strings.HasPrefix(token, previewForm) {
		return claims, false
	}
	signed, signature := token[:dot], token[dot+1:]
	if !hmac.Equal([]byte(signature), []byte(s.signPreview(id, signed))) {
		return claims, false
	}
	data, err := base64.RawURLEncoding.DecodeString(signed[len(previewForm):])
	return claims, err == nil && json.Unmarshal(data, &claims) == nil
}
