package outside

import (
	"errors"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Changed judges what a sandbox is to reach, and encrypts what a request has told
// of a proxy's password.
func (w World) Changed(c store.Config) (store.Config, error) {
	if p := c.Proxy; p != nil && p.Password != "" {
		if _, err := egress.ParseProxy(p.Address, p.Username); err != nil {
			return c, err
		}
		if err := egress.CheckPassword(p.Password); err != nil {
			return c, err
		}
		if w.Secrets == nil {
			return c, errdef.New(errdef.Unsupported, "not_supported", "this server keeps no secrets, and the egress proxy has a password")
		}
		sealed, err := w.Secrets.SealProxy(*p)
		if err != nil {
			return c, err
		}
		c.Proxy = &sealed
	}
	_, err := w.Policy(c)
	return c, err
}

var errNoPassword = errors.New("the password of the egress proxy is not here")

// proxy returns the proxy of a sandbox. Without its password connections fail: none
// goes past it.
func (w World) proxy(p store.Proxy) (egress.Proxy, error) {
	via, err := egress.ParseProxy(p.Address, p.Username)
	switch {
	case err != nil:
		return via, err
	case p.Lost || p.Sealed != "" && w.Secrets == nil:
		via.Password = func() (string, error) { return "", errNoPassword }
	case p.Sealed != "":
		via.Password = func() (string, error) { return w.Secrets.OpenProxy(p) }
	}
	return via, nil
}
