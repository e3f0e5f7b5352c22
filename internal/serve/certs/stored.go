package certs

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"github.com/drowse-dev/drowse/internal/durable"
)

// Files of the directory. A certificate is in one file with its key, and so replaced
// at once.
const (
	accountFile     = "account.json"
	certificateFile = "certificate.json"
	recordsFile     = "records.json" // DNS records that were set, or were about to be, and not removed
)

// account is that of the server at an authority, as it is kept.
type account struct {
	Directory string `json:"directory"`
	Email     string `json:"email"`
	Location  string `json:"location"`
	Key       string `json:"key"` // PEM
}

// certificate is what an authority issued, as it is kept.
type certificate struct {
	Directory string `json:"directory"`
	Chain     string `json:"chain"` // PEM
	Key       string `json:"key"`   // PEM

	pair tls.Certificate
}

// record is a TXT record.
type record struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// load returns the certificate that is kept; nil if there is none of this authority and
// for the domain. One that has ended is used as well: its clients learn what is wrong.
// So is one that lacks other names, until there is another.
func (k *Keeper) load() (*certificate, error) {
	c := &certificate{}
	if found, err := k.read(certificateFile, c); !found || err != nil || c.Directory != k.o.Directory {
		return nil, err
	}
	if err := c.parse(); err != nil {
		return nil, err
	}
	if !c.isFor([]string{k.o.Domain}) {
		return nil, nil
	}
	return c, nil
}

func (c *certificate) parse() (err error) {
	c.pair, err = tls.X509KeyPair([]byte(c.Chain), []byte(c.Key))
	return err
}

// isFor says whether the certificate is for all of these names.
func (c *certificate) isFor(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(c.pair.Leaf.DNSNames, name) })
}

// lives is how long the certificate is valid in all.
func (c *certificate) lives() time.Duration {
	return c.pair.Leaf.NotAfter.Sub(c.pair.Leaf.NotBefore)
}

func (k *Keeper) loadAccount() (*account, error) {
	a := &account{}
	found, err := k.read(accountFile, a)
	if !found || err != nil || a.Directory != k.o.Directory || a.Email != k.o.Email {
		return nil, err
	}
	if _, err := a.acme(); err != nil {
		return nil, err
	}
	return a, nil
}

// acme is the account as the client of the protocol knows it.
func (a *account) acme() (acme.Account, error) {
	key, err := parseKey(a.Key)
	if err != nil {
		return acme.Account{}, err
	}
	return acme.Account{Status: acme.StatusValid, Contact: []string{"mailto:" + a.Email}, TermsOfServiceAgreed: true, Location: a.Location, PrivateKey: key}, nil
}

func formatKey(key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), nil
}

func parseKey(text string) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("no key in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T", key)
	}
	return ec, nil
}

// read decodes a file of the directory, if there is one.
func (k *Keeper) read(name string, into any) (found bool, err error) {
	text, err := os.ReadFile(filepath.Join(k.o.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
}

// write replaces a file of the directory, which only root may read, durably.
func (k *Keeper) write(name string, from any) error {
	text, err := json.MarshalIndent(from, "", "  ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(k.o.Dir, name), append(text, '\n'), 0o600)
}
