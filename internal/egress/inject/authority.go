package inject

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"sync"
	"time"
)

// Authority signs the certificates that the programs in one sandbox see of the
// hosts whose connections are opened. Its key follows from a seed, so that it is
// the same after every wake, and is stored nowhere. It is safe for concurrent use.
type Authority struct {
	PEM string // its certificate

	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	mu     sync.Mutex
	leaf   *ecdsa.PrivateKey // of all leaves; made with the first
	leaves map[string]*tls.Certificate
}

// The lives of certificates. A leaf is made anew when half of its life is over.
const (
	leafLife  = 14 * 24 * time.Hour
	leafSkew  = time.Hour // a clock inside may be behind
	maxLeaves = 256
)

// NewAuthority returns the authority of a name. The seed must be secret.
func NewAuthority(seed []byte, name string) (*Authority, error) {
	key, err := derive(seed, name)
	if err != nil {
		return nil, err
	}
	serial := sha256.Sum256([]byte("serial " + name))
	template := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(serial[:16]),
		Subject:               pkix.Name{CommonName: "drowse sandbox " + name, Organization: []string{"drowse"}},
		NotBefore:             time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:              time.Date(2049, 12, 31, 0, 0, 0, 0, time.UTC),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), steady{key})
	if err != nil {
		return nil, fmt.Errorf("certificate authority of a sandbox: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate authority of a sandbox: %w", err)
	}
	return &Authority{
		PEM:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		cert: cert, key: key, leaves: map[string]*tls.Certificate{},
	}, nil
}

// derive returns the key of a name. One in 2^32 candidates is no key.
func derive(seed []byte, name string) (*ecdsa.PrivateKey, error) {
	for n := byte(0); ; n++ {
		text, err := hkdf.Key(sha256.New, seed, []byte{n}, "drowse certificate authority "+name, 32)
		if err != nil {
			return nil, err
		}
		key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), text)
		if err == nil || n == 255 {
			return key, err
		}
	}
}

// steady signs without chance, so that the certificate is the same every time.
type steady struct{ *ecdsa.PrivateKey }

// Sign implements crypto.Signer.
func (s steady) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return s.PrivateKey.Sign(nil, digest, opts)
}

// Leaf returns the certificate of a host, with its key.
func (a *Authority) Leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if leaf := a.leaves[host]; leaf != nil && now.Before(leaf.Leaf.NotAfter.Add(-leafLife/2)) {
		return leaf, nil
	}
	if a.leaf == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		a.leaf = key
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"drowse"}}, DNSNames: []string{host},
		NotBefore: now.Add(-leafSkew), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leaf.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", host, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", host, err)
	}
	if len(a.leaves) >= maxLeaves { // a wildcard has hosts without end
		clear(a.leaves)
	}
	made := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leaf, Leaf: leaf}
	a.leaves[host] = made
	return made, nil
}
