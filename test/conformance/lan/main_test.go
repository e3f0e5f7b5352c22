package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func TestAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		kind    dnsmessage.Type
		answers int
		code    dnsmessage.RCode
	}{
		"8000-i0.sbx.test.": {dnsmessage.TypeA, 1, dnsmessage.RCodeSuccess},
		"API.sbx.test.":     {dnsmessage.TypeA, 1, dnsmessage.RCodeSuccess},
		"api.sbx.test.":     {dnsmessage.TypeAAAA, 0, dnsmessage.RCodeSuccess},
		"notsbx.test.":      {dnsmessage.TypeA, 0, dnsmessage.RCodeNameError},
		"example.com.":      {dnsmessage.TypeA, 0, dnsmessage.RCodeNameError},
	} {
		question := dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: c.kind, Class: dnsmessage.ClassINET}
		query, err := (&dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{question}}).Pack()
		if err != nil {
			t.Fatal(err)
		}
		packed, err := answer(query, "sbx.test")
		if err != nil {
			t.Fatal(err)
		}
		var reply dnsmessage.Message
		if err := reply.Unpack(packed); err != nil {
			t.Fatal(err)
		}
		if !reply.Response || reply.ID != 7 || reply.RCode != c.code || len(reply.Answers) != c.answers {
			t.Errorf("%s: got %+v, want %d answers and %v", name, reply, c.answers, c.code)
		}
	}
}

func TestCertify(t *testing.T) {
	dir := t.TempDir()
	if err := certify("sbx.test", dir); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	for name, trusted := range map[string]bool{"api.sbx.test": true, "8000-i0.sbx.test": true, "example.com": false} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots})
		if (err == nil) != trusted {
			t.Errorf("%s: got %v, want trusted %t", name, err, trusted)
		}
	}
}
