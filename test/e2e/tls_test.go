package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
)

// domain is that of the servers that speak TLS. Nothing resolves it: clients
// are told the address.
const domain = "sandboxes.test"

// issuer is a certificate authority.
type issuer struct {
	pool *x509.CertPool
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// authority is that of all tests.
var authority = sync.OnceValue(func() *issuer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "drowse e2e"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &issuer{pool, cert, key}
})

// issue writes a certificate for the domain, and its key, as whoever renews one
// does: each file is replaced at once.
func (a *issuer) issue(t testing.TB, serial int64, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: domain},
		DNSNames: []string{"*." + domain}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(name+".new", pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
}

// startTLSServer starts a server that speaks TLS, and returns how to give it
// another certificate.
func startTLSServer(t testing.TB) (s *server, renew func(serial int64)) {
	t.Helper()
	files := t.TempDir()
	certFile, keyFile := filepath.Join(files, "cert.pem"), filepath.Join(files, "key.pem")
	renew = func(serial int64) { authority().issue(t, serial, certFile, keyFile) }
	renew(2)
	s = newServer(t, stateDir(t))
	s.args = []string{"--tls-cert", certFile, "--tls-key", keyFile, "--domain", domain}
	c, err := client.New(client.Options{URL: "https://" + s.addr, APIKey: apiKey, HTTPClient: httpClient})
	if err != nil {
		t.Fatal(err)
	}
	s.client = c
	t.Cleanup(s.cleanUp)
	s.start()
	return s, renew
}

// route is a way to a guest by host name, in one protocol.
type route struct {
	*guest
	http  *http.Client
	url   string       // of the guest's first port
	addr  string       // where connections go, whatever the name
	dials atomic.Int64 // connections made
}

// newRoute returns a client that makes its own connections to the server.
func newRoute(t testing.TB, g *guest, scheme string, protocol func(*http.Protocols)) *route {
	r := &route{guest: g, url: scheme + "://" + g.host(guestPort), addr: g.s.addr}
	transport := r.transport(protocol)
	t.Cleanup(transport.CloseIdleConnections)
	r.http = &http.Client{Transport: transport}
	return r
}

// transport makes connections to the route's address, whatever the name.
func (r *route) transport(protocol func(*http.Protocols)) *http.Transport {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			r.dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, r.addr)
		},
		TLSClientConfig: &tls.Config{RootCAs: authority().pool},
		Protocols:       new(http.Protocols),
		// A server that never says 100 must not go unnoticed.
		ExpectContinueTimeout: time.Minute,
	}
	protocol(transport.Protocols)
	return transport
}

// host is the name under which a port is reached.
func (g *guest) host(port int) string { return fmt.Sprintf("%d-%s.%s", port, g.sb.ID, domain) }

func http1(p *http.Protocols) { p.SetHTTP1(true) }
func http2(p *http.Protocols) { p.SetHTTP2(true) }
func h2c(p *http.Protocols)   { p.SetUnencryptedHTTP2(true) }

// TestMultiplexing sends 50 requests on one connection that the guest answers
// only when all are there, while the certificate is renewed.
func TestMultiplexing(t *testing.T) {
	t.Parallel()
	const streams = 50
	ctx := deadline(t, time.Minute)
	s, renew := startTLSServer(t)
	r := newRoute(t, s.startGuest(ctx, sleeper), "https", http2)
	together := func() {
		t.Helper()
		group, ctx := errgroup.WithContext(ctx)
		for range streams {
			group.Go(func() error {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/together?n=%d", r.url, streams), nil)
				if err != nil {
					return err
				}
				return expect(r.http, req, http.StatusOK, fmt.Sprint(streams))
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/hits", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := expect(r.http, req, http.StatusOK, ""); err != nil { // so that there is a connection
		t.Fatal(err)
	}
	together()

	serial := func() int64 {
		t.Helper()
		conn, err := tls.Dial("tcp", s.addr, &tls.Config{RootCAs: authority().pool, ServerName: r.host(guestPort)})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 2 {
		t.Errorf("certificate %d, want 2", got)
	}
	renew(3)
	took := eventually(t, 10*time.Second, "the new certificate is used", func() error {
		if got := serial(); got != 3 {
			return fmt.Errorf("certificate %d", got)
		}
		return nil
	})
	t.Logf("a renewed certificate is used after %s", took.Round(time.Millisecond))
	together() // on the old connection
	if n := r.dials.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// TestCommandLineOfRoot: on its own machine, root's command line finds a server by its
// state directory, wherever it listens and whatever its certificate, lets nobody else
// stand for it, and stays in when the key is rotated.
func TestCommandLineOfRoot(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s, renew := startTLSServer(t)
	drowse := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, drowseBinary, append(args, "--state-dir", s.dir())...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	works := func(args ...string) string {
		t.Helper()
		out, err := drowse(args...)
		if err != nil {
			t.Fatalf("drowse %q: %v\n%s", args, err, out)
		}
		return out
	}
	works("ls")
	renew(3)
	eventually(t, 10*time.Second, "the renewed certificate is trusted", func() error {
		out, err := drowse("ls")
		if text, _ := os.ReadFile(filepath.Join(s.dir(), "certificate.pem")); err == nil && serialOf(t, text) != 3 {
			return errors.New("the first one is still shown")
		}
		if err != nil {
			t.Fatalf("while it is renewed: %s", out)
		}
		return nil
	})

	file := filepath.Join(s.dir(), "api-key")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	works("keys", "rotate")
	after, err := os.ReadFile(file)
	if err != nil || string(after) == string(before) {
		t.Fatalf("the file with the key is the same: %v", err)
	}
	works("ls")
	if err := os.WriteFile(file, before, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := drowse("ls"); err == nil || !strings.Contains(out, file) {
		t.Errorf("the old key: %v, %s; want a refusal that names the file", err, out)
	}
	if err := os.WriteFile(file, after, 0o600); err != nil {
		t.Fatal(err)
	}
	// The harness has the first text.
	c, err := client.New(client.Options{URL: s.client.URL(), APIKey: strings.TrimSpace(string(after)), HTTPClient: httpClient})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.RotateKey(ctx, c, client.SelfKey, apiKey); err != nil {
		t.Fatal(err)
	}

	// A certificate of the same authority, for the same names, is another server's.
	other := filepath.Join(t.TempDir(), "other.pem")
	authority().issue(t, 4, other, other+".key")
	text, err := os.ReadFile(other)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir(), "certificate.pem"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := drowse("ls"); err == nil || !strings.Contains(out, "certificate is not the one") {
		t.Errorf("a stranger's certificate: %v, %s", err, out)
	}
}

// serialOf is the serial number of a certificate in PEM.
func serialOf(t *testing.T, text []byte) int64 {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no certificate in PEM: %q", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert.SerialNumber.Int64()
}
