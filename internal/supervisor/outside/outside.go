// Package outside says what sandboxes reach outside, and what they have of secrets
// there.
//
// It makes the gate of each sandbox, which holds it to its rules, and gives that
// the secrets that the sandbox was given the use of. Each use is logged before it
// happens: what cannot be logged is not done.
package outside

import (
	"crypto/x509"
	"log/slog"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/egress/inject"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/secret"
	"github.com/drowse-dev/drowse/internal/store"
)

// World is what lies outside of all sandboxes.
type World struct {
	Internet egress.Internet
	Room     *egress.Room        // what the connections of all sandboxes take
	Refused  func(egress.Reason) // counts
	Secrets  *secret.Vault       // nil for none
	Roots    *x509.CertPool      // by whom servers are verified to which secrets go; nil for this machine's
	Log      *slog.Logger
}

// Gate returns the gate of a sandbox, which is shut. Uses of its secrets are told
// to log, as entries of its event log.
func (w World) Gate(id string, c store.Config, log func(lifecycle.Entry) error) *egress.Gate {
	g := egress.NewGate(w.Internet, w.Room, c.Key, w.Refused)
	if len(c.Secrets) > 0 && w.Secrets != nil {
		a := newAudit(log, w.Log.With("sandbox", id))
		g.SetOpener(&inject.Opener{Source: w.Secrets.Lend(c, a), Roots: w.Roots})
	}
	return g
}

// Policy returns what a sandbox may reach outside. Without a word about it, that is
// the internet.
func (w World) Policy(c store.Config) (egress.Policy, error) {
	p, err := egress.NewPolicy(c.AllowInternet == nil || *c.AllowInternet, c.AllowOut, c.DenyOut)
	if err != nil || c.Proxy == nil {
		return p, err
	}
	via, err := w.proxy(*c.Proxy)
	if err != nil {
		return egress.Policy{}, err
	}
	return p.Through(via), nil
}

// Settle judges what a new sandbox is to reach, and completes what it is to have
// of secrets.
func (w World) Settle(c store.Config) (store.Config, error) {
	c, err := w.Changed(c)
	if err != nil || len(c.Secrets) == 0 {
		return c, err
	}
	if w.Secrets == nil {
		return c, errdef.New(errdef.Unsupported, "not_supported", "this server keeps no secrets")
	}
	err = w.Secrets.Bind(&c)
	return c, err
}

// Lent returns what a sandbox gets of its secrets: variables with placeholders, and
// the certificate of the authority that it is to trust.
func (w World) Lent(c store.Config) (vars map[string]string, certificate string, err error) {
	if w.Secrets == nil {
		return nil, "", nil
	}
	return w.Secrets.Guest(c)
}

// Missing returns the names of secrets that a sandbox has the use of and that are
// not there.
func (w World) Missing(c store.Config) []string {
	if w.Secrets == nil {
		return nil
	}
	return w.Secrets.Missing(c)
}
