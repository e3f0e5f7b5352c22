package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/serve/certs/certstest"
)

// TestACME has a server get its certificate itself: for its own names over TLS, and then
// for those of sandboxes with a DNS record. It starts, and serves this machine, also
// while the authority is down, and a restart uses the certificate that it has.
func TestACME(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := newServer(t, stateDir(t))
	_, text, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	issuer := certstest.Start(t, port, 90*24*time.Hour)
	overTLS := []string{"--acme-email", "you@example.com", "--acme-directory", issuer.URL, "--acme-ca", issuer.CA, "--domain", domain}
	s.args = overTLS
	local := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(c tls.ConnectionState) error {
		text, err := os.ReadFile(filepath.Join(s.dir(), "certificate.pem"))
		if block, _ := pem.Decode(text); err != nil || block == nil || !bytes.Equal(block.Bytes, c.PeerCertificates[0].Raw) {
			return errors.New("it is not the server's own certificate")
		}
		return nil
	}}}
	t.Cleanup(local.CloseIdleConnections)
	if s.client, err = client.New(client.Options{URL: "https://" + s.addr, APIKey: apiKey, HTTPClient: &http.Client{Transport: local}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.cleanUp)
	get := func(url, want string) error {
		transport := &http.Transport{TLSClientConfig: issuer.Trust(), ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.addr)
		}}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		return expect(&http.Client{Transport: transport}, req, http.StatusOK, want)
	}
	api := "https://api." + domain
	got := func() error { return get(api+"/readyz", "") }

	issuer.Down.Store(true)
	s.start()
	if err := got(); err == nil {
		t.Error("there is a certificate before the authority is asked")
	}
	eventually(t, 10*time.Second, "the log says why clients are refused", func() error {
		if text := s.log.tail(100); !strings.Contains(text, "TLS clients are refused: there is no certificate yet") {
			return errors.New(text)
		}
		return nil
	})
	issuer.Down.Store(false)
	eventually(t, 30*time.Second, "there is a certificate", got)
	g := &guest{s: s, sb: s.create(ctx, client.CreateOptions{})}
	g.upload(ctx)
	p, err := g.sb.Start(ctx, client.Command{Args: []string{"./guest", "serve"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	byPath := api + "/s/" + g.sb.ID + "/" + strconv.Itoa(guestPort) + "/hits"
	eventually(t, 10*time.Second, "the guest is reached by path", func() error { return get(byPath, "") })
	link, err := s.client.CreatePreview(ctx, g.sb.ID, client.PreviewOptions{Port: guestPort})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(link.URL, "https://"+s.addr+"/s/") {
		t.Errorf("a preview link is %s, and not by path", link.URL)
	}
	for _, url := range []string{"https://" + domain + "/readyz", "https://sandbox." + domain + "/readyz"} {
		if err := get(url, ""); err != nil {
			t.Error(err)
		}
	}
	inside := "https://" + g.host(guestPort) + "/hits"
	if err := get(inside, ""); err == nil || !strings.Contains(err.Error(), "certificate is valid for") {
		t.Errorf("by host name, without a certificate for it: %v", err)
	}

	issuer.Down.Store(true)
	s.crash()
	s.start()
	if err := got(); err != nil || issuer.Orders() != 1 {
		t.Errorf("after a crash, without the authority: %v, %d orders", err, issuer.Orders())
	}
	if out, err := exec.CommandContext(ctx, drowseBinary, "ls", "--state-dir", s.dir()).CombinedOutput(); err != nil || !strings.Contains(string(out), g.sb.ID) {
		t.Errorf("root's command line: %v, %s", err, out)
	}

	issuer.Down.Store(false)
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s.args = append(overTLS, "--acme-dns-hook", issuer.Hook)
	s.start()
	if err := got(); err != nil {
		t.Errorf("while another certificate is asked for: %v", err)
	}
	eventually(t, 30*time.Second, "the sandbox's name has a certificate", func() error { return get(inside, "") })
	if err := got(); err != nil || len(issuer.Records("_acme-challenge."+domain)) > 0 {
		t.Errorf("%v, left in the DNS: %v", err, issuer.Records("_acme-challenge."+domain))
	}
}
