package cluster

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"
)

// identity is how the servers of one database know each other. Each makes itself a
// certificate when it starts, of an authority whose key comes from a secret in the
// database: whoever can read that is one of them.
type identity struct {
	own       tls.Certificate
	authority *x509.CertPool
}

// always is when certificates are good: the clocks of the machines may differ, and what
// they prove ends with the secret.
var always = struct{ from, until time.Time }{
	time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
}

// newIdentity returns that of a server, from the 32 bytes of the secret.
func newIdentity(secret []byte, server string) (identity, error) {
	signer := ed25519.NewKeyFromSeed(secret)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "servers of one database"},
		NotBefore: always.from, NotAfter: always.until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, signer.Public(), signer)
	if err != nil {
		return identity{}, fmt.Errorf("make the authority of servers: %w", err)
	}
	if authority, err = x509.ParseCertificate(der); err != nil {
		return identity{}, fmt.Errorf("make the authority of servers: %w", err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return identity{}, fmt.Errorf("make the certificate of server %s: %w", server, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return identity{}, fmt.Errorf("make the certificate of server %s: %w", server, err)
	}
	der, err = x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: server}, DNSNames: []string{server},
		NotBefore: always.from, NotAfter: always.until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, authority, public, signer)
	if err != nil {
		return identity{}, fmt.Errorf("make the certificate of server %s: %w", server, err)
	}
	i := identity{own: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, authority: x509.NewCertPool()}
	i.authority.AddCert(authority)
	return i, nil
}

// listening is for connections that other servers make. Without tickets, nothing comes
// after the handshake that nobody has asked for.
func (i identity) listening() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{i.own}, NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: i.authority, SessionTicketsDisabled: true,
	}
}

// dialing is for a connection to another server.
func (i identity) dialing(server, protocol string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{i.own}, NextProtos: []string{protocol},
		RootCAs: i.authority, ServerName: server,
	}
}
