package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/serve/certs/certstest"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const domain = "sandboxes.test"

// world is a keeper's, which may be started more than once.
type world struct {
	*certstest.Authority
	t   *testing.T
	o   Options
	log *logged
}

type logged struct{ testmode.Output }

func (l *logged) has(text string) bool { return strings.Contains(l.String(), text) }

func newWorld(t *testing.T, port int, lives time.Duration) *world {
	w := &world{Authority: certstest.Start(t, port, lives), t: t, log: &logged{}}
	w.o = Options{
		Dir: filepath.Join(t.TempDir(), "acme"), Email: "you@example.com", Domain: domain, Directory: w.URL, CA: w.CA,
		Log: slog.New(slog.NewTextHandler(w.log, nil)),
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
	return w
}

// open opens a keeper that does not wait long.
func (w *world) open() *Keeper {
	w.t.Helper()
	if err := w.o.Check(); err != nil {
		w.t.Fatal(err)
	}
	k, err := Open(w.o)
	if err != nil {
		w.t.Fatal(err)
	}
	k.retry, k.refusal = 10*time.Millisecond, 50*time.Millisecond
	k.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", w.DNS)
	}}
	return k
}

// withHook opens a keeper that proves the domain by the authority's DNS.
func (w *world) withHook() *Keeper {
	w.t.Helper()
	w.o.Hook = w.Hook
	_, port, err := net.SplitHostPort(w.DNS)
	if err != nil {
		w.t.Fatal(err)
	}
	k := w.open()
	k.dnsPort = port
	return k
}

// run runs a keeper until stop is called.
func run(t *testing.T, k *Keeper) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// hello is what a client of HTTPS asks for a name.
func hello(name string) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{ServerName: name, SupportedProtos: []string{"h2", "http/1.1"}}
}

// TestRenewed gets a certificate over TLS alone, renews it under an open connection,
// and uses the last one after a restart, without the authority.
func TestRenewed(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, ln.Addr().(*net.TCPAddr).Port, 5*time.Second)
	k := w.open()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) }))
	_ = server.Listener.Close()
	server.Listener = ln
	server.TLS = &tls.Config{GetCertificate: k.Get, NextProtos: append([]string{"http/1.1"}, k.Protocols()...)}
	server.Config.ErrorLog = slog.NewLogLogger(w.o.Log.Handler(), slog.LevelDebug)
	server.StartTLS()
	t.Cleanup(server.Close)
	stop := run(t, k)
	testmode.Eventually(t, "there is a certificate", func() bool { return !k.Ends().IsZero() })

	trust := w.Trust()
	trust.Time = func() time.Time { return k.Ends().Add(-time.Second) } // a slow machine's clients would come too late
	transport := &http.Transport{TLSClientConfig: trust, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, ln.Addr().String())
	}}
	t.Cleanup(transport.CloseIdleConnections)
	ask := func(name string) string {
		t.Helper()
		resp, err := (&http.Client{Transport: transport}).Get("https://" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var from bytes.Buffer
		if _, err := from.ReadFrom(resp.Body); err != nil {
			t.Fatal(err)
		}
		return from.String()
	}
	before := ask("api." + domain)
	ask(domain)
	ask("sandbox." + domain)
	first := k.Ends()
	testmode.Eventually(t, "the certificate is renewed", func() bool { return k.Ends().After(first) })
	if again := ask("api." + domain); again != before {
		t.Errorf("the connection of %s is now that of %s", before, again)
	}
	stop()

	w.Down.Store(true)
	orders, ends := w.Orders(), k.Ends()
	k = w.open()
	pair, err := k.Get(hello(domain))
	if err != nil || !pair.Leaf.NotAfter.Equal(ends) {
		t.Fatalf("after a restart: %v, %v", pair, err)
	}
	if w.Orders() != orders {
		t.Error("the authority was asked again")
	}
	info, err := os.Stat(w.o.Dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info, err)
	}
}

// TestWildcard gets a certificate for all names below the domain with a program that
// sets DNS records, from an authority that is there only later, and leaves no record.
func TestWildcard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0, 90*24*time.Hour)
	w.Down.Store(true)
	k := w.withHook()
	// A record of a server that was killed.
	k.note([]record{{"_acme-challenge." + domain, "left"}})
	k = w.withHook()
	stop := run(t, k)
	testmode.Eventually(t, "an attempt fails", func() bool { return w.log.has("no certificate was obtained") })
	if _, err := k.Get(hello("api." + domain)); err == nil || !w.log.has("TLS clients are refused") {
		t.Errorf("without a certificate: %v", err)
	}
	w.Down.Store(false)
	testmode.Eventually(t, "there is a certificate", func() bool { return !k.Ends().IsZero() })
	stop()
	pair, err := k.Get(hello("8000-i1abc." + domain))
	if err != nil || !slices.Contains(pair.Leaf.DNSNames, "*."+domain) || pair.Leaf.VerifyHostname(domain) != nil {
		t.Fatalf("%v, %v", pair, err)
	}
	calls, err := os.ReadFile(w.Calls)
	if err != nil || strings.Count(string(calls), "set ") != 2 || strings.Count(string(calls), "remove ") != 3 || !strings.HasPrefix(string(calls), "remove _acme-challenge."+domain+" left\n") {
		t.Errorf("the program was called with %s, %v", calls, err)
	}
	var left []record
	if _, err := k.read(recordsFile, &left); err != nil || len(left) > 0 {
		t.Errorf("noted are %v, %v", left, err)
	}
	if w.log.has("are not known here") || w.log.has("is not at all name servers") {
		t.Error("the record was not seen")
	}

	// What was stored for other names, or by another authority, is not used.
	for what, o := range map[string]Options{
		"another domain":    {Domain: "other.test", Directory: w.URL},
		"another authority": {Domain: domain, Directory: w.URL + "2"},
	} {
		o.Dir, o.Hook, o.Log = w.o.Dir, w.Hook, w.o.Log
		if k, err := Open(o); err != nil || !k.Ends().IsZero() {
			t.Errorf("%s: %v, until %v", what, err, k.Ends())
		}
	}

	// The authority says when to renew, and hears which certificate is replaced.
	k.asked = time.Time{} // when it was stopped, it may have been about to
	if k.due(t.Context()); !k.renewal.HasWindow() {
		t.Error("the authority was not asked when to renew")
	}
	if err := k.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, _ := k.Get(hello(domain)); again == pair || k.refused {
		t.Error("the certificate was not replaced")
	}
	// One that knows nothing of it gets an order like the first.
	k.due(t.Context())
	w.Forget()
	if err := k.renew(t.Context()); err == nil || !k.refused {
		t.Errorf("an unknown certificate was replaced: %v", err)
	}
	if err := k.renew(t.Context()); err != nil {
		t.Fatal(err)
	}

	// The authority has lost the account, and files of the server are damaged.
	w.Forget()
	k = w.withHook()
	if k.account == nil || k.in() == nil {
		t.Fatal("nothing was stored")
	}
	if err := k.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{accountFile, certificateFile, recordsFile} {
		if err := os.WriteFile(filepath.Join(w.o.Dir, name), []byte(`{"directory":"`+w.URL+`","email":"you@example.com"`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k = w.withHook()
	if k.in() != nil {
		t.Error("a damaged certificate is used")
	}
	if err := k.renew(t.Context()); err != nil {
		t.Fatal(err)
	}

	// The operator's program fails, and says why.
	if err := os.WriteFile(w.Hook, []byte("#!/bin/sh\necho no such zone >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	until := k.Ends()
	noted := []record{}
	err = k.renew(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such zone") {
		t.Errorf("the program failed: %v", err)
	}
	if !k.Ends().Equal(until) {
		t.Error("the certificate in use changed")
	}
	if _, err := k.read(recordsFile, &noted); err != nil || len(noted) != 1 {
		t.Errorf("noted are %v, %v; want the record that may be there", noted, err)
	}
}

// TestRest: a new certificate that is due at once is not renewed at once.
func TestRest(t *testing.T) {
	t.Parallel()
	const lives = 90 * 24 * time.Hour
	w := newWorld(t, 0, lives)
	k := w.withHook()
	if err := k.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	leaf := k.in().pair.Leaf
	says := func(from, to time.Time) {
		k.asked = time.Now()
		k.renewal.SuggestedWindow.Start, k.renewal.SuggestedWindow.End, k.renewal.SelectedTime = from, to, from
	}
	soon := time.Now().Add(23 * time.Hour)
	says(leaf.NotBefore.Add(-time.Hour), leaf.NotBefore.Add(time.Second))
	if due := k.due(t.Context()); due.Before(soon) {
		t.Errorf("the authority wants it renewed at once: due at %s", due)
	}
	says(leaf.NotBefore.Add(-time.Hour), leaf.NotBefore.Add(-time.Minute))
	if due := k.due(t.Context()); due.Before(leaf.NotBefore.Add(lives / 2)) {
		t.Errorf("the authority speaks of a time before the certificate: due at %s", due)
	}
	says(time.Time{}, time.Time{})
	leaf.NotBefore, leaf.NotAfter = leaf.NotBefore.Add(-lives), leaf.NotAfter.Add(-lives)
	if due := k.due(t.Context()); due.Before(soon) || !w.log.has("compare this machine's clock") {
		t.Errorf("the clock is ahead: due at %s", due)
	}
	k.rest = time.Time{}
	if due := k.due(t.Context()); due.After(time.Now()) {
		t.Errorf("after the rest it is due at %s", due)
	}
}

// TestFullDisk: a disk that refuses all files keeps no certificate from being used, and
// no record in the DNS. One account is enough.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0, time.Hour)
	k := w.withHook()
	for _, name := range []string{accountFile, certificateFile, recordsFile} {
		if err := os.Mkdir(filepath.Join(w.o.Dir, name+".new"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var locations []string
	for range 2 {
		if err := k.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		locations = append(locations, k.account.Location)
	}
	if locations[0] != locations[1] {
		t.Errorf("the accounts are %s", locations)
	}
	if left := w.Records("_acme-challenge." + domain); len(left) > 0 || len(k.records) > 0 {
		t.Errorf("in the DNS are %s, remembered are %v", left, k.records)
	}
	for _, what := range []string{"the account at the certificate authority", "the certificate", "the list of DNS records"} {
		if !w.log.has(what+" is used and could not be saved") && !w.log.has(what+" that are to be removed could not be saved") {
			t.Errorf("the log does not say that %s could not be saved", what)
		}
	}
}

// TestDeactivated: an account that the authority does not take any more is replaced. One
// that could not prove the domain is not.
func TestDeactivated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0, time.Hour)
	k := w.withHook()
	if err := k.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := k.account.Location
	who, err := k.account.acme()
	if err != nil {
		t.Fatal(err)
	}
	client := k.client()
	if _, err := client.GetDirectory(t.Context()); err != nil {
		t.Fatal(err)
	}
	who.Status = acme.StatusDeactivated
	if _, err := client.UpdateAccount(t.Context(), who); err != nil {
		t.Fatal(err)
	}
	if err := k.renew(t.Context()); err != nil || k.account.Location == first || !w.log.has("does not take this server's account") {
		t.Fatalf("the account was %s, is %s: %v", first, k.account.Location, err)
	}
	second := k.account.Location
	if k = w.withHook(); k.account == nil || k.account.Location != second {
		t.Fatalf("the account %s was not stored", second)
	}

	// The operator's program sets nothing, and nobody waits for it.
	if err := os.WriteFile(w.Hook, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	k.resolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no network") }}
	err = k.renew(t.Context())
	problem, _ := errors.AsType[acme.Problem](err)
	if problem.Type != acme.ProblemTypeUnauthorized || k.account.Location != second {
		t.Errorf("%v, the account was %s, is %s", err, second, k.account.Location)
	}
}

// TestLeftovers: a record that cannot be removed keeps no other from it, and is
// remembered, on a full disk too.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0, time.Hour)
	k := w.withHook()
	if err := os.WriteFile(w.Hook, []byte("#!/bin/sh\n[ $3 != stuck ]\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(w.o.Dir, recordsFile+".new"), 0o700); err != nil {
		t.Fatal(err)
	}
	stuck := record{domain, "stuck"}
	k.note([]record{{domain, "first"}, stuck, {domain, "last"}})
	k.removeLeftovers(t.Context())
	if !slices.Equal(k.records, []record{stuck}) {
		t.Errorf("left are %v", k.records)
	}
}

// TestStop: a server that stops ends the operator's program, and the next one removes
// the record that may be there.
func TestStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0, time.Hour)
	w.o.Hook = w.Hook
	script, err := os.ReadFile(w.Hook)
	if err == nil {
		err = os.WriteFile(w.Hook, append(script, "sleep 1000\n"...), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, w.open())
	testmode.Eventually(t, "the record is set", func() bool { return len(w.Records("_acme-challenge."+domain)) == 1 })
	stop() // or the test takes too long
	if err := os.WriteFile(w.Hook, script, 0o700); err != nil {
		t.Fatal(err)
	}
	w.Down.Store(true)
	run(t, w.open())
	testmode.Eventually(t, "the record is gone", func() bool { return len(w.Records("_acme-challenge."+domain)) == 0 })
}

// TestHookSeesNoKey: what the operator's program gets of the server's environment.
func TestHookSeesNoKey(t *testing.T) {
	t.Setenv("DROWSE_API_KEY", "hidden")
	t.Setenv("DNS_TOKEN", "shown")
	file := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(file, []byte("#!/bin/sh\nseq 10000\nenv\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	k := &Keeper{o: Options{Hook: file}}
	err := k.run(t.Context(), "set", record{"name", "value"})
	if err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "DNS_TOKEN=shown") || len(err.Error()) > 2*mostSaid {
		t.Errorf("the program says %v", err)
	}
}

// TestHookTakesTooLong ends the operator's program, with what it has started.
func TestHookTakesTooLong(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(file, []byte("#!/bin/sh\nsleep 1000 &\necho waiting for $! now\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	k := &Keeper{o: Options{Hook: file}}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	err := k.run(ctx, "set", record{"name", "value"})
	if err == nil || time.Since(begin) > testmode.Scaled(10*time.Second) {
		t.Fatalf("%v after %s", err, time.Since(begin))
	}
	_, text, _ := strings.Cut(err.Error(), "waiting for ")
	text, _, _ = strings.Cut(text, " ")
	child, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) })
	testmode.Eventually(t, "what it has started is gone", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

// TestCheck says what is wrong before anything is changed.
func TestCheck(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"--acme-ca":                {CA: file},
		"no such file":             {CA: file + "2"},
		"the path is not absolute": {Hook: "true"},
		"cannot run " + file:       {Hook: file},
		"--acme-dns-hook":          {Hook: file + "2"},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error()+remedy(err), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

func remedy(err error) string {
	e, _ := errors.AsType[*errdef.Error](err)
	return e.Remedy
}
