// Package certs gets the server's certificate from an authority that speaks ACME, such
// as Let's Encrypt, and renews it.
//
// It promises: the authority keeps no server from starting. A certificate is on disk
// before it is used, unless the disk refuses it, and the next start uses it without
// asking the authority. The certificate in use stays until another one is there, and
// connections that are open stay open. A failed attempt is repeated, less and less often.
//
// The protocol is that of acmez, the client in Caddy. certmagic, which Caddy has on top
// of it, would bring ten modules and 2.4 MB, and get one certificate for each name;
// here is one certificate, in one directory that one server uses.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Options says for what to get a certificate, and from whom.
type Options struct {
	Dir       string // where account and certificate are kept; made if missing
	Email     string // of the account
	Domain    string // without a port
	Directory string // URL of the authority
	CA        string // PEM file with authorities to trust for that URL; empty for the machine's
	Hook      string // program that sets and removes DNS records; empty to prove the names over TLS
	Log       *slog.Logger
}

// Keeper has the server's certificate.
type Keeper struct {
	o     Options
	names []string
	roots *x509.CertPool // of the authority's URL; nil for the machine's

	retry    time.Duration // first pause after an attempt that failed
	refusal  time.Duration // the same, where the authority said no: it counts failures
	resolver *net.Resolver
	dnsPort  string // of name servers

	account *account         // nil until there is one
	records []record         // DNS records that are to be removed
	renewal acme.RenewalInfo // what the authority last said of the certificate
	asked   time.Time        // when it did
	rest    time.Time        // no other certificate is asked for before
	refused bool             // the last attempt was, by the authority

	mu         sync.Mutex
	current    *certificate                // nil until there is one
	challenges map[string]*tls.Certificate // what is shown to the authority, by name
	told       time.Time                   // when it was last logged that there is no certificate
}

// alpn is the protocol by which an authority asks for a challenge's certificate.
const alpn = "acme-tls/1"

// tellEvery bounds how often it is logged that clients are refused.
const tellEvery = time.Minute

// Check says what is wrong with options. It changes nothing.
func (o Options) Check() error {
	if _, err := o.roots(); err != nil {
		return errdef.New(errdef.Invalid, "bad_certificate", "cannot use the certificate authorities in %s: %w", o.CA, err).
			WithRemedy("give a PEM file with --acme-ca")
	}
	if o.Hook == "" {
		return nil
	}
	_, err := exec.LookPath(o.Hook)
	if !filepath.IsAbs(o.Hook) {
		err = errors.New("the path is not absolute")
	}
	if err != nil {
		return errdef.New(errdef.Invalid, "bad_acme_hook", "cannot run %s, which is to set DNS records: %w", o.Hook, err).
			WithRemedy("give the absolute path of an executable file with --acme-dns-hook")
	}
	return nil
}

func (o Options) roots() (*x509.CertPool, error) {
	if o.CA == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("there is no certificate in PEM")
	}
	return pool, nil
}

// names are those that the certificate is for. Only a record in the DNS proves to an
// authority that all names below a domain may be in it. Without, there are the names
// of the API, and the one under which E2B's SDKs name a sandbox in headers.
func (o Options) names() []string {
	if o.Hook != "" {
		return []string{o.Domain, "*." + o.Domain}
	}
	return []string{o.Domain, "api." + o.Domain, "sandbox." + o.Domain}
}

// Open reads what is kept, and asks nobody.
func Open(o Options) (*Keeper, error) {
	roots, err := o.roots()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, errdef.New(errdef.Invalid, "state_dir", "cannot make a directory for the certificate: %w", err).
			WithRemedy("remove what has its name")
	}
	k := &Keeper{
		o: o, names: o.names(), roots: roots, retry: 5 * time.Second, refusal: time.Minute, resolver: net.DefaultResolver, dnsPort: "53",
		challenges: map[string]*tls.Certificate{},
	}
	if k.current, err = k.load(); err != nil {
		o.Log.Warn("the stored certificate cannot be used; another one is asked for", "err", err)
	}
	if k.current != nil {
		o.Log.Info("the stored certificate is used", "names", k.current.pair.Leaf.DNSNames, "until", until(k.current.pair.Leaf.NotAfter))
	}
	if k.account, err = k.loadAccount(); err != nil {
		o.Log.Warn("the stored account of the certificate authority cannot be used; another one is made", "err", err)
	}
	if _, err := k.read(recordsFile, &k.records); err != nil {
		o.Log.Warn("the list of DNS records that were set cannot be read, and begins anew", "err", err)
		k.records = nil
	}
	return k, nil
}

// Protocols are those to negotiate besides the server's own.
func (k *Keeper) Protocols() []string {
	if k.o.Hook != "" {
		return nil
	}
	return []string{alpn}
}

// Get implements tls.Config.GetCertificate. Where there is no certificate, the
// handshake fails.
func (k *Keeper) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Contains(hello.SupportedProtos, alpn) {
		if shown := k.challenges[strings.ToLower(hello.ServerName)]; shown != nil {
			return shown, nil
		}
		return nil, errors.New("no certificate is being asked for")
	}
	if k.current == nil {
		if time.Since(k.told) > tellEvery {
			k.told = time.Now()
			k.o.Log.Warn("TLS clients are refused: there is no certificate yet", "name", hello.ServerName)
		}
		return nil, errors.New("there is no certificate yet")
	}
	return &k.current.pair, nil
}

// Ends returns when the certificate does; the zero time if there is none.
func (k *Keeper) Ends() time.Time {
	if c := k.in(); c != nil {
		return c.pair.Leaf.NotAfter
	}
	return time.Time{}
}

// in returns the certificate in use; nil if there is none.
func (k *Keeper) in() *certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}
