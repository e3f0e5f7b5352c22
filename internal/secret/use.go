package secret

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"sync"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/egress/inject"
	"github.com/drowse-dev/drowse/internal/store"
)

// placeholderPrefix begins what programs inside see of a secret.
const placeholderPrefix = "drowse-secret-"

// Bind completes what a new sandbox is to have of the secrets of its API key. Those
// that it goes on with from a snapshot keep their placeholders, which its memory
// may have, whether they are here or not.
func (v *Vault) Bind(c *store.Config) error {
	if len(c.Secrets) == 0 {
		return nil
	}
	if n := len(c.Secrets); n > maxUses {
		return invalid("the sandbox has %d secrets; %d are allowed", n, maxUses).With("field", "secrets").With("allowed", maxUses)
	}
	uses, names, vars := slices.Clone(c.Secrets), map[string]bool{}, map[string]bool{}
	for i := range uses {
		u := &uses[i]
		if u.Placeholder == "" {
			x, err := v.Get(c.Key, u.Name)
			if err != nil {
				return err
			}
			if u.Env == "" {
				u.Env = x.Rule.Env
			}
			u.Placeholder = newPlaceholder()
		}
		if err := checkEnv(u.Env); err != nil {
			return err
		}
		_, taken := c.Env[u.Env]
		switch {
		case names[u.Name]:
			return invalid("the sandbox is given the secret %q twice", u.Name).With("field", "secrets")
		case taken || vars[u.Env]:
			return invalid("the variable %s is to have the placeholder of the secret %q, and something else", u.Env, u.Name).
				WithRemedy("leave it out of env, or give the secret another variable").With("field", "secrets")
		}
		names[u.Name], vars[u.Env] = true, true
	}
	c.Secrets = uses
	if c.Authority == "" {
		c.Authority = random(8)
	}
	return nil
}

func newPlaceholder() string { return placeholderPrefix + random(20) }

func random(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// CheckUses judges what an import says that a sandbox has of secrets.
func CheckUses(uses []store.SecretUse, authority string) error {
	if len(uses) > maxUses || len(authority) > 64 || strings.ContainsFunc(authority, notHex) {
		return invalid("its secrets are too many, or its authority has no name that a server gives")
	}
	for _, u := range uses {
		digits, ok := strings.CutPrefix(u.Placeholder, placeholderPrefix)
		if !ok || len(digits) != 40 || strings.ContainsFunc(digits, notHex) || !nameForm.MatchString(u.Name) {
			return invalid("its secret %.128q has no placeholder that a server gives", u.Name)
		}
		if err := checkEnv(u.Env); err != nil {
			return err
		}
	}
	return nil
}

func notHex(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') }

// Missing returns the names of secrets that a sandbox has the use of and that are
// not there.
func (v *Vault) Missing(c store.Config) []string {
	var missing []string
	for _, u := range c.Secrets {
		if _, err := v.Get(c.Key, u.Name); err != nil {
			missing = append(missing, u.Name)
		}
	}
	return missing
}

// Guest returns what a sandbox gets of its secrets: the variables with the
// placeholders, and the certificate that its trust stores are to know; empty for
// none.
func (v *Vault) Guest(c store.Config) (vars map[string]string, certificate string, err error) {
	if len(c.Secrets) == 0 {
		return nil, "", nil
	}
	vars = map[string]string{}
	for _, u := range c.Secrets {
		vars[u.Env] = u.Placeholder
	}
	a, err := v.authority(c.Authority)
	if err != nil {
		return nil, "", err
	}
	return vars, a.PEM, nil
}

func (v *Vault) authority(name string) (*inject.Authority, error) {
	seed, err := v.key("certificate authorities")
	if err != nil {
		return nil, err
	}
	return inject.NewAuthority(seed, name)
}

// Lent is what one sandbox has of the secrets of its API key: an [inject.Source].
type Lent struct {
	Witness

	vault     *Vault
	key       string
	uses      []store.SecretUse
	authority func() (*inject.Authority, error)
}

// Witness is told what becomes of the secrets of a sandbox.
type Witness interface {
	// Used and Refused are those of an inject.Source.
	Used(u inject.Use) error
	Refused(host string, why egress.Reason)
	// Failed is told of a value that cannot be read.
	Failed(name string, err error)
}

// Lend returns what a sandbox has, and has a witness told of it.
func (v *Vault) Lend(c store.Config, w Witness) *Lent {
	return &Lent{
		vault: v, key: c.Key, uses: c.Secrets, Witness: w,
		authority: sync.OnceValues(func() (*inject.Authority, error) { return v.authority(c.Authority) }),
	}
}

// each calls f with the secrets that are there and not withheld, in the order of
// the sandbox.
func (l *Lent) each(f func(e entry, u store.SecretUse) bool) {
	all := l.vault.list()
	for _, u := range l.uses {
		if u.Withheld {
			continue
		}
		if i := index(all, l.key, u.Name); i >= 0 && !f(all[i], u) {
			return
		}
	}
}

// Watches implements inject.Source.
func (l *Lent) Watches(port uint16) (watches bool) {
	l.each(func(e entry, _ store.SecretUse) bool {
		watches = slices.ContainsFunc(e.Rule.Hosts, func(pattern string) bool {
			_, at, _ := parseHost(pattern)
			return slices.Contains(portsOf(at), port)
		})
		return !watches
	})
	return watches
}

func fits(e entry, host string, port uint16) bool {
	return slices.ContainsFunc(e.Rule.Hosts, func(pattern string) bool { return matches(pattern, host, port) })
}

// Takes implements inject.Source.
func (l *Lent) Takes(host string, port uint16) (takes bool) {
	l.each(func(e entry, _ store.SecretUse) bool {
		takes = fits(e, host, port)
		return !takes
	})
	return takes
}

// For implements inject.Source.
func (l *Lent) For(host string, port uint16) (list []inject.Secret, err error) {
	l.each(func(e entry, u store.SecretUse) bool {
		if !fits(e, host, port) {
			return true
		}
		var value string
		if value, err = l.vault.open(e.Secret); err != nil {
			l.Failed(e.Name, err)
			err = egress.ReasonSealed
			return false
		}
		list = append(list, inject.Secret{
			Name: e.Name, Placeholder: u.Placeholder, Headers: inserts(e.Rule.Headers), Query: inserts(e.Rule.Query), Plain: e.Rule.Plain,
			Value: value, Life: e.life,
		})
		return true
	})
	return list, err
}

func inserts(list []store.Insert) []inject.Insert {
	var all []inject.Insert
	for _, i := range list {
		all = append(all, inject.Insert(i))
	}
	return all
}

// Authority implements inject.Source.
func (l *Lent) Authority() (*inject.Authority, error) { return l.authority() }
