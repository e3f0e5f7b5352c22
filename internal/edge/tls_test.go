package edge

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestTickets has clients that offer ALPN resume their TLS session, and others get no
// ticket, which TLS 1.3 would send beside the first answer.
func TestTickets(t *testing.T) {
	f := newFleet(t, echo)
	authority := httptest.NewUnstartedServer(nil)
	authority.StartTLS()
	defer authority.Close()
	url := f.serveWith(t, Options{TLS: &tls.Config{Certificates: authority.TLS.Certificates}})
	for name, c := range map[string]struct {
		version   uint16
		protocols []string
		resumes   bool
	}{
		"TLS 1.3, no ALPN": {tls.VersionTLS13, nil, false},
		"TLS 1.3, ALPN":    {tls.VersionTLS13, []string{"http/1.1"}, true},
		"TLS 1.2, no ALPN": {tls.VersionTLS12, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			cache := tls.NewLRUClientSessionCache(0)
			for _, second := range []bool{false, true} {
				raw, _ := talk(t, url)
				conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, ServerName: "example.test",
					MaxVersion: c.version, NextProtos: c.protocols, ClientSessionCache: cache})
				fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"\r\n")
				if resp, _ := readAnswer(t, bufio.NewReader(conn), "GET"); resp.StatusCode != http.StatusOK {
					t.Errorf("status %d", resp.StatusCode)
				}
				if got, want := conn.ConnectionState().DidResume, second && c.resumes; got != want {
					t.Errorf("second connection %t: resumed %t, want %t", second, got, want)
				}
				if _, has := cache.Get("example.test"); has != c.resumes {
					t.Errorf("has a session to resume: %t, want %t", has, c.resumes)
				}
			}
		})
	}
}

// TestOtherProtocol: a connection of a protocol that is not HTTP is closed after the
// handshake, without a request.
func TestOtherProtocol(t *testing.T) {
	f := newFleet(t, echo)
	authority := httptest.NewUnstartedServer(nil)
	authority.StartTLS()
	defer authority.Close()
	url := f.serveWith(t, Options{TLS: &tls.Config{Certificates: authority.TLS.Certificates, NextProtos: []string{"acme-tls/1"}}})
	raw, _ := talk(t, url)
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"acme-tls/1"}})
	n, err := conn.Read(make([]byte, 1))
	if got := conn.ConnectionState().NegotiatedProtocol; got != "acme-tls/1" || n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("protocol %q, then %d bytes, %v; want the end", got, n, err)
	}
}
