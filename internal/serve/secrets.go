package serve

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/secret"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/outside"
)

// openOutside opens what sandboxes reach outside, with the secrets that they use
// there.
func openOutside(ctx context.Context, o Options, st store.Store, keys *auth.Keys) (outside.World, error) {
	vault, err := secret.Open(ctx, st, o.StateDir)
	if err != nil {
		return outside.World{}, err
	}
	keys.OnRevoke(vault.Drop)
	roots, err := egressRoots(o.EgressCA)
	return outside.World{Internet: egress.NewHost(o.DNS), Secrets: vault, Roots: roots}, err
}

// egressRoots returns by whom servers are verified to which secrets go: this
// machine's authorities, and those in a file.
func egressRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, errdef.New(errdef.Invalid, "egress_ca_invalid", "--egress-ca: %w", err).WithRemedy("name a file with certificates in PEM")
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("certificate authorities of this machine: %w", err)
	}
	if !roots.AppendCertsFromPEM(text) {
		return nil, errdef.New(errdef.Invalid, "egress_ca_invalid", "--egress-ca: %s has no certificate in it", file).WithRemedy("name a file with certificates in PEM")
	}
	return roots, nil
}
