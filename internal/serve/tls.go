package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/serve/certs"
	"github.com/drowse-dev/drowse/internal/serve/settings"
)

// shown is the certificate that the server shows, wherever it comes from.
type shown struct {
	config *tls.Config           // nil for no TLS
	ends   func() time.Time      // when the certificate does; the zero time while there is none; nil for no TLS
	keep   func(context.Context) // gets the certificate and renews it, until the context ends; nil if others do
}

// openTLS returns what the server shows. It asks nobody for a certificate.
func openTLS(o Options) (shown, error) {
	forRoot := filepath.Join(o.StateDir, settings.CertificateFile)
	switch {
	case o.TLSCert != "":
		return loadTLS(o.TLSCert, o.TLSKey, forRoot)
	case o.ACMEEmail == "":
		return shown{}, nil
	}
	local, err := selfMade()
	if err != nil {
		return shown{}, err
	}
	if err := keepFile(forRoot, leafPEM(local)); err != nil {
		return shown{}, err
	}
	keeper, err := certs.Open(o.acme())
	if err != nil {
		return shown{}, err
	}
	if o.ACMEDNSHook == "" {
		o.Log.Warn("the host names of sandboxes get no certificate: for that, an authority wants --acme-dns-hook",
			"remedy", fmt.Sprintf("reach ports by path, such as https://api.%s/s/ID/8000/, as preview links do; for E2B's SDKs set E2B_API_URL=https://api.%[1]s and E2B_SANDBOX_URL=https://sandbox.%[1]s", o.host()))
	}
	get := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if name := strings.TrimSuffix(hello.ServerName, "."); name == "" || strings.EqualFold(name, "localhost") || net.ParseIP(name) != nil {
			return &local, nil
		}
		return keeper.Get(hello)
	}
	return shown{&tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get, NextProtos: keeper.Protocols()}, keeper.Ends, keeper.Run}, nil
}

// acme says for what to get a certificate.
func (o Options) acme() certs.Options {
	return certs.Options{
		Dir: acmeIn(o.StateDir), Email: o.ACMEEmail, Domain: o.host(), Directory: o.ACMEDirectory, CA: o.ACMECA, Hook: o.ACMEDNSHook, Log: o.Log,
	}
}

// host is the domain without a port.
func (o Options) host() string {
	host, _, _ := strings.Cut(o.Domain, ":")
	return host
}

// linkDomain is the domain for links to ports of sandboxes. Without a certificate for
// their host names there is none, and links are by path.
func (o Options) linkDomain() string {
	if o.ACMEEmail != "" && o.ACMEDNSHook == "" {
		return ""
	}
	return o.Domain
}

// selfMade returns a certificate that nobody vouches for. Clients that come by an
// address or by localhost get it, which no authority would certify: root's command
// line, which knows it by its file, is let in whatever an authority does.
func selfMade() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "drowse"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// leafPEM is the certificate itself, in PEM.
func leafPEM(pair tls.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
}

// expiry is a metric, with which operators notice that a certificate is not renewed.
func (s shown) expiry() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "drowse_certificate_expiry_timestamp_seconds",
		Help: "When the certificate that clients see ends, in Unix time; 0 while there is none.",
	}, func() float64 {
		if at := s.ends(); !at.IsZero() {
			return float64(at.Unix())
		}
		return 0
	})
}

// certificate is a key pair in files, which are read again when they change:
// certificates are renewed while the server runs. A copy of the certificate tells
// the command line on this machine, before it is shown there, whom to trust: its
// names are not this machine's addresses.
type certificate struct {
	certFile, keyFile, copyFile string

	mu      sync.Mutex
	current *tls.Certificate
	stamp   string    // of the files that current was read from
	checked time.Time // when the files were looked at
}

// checkEvery bounds how often the files are looked at.
const checkEvery = time.Second

// loadTLS returns what is shown of a key pair in files. The certificate is copied to
// copyFile.
func loadTLS(certFile, keyFile, copyFile string) (shown, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, copyFile: copyFile}
	stamp, err := c.look()
	if err == nil {
		err = c.read(stamp)
	}
	if err != nil {
		return shown{}, errdef.New(errdef.Invalid, "bad_certificate", "cannot use the TLS certificate: %w", err).
			WithRemedy("give a PEM certificate chain with --tls-cert and its key with --tls-key")
	}
	return shown{&tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}, c.ends, nil}, nil
}

// ends returns when the certificate does.
func (c *certificate) ends() time.Time {
	pair, _ := c.get(nil)
	return pair.Leaf.NotAfter
}

// get implements tls.Config.GetCertificate. If the files cannot be read, as in
// the middle of a renewal, the certificate stays as it was.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) > checkEvery {
		c.checked = time.Now()
		if stamp, err := c.look(); err == nil && stamp != c.stamp {
			_ = c.read(stamp)
		}
	}
	return c.current, nil
}

// look returns what changes when the files do.
func (c *certificate) look() (stamp string, err error) {
	for _, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		stamp += fmt.Sprintf("%d %d\n", info.ModTime().UnixNano(), info.Size())
	}
	return stamp, nil
}

func (c *certificate) read(stamp string) error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	if err := keepFile(c.copyFile, leafPEM(pair)); err != nil {
		return err
	}
	c.current, c.stamp = &pair, stamp
	return nil
}
