// Package certstest has a certificate authority that speaks ACME, with the DNS that it
// looks at, all on loopback.
package certstest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

// Authority is pebble, the authority that Let's Encrypt has for tests.
type Authority struct {
	URL   string      // of its directory
	CA    string      // PEM file with who vouches for that URL
	Hook  string      // program that sets records of its DNS
	Calls string      // file with what Hook was called with, a line each
	DNS   string      // address of its DNS, over TCP
	Down  atomic.Bool // it breaks off every connection
	now   atomic.Pointer[state]
	tls   int
	lives time.Duration
	order atomic.Int32
}

type state struct {
	handler http.Handler
	roots   *x509.CertPool
}

var quick = sync.OnceFunc(func() {
	for name, value := range map[string]string{"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_AUTHZREUSE": "0"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
})

// Start starts an authority that asks for challenges at a port of this machine, and
// whose certificates live for a time.
func Start(t testing.TB, tlsPort int, lives time.Duration) *Authority {
	t.Helper()
	quick()
	dir := t.TempDir()
	a := &Authority{CA: filepath.Join(dir, "ca.pem"), Hook: filepath.Join(dir, "hook"), Calls: filepath.Join(dir, "calls"), tls: tlsPort, lives: lives}
	a.startDNS(t)
	a.Forget()
	server := httptest.NewUnstartedServer(http.HandlerFunc(a.serve))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	a.URL = server.URL + wfe.DirectoryPath
	vouches := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\n", a.Calls)
	for name, content := range map[string][]byte{a.CA: vouches, a.Hook: []byte(script)} {
		if err := os.WriteFile(name, content, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// Forget makes the authority another one, which knows no account.
func (a *Authority) Forget() {
	silent := log.New(io.Discard, "", 0)
	records := db.NewMemoryStore()
	issuer := ca.New(silent, records, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: uint64(a.lives.Seconds())}})
	front := wfe.New(silent, records, va.New(silent, 0, a.tls, false, a.DNS, records), issuer, []string{"pebble.test"}, false, false, 0, 0)
	roots := x509.NewCertPool()
	roots.AddCert(issuer.GetRootCert(0).Cert)
	a.now.Store(&state{front.Handler(), roots})
}

func (a *Authority) serve(w http.ResponseWriter, r *http.Request) {
	if a.Down.Load() {
		panic(http.ErrAbortHandler)
	}
	if r.Method == http.MethodPost && r.URL.Path == "/order-plz" {
		a.order.Add(1)
	}
	a.now.Load().handler.ServeHTTP(w, r)
}

// Orders is how many certificates were asked for.
func (a *Authority) Orders() int { return int(a.order.Load()) }

// Trust is the configuration of a client that trusts what the authority issued.
func (a *Authority) Trust() *tls.Config { return &tls.Config{RootCAs: a.now.Load().roots} }

// Records are the values of a name in the DNS.
func (a *Authority) Records(name string) (values []string) {
	text, err := os.ReadFile(a.Calls)
	if err != nil {
		return nil
	}
	removed := map[string]bool{}
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) != 3 || f[1] != name {
			continue
		}
		if f[0] == "remove" {
			removed[f[2]] = true
		} else {
			values = append(values, f[2])
		}
	}
	kept := values[:0]
	for _, v := range values {
		if !removed[v] {
			kept = append(kept, v)
		}
	}
	return kept
}

// startDNS answers for all names: with this machine's address, what Hook has set, and
// one name server.
func (a *Authority) startDNS(t testing.TB) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.DNS = ln.Addr().String()
	server := &dns.Server{Listener: ln, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, asked *dns.Msg) {
		m := new(dns.Msg).SetReply(asked)
		m.Authoritative = true
		q := asked.Question[0]
		head := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET}
		switch q.Qtype {
		case dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: head, A: net.IPv4(127, 0, 0, 1)})
		case dns.TypeNS:
			m.Answer = append(m.Answer, &dns.NS{Hdr: head, Ns: "ns." + q.Name})
		case dns.TypeTXT:
			for _, v := range a.Records(strings.TrimSuffix(q.Name, ".")) {
				m.Answer = append(m.Answer, &dns.TXT{Hdr: head, Txt: []string{v}})
			}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
}
