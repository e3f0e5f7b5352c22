package secret

import (
	"encoding/base64"
	"fmt"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// proxyPurpose is what the passwords of egress proxies are encrypted for.
const proxyPurpose = "passwords of egress proxies"

// boundProxy is what such a password is bound to: it is never sent elsewhere, or
// with another name.
func boundProxy(p store.Proxy) []byte { return fmt.Appendf(nil, "%q %q", p.Address, p.Username) }

// SealProxy returns a proxy with its password encrypted, and in no other form.
func (v *Vault) SealProxy(p store.Proxy) (store.Proxy, error) {
	a, err := v.aead(proxyPurpose)
	if err != nil {
		return store.Proxy{}, fmt.Errorf("encrypt the password of the egress proxy: %w", err)
	}
	p.Sealed, p.Password = base64.StdEncoding.EncodeToString(a.Seal(nil, nil, []byte(p.Password), boundProxy(p))), ""
	return p, nil
}

// OpenProxy returns the password of a proxy.
func (v *Vault) OpenProxy(p store.Proxy) (string, error) {
	a, err := v.aead(proxyPurpose)
	if err != nil {
		return "", err
	}
	sealed, err := base64.StdEncoding.DecodeString(p.Sealed)
	var password []byte
	if err == nil {
		password, err = a.Open(nil, nil, sealed, boundProxy(p))
	}
	if err != nil {
		return "", errdef.New(errdef.Unavailable, "secrets_unreadable", "the password of the egress proxy was encrypted with another key than that in %s, or is damaged", v.file).
			WithRemedy("give the sandbox its proxy anew")
	}
	return string(password), nil
}
