// Command lan is what the network of a private installation has: a certificate
// authority of its own, a certificate for a wildcard domain, and a name server
// that sends all of the domain to 127.0.0.1 and knows nothing else.
//
// It writes ca.pem, cert.pem and key.pem into a directory, and then serves DNS
// at 127.0.0.1:53 until it is killed.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func main() {
	domain := flag.String("domain", "sbx.test", "the `domain`")
	dir := flag.String("dir", ".", "the `directory` to write certificates into")
	flag.Parse()
	if err := run(*domain, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "lan:", err)
		os.Exit(1)
	}
}

func run(domain, dir string) error {
	conn, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := certify(domain, dir); err != nil {
		return err
	}
	query := make([]byte, 512)
	for {
		n, from, err := conn.ReadFrom(query)
		if err != nil {
			return err
		}
		if reply, err := answer(query[:n], domain); err == nil {
			_, _ = conn.WriteTo(reply, from)
		}
	}
}

// certify writes an authority's certificate, and one that it has issued for the
// domain and all names below it, with its key.
func certify(domain, dir string) error {
	authority := certificate(1, "drowse conformance")
	authority.IsCA, authority.BasicConstraintsValid = true, true
	authority.KeyUsage = x509.KeyUsageCertSign
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leaf := certificate(2, domain)
	leaf.DNSNames = []string{domain, "*." + domain}
	leaf.KeyUsage, leaf.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		return err
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, authority, &leafKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	for _, f := range []struct{ name, kind, der string }{
		{"ca.pem", "CERTIFICATE", string(authorityDER)},
		{"key.pem", "PRIVATE KEY", string(private)},
		{"cert.pem", "CERTIFICATE", string(leafDER)},
	} {
		text := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: []byte(f.der)})
		if err := os.WriteFile(filepath.Join(dir, f.name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func certificate(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

// answer is the reply to a query.
func answer(query []byte, domain string) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := p.Question()
	if err != nil {
		return nil, err
	}
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired},
		Questions: []dnsmessage.Question{question},
	}
	name := strings.ToLower(strings.TrimSuffix(question.Name.String(), "."))
	switch {
	case name != domain && !strings.HasSuffix(name, "."+domain):
		reply.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA:
		reply.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 60},
			Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
		}}
	}
	return reply.Pack()
}
