package secret

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/egress/inject"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

const (
	owner = "key-1"
	value = "the-value-that-nobody-sees"
)

// witness remembers what could not be read.
type witness struct{ failure error }

func (*witness) Used(inject.Use) error         { return nil }
func (*witness) Refused(string, egress.Reason) {}
func (w *witness) Failed(_ string, err error)  { w.failure = err }

type world struct {
	*Vault
	st  *store.SQL
	dir string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	w.reopen(t)
	if err := w.st.AddKey(t.Context(), store.Key{ID: owner, Name: owner}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.st.Close() })
	return w
}

// reopen does what a restart of the server does.
func (w *world) reopen(t *testing.T) {
	t.Helper()
	if w.st != nil {
		if err := w.st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if w.st, err = store.Open(t.Context(), filepath.Join(w.dir, "drowse.db")); err != nil {
		t.Fatal(err)
	}
	if w.Vault, err = Open(t.Context(), w.st, w.dir); err != nil {
		t.Fatal(err)
	}
}

func (w *world) put(t *testing.T, name, value string, hosts ...string) store.Secret {
	t.Helper()
	x, err := w.Set(t.Context(), owner, name, store.SecretRule{Hosts: hosts}, &value)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// lent returns what a sandbox of the owner has of a secret.
func (w *world) lent(names ...string) *Lent {
	var uses []store.SecretUse
	for _, name := range names {
		uses = append(uses, store.SecretUse{Name: name, Placeholder: "placeholder-of-" + name})
	}
	return w.Lend(store.Config{Key: owner, Secrets: uses, Authority: "ab"}, &witness{})
}

func (w *world) valueAt(t *testing.T, l *Lent, host string) string {
	t.Helper()
	list, err := l.For(host, 443)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return ""
	}
	return list[0].Value
}

// TestValues keeps, replaces and removes values over restarts. No file but the
// key's, which is for its owner alone, opens them.
func TestValues(t *testing.T) {
	w := newWorld(t)
	x := w.put(t, "a-token", value, "api.example.com")
	if x.Version != 1 || x.Rule.Env != "A_TOKEN" || x.Sealed != nil {
		t.Errorf("made %+v", x)
	}
	w.put(t, "other", "of-another-host", "*.example.net:8443")
	lent := w.lent("a-token", "other", "nobodys")
	for range 2 {
		if got := w.valueAt(t, lent, "api.example.com"); got != value {
			t.Errorf("the host gets %q", got)
		}
		if got := w.valueAt(t, lent, "example.com"); got != "" {
			t.Errorf("another host gets %q", got)
		}
		if list, err := lent.For("a.b.example.net", 8443); err != nil || len(list) != 1 || list[0].Name != "other" {
			t.Errorf("the wildcard gets %+v, %v", list, err)
		}
		w.reopen(t)
		lent = w.lent("a-token", "other", "nobodys")
	}
	first, err := lent.For("api.example.com", 443)
	if err != nil {
		t.Fatal(err)
	}
	if y, err := w.Rotate(t.Context(), owner, "a-token", "second-value"); err != nil || y.Version != 2 || y.ID != x.ID {
		t.Errorf("rotated %+v, %v", y, err)
	}
	if got := w.valueAt(t, lent, "api.example.com"); got != "second-value" || first[0].Life.Err() != nil {
		t.Errorf("after the rotation: %q, %v", got, first[0].Life.Err())
	}
	if y, err := w.Set(t.Context(), owner, "a-token", store.SecretRule{Hosts: []string{"api.example.org"}}, nil); err != nil || y.Version != 2 {
		t.Errorf("replaced %+v, %v", y, err)
	}
	if first[0].Life.Err() == nil {
		t.Error("what goes on by the old rule does not end")
	}
	if got := w.valueAt(t, lent, "api.example.org") + w.valueAt(t, lent, "api.example.com"); got != "second-value" {
		t.Errorf("under the new rule: %q", got)
	}
	if err := w.Remove(t.Context(), owner, "a-token"); err != nil {
		t.Fatal(err)
	}
	if got := w.valueAt(t, lent, "api.example.org"); got != "" || lent.Takes("api.example.org", 443) {
		t.Errorf("after the end: %q", got)
	}

	info, err := os.Stat(filepath.Join(w.dir, KeyFile))
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("the key has mode %v, %v", info, err)
	}
	files, err := os.ReadDir(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(w.dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []string{value, "second-value", "of-another-host"} {
			if bytes.Contains(data, []byte(v)) || bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString([]byte(v)))) {
				t.Errorf("%s has a value", f.Name())
			}
		}
	}
}

// TestKeyFile opens nothing without the right file, and says so.
func TestKeyFile(t *testing.T) {
	w := newWorld(t)
	w.put(t, "token", value, "api.example.com")
	file := filepath.Join(w.dir, KeyFile)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"missing": func() error { return os.Remove(file) },
		"damaged": func() error { return os.WriteFile(file, []byte("zz"), 0o600) },
		"another": func() error { return os.WriteFile(file, []byte(strings.Repeat("ab", 32)), 0o600) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		w.reopen(t)
		var seen witness
		lent := w.Lend(store.Config{Key: owner, Secrets: []store.SecretUse{{Name: "token"}}}, &seen)
		if list, err := lent.For("api.example.com", 443); err == nil || list != nil {
			t.Errorf("%s: got %+v", name, list)
		}
		if !errdef.Is(seen.failure, errdef.Unavailable) || !strings.Contains(seen.failure.Error(), file) {
			t.Errorf("%s: told %v", name, seen.failure)
		}
		if err := os.WriteFile(file, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.reopen(t)
	if got := w.valueAt(t, w.lent("token"), "api.example.com"); got != value {
		t.Errorf("with the file back: %q", got)
	}
}

// TestSealedIsBound does not open a value in another's place, or an old one.
func TestSealedIsBound(t *testing.T) {
	w := newWorld(t)
	w.put(t, "one", value, "api.example.com")
	w.put(t, "two", "another", "api.example.com")
	all, err := w.st.AllSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	moved := all[1]
	moved.Sealed = all[0].Sealed
	if got, err := w.open(moved); err == nil {
		t.Errorf("moved, it opens as %q", got)
	}
	old := all[0]
	old.Version++
	if got, err := w.open(old); err == nil {
		t.Errorf("as another version, it opens as %q", got)
	}
}

func TestOwners(t *testing.T) {
	w := newWorld(t)
	w.put(t, "token", value, "api.example.com")
	if got := w.Of("key-2"); len(got) != 0 {
		t.Errorf("another key sees %+v", got)
	}
	for _, err := range []error{
		w.Remove(t.Context(), "key-2", "token"),
		second(w.Rotate(t.Context(), "key-2", "token", "x")),
		second(w.Get("key-2", "token")),
		w.Bind(&store.Config{Key: "key-2", Secrets: []store.SecretUse{{Name: "token"}}}),
	} {
		if !errdef.Is(err, errdef.NotFound) {
			t.Errorf("another key: %v", err)
		}
	}
	lent := w.lent("token")
	first, err := lent.For("api.example.com", 443)
	if err != nil {
		t.Fatal(err)
	}
	w.Drop(owner)
	if lent.Takes("api.example.com", 443) || first[0].Life.Err() == nil {
		t.Error("after its key was revoked, a secret is still used")
	}
}

func second[T any](_ T, err error) error { return err }

func TestRefused(t *testing.T) {
	w := newWorld(t)
	good := store.SecretRule{Hosts: []string{"api.example.com"}}
	text := func(s string) *string { return &s }
	header := func(name, text string) store.SecretRule {
		return store.SecretRule{Hosts: good.Hosts, Headers: []store.Insert{{Name: name, Text: text}}}
	}
	for what, c := range map[string]struct {
		name  string
		rule  store.SecretRule
		value *string
	}{
		"no name":           {"", good, text(value)},
		"a path":            {"../x", good, text(value)},
		"an id":             {"SEC_1", good, text(value)},
		"no value":          {"a", good, nil},
		"empty value":       {"a", good, text("")},
		"line break":        {"a", good, text("x\r\nHost: evil.test")},
		"NUL":               {"a", good, text("x\x00")},
		"blank":             {"a", good, text(" x")},
		"no UTF-8":          {"a", good, text("\xff")},
		"large value":       {"a", good, text(strings.Repeat("a", maxValue+1))},
		"no host":           {"a", store.SecretRule{}, text(value)},
		"many hosts":        {"a", store.SecretRule{Hosts: make([]string, maxHosts+1)}, text(value)},
		"address":           {"a", store.SecretRule{Hosts: []string{"203.0.113.1"}}, text(value)},
		"IPv6":              {"a", store.SecretRule{Hosts: []string{"[::1]"}}, text(value)},
		"all":               {"a", store.SecretRule{Hosts: []string{"*"}}, text(value)},
		"top level":         {"a", store.SecretRule{Hosts: []string{"*.com"}}, text(value)},
		"inner wildcard":    {"a", store.SecretRule{Hosts: []string{"a.*.com"}}, text(value)},
		"scheme":            {"a", store.SecretRule{Hosts: []string{"https://api.example.com"}}, text(value)},
		"port 0":            {"a", store.SecretRule{Hosts: []string{"api.example.com:0"}}, text(value)},
		"framing":           {"a", header("Content-Length", "{}"), text(value)},
		"host header":       {"a", header("Host", "{}"), text(value)},
		"no header":         {"a", header("A b", "{}"), text(value)},
		"header break":      {"a", header("A", "{}\n"), text(value)},
		"no mark":           {"a", header("A", "x"), text(value)},
		"two marks":         {"a", header("A", "{}{}"), text(value)},
		"trust variable":    {"a", store.SecretRule{Hosts: good.Hosts, Env: "SSL_CERT_FILE"}, text(value)},
		"variable":          {"a", store.SecretRule{Hosts: good.Hosts, Env: "A=B"}, text(value)},
		"name as variable":  {"1a", good, text(value)},
		"header twice":      {"a", store.SecretRule{Hosts: good.Hosts, Headers: []store.Insert{{Name: "A", Text: "{}"}, {Name: "a", Text: "{}"}}}, text(value)},
		"parameter control": {"a", store.SecretRule{Hosts: good.Hosts, Query: []store.Insert{{Name: "a\n", Text: "{}"}}}, text(value)},
	} {
		_, err := w.Set(t.Context(), owner, c.name, c.rule, c.value)
		if !errdef.Is(err, errdef.Invalid) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if c.value != nil && len(*c.value) > 1 && strings.Contains(err.Error(), *c.value) {
			t.Errorf("%s: the error has the value: %v", what, err)
		}
	}
	for range store.MostSecrets {
		w.put(t, "n"+random(4), value, "a.test")
	}
	if _, err := w.Set(t.Context(), owner, "one-more", good, text(value)); !errdef.Is(err, errdef.Exhausted) {
		t.Errorf("one more: %v", err)
	}
}

func TestBind(t *testing.T) {
	w := newWorld(t)
	w.put(t, "one", value, "a.test")
	w.put(t, "two", value, "b.test")
	c := store.Config{Key: owner, Secrets: []store.SecretUse{{Name: "one"}, {Name: "two", Env: "SECOND"}}}
	asked := c.Secrets
	if err := w.Bind(&c); err != nil {
		t.Fatal(err)
	}
	if asked[0].Placeholder != "" || c.Secrets[0].Env != "ONE" || c.Secrets[1].Env != "SECOND" || c.Secrets[0].Placeholder == c.Secrets[1].Placeholder || c.Authority == "" {
		t.Errorf("bound %+v", c)
	}
	if err := CheckUses(c.Secrets, c.Authority); err != nil {
		t.Errorf("what a create stores, an import refuses: %v", err)
	}
	vars, certificate, err := w.Guest(c)
	if err != nil || vars["ONE"] != c.Secrets[0].Placeholder || !strings.Contains(certificate, "BEGIN CERTIFICATE") {
		t.Errorf("inside are %v, %q, %v", vars, certificate, err)
	}
	w.reopen(t)
	if _, again, err := w.Guest(c); err != nil || again != certificate {
		t.Error("after a restart the authority is another")
	}
	// A fork goes on with its placeholders, whoever owns it.
	fork := c
	fork.Key = "key-2"
	if err := w.Bind(&fork); err != nil || fork.Secrets[0] != c.Secrets[0] || fork.Authority != c.Authority {
		t.Errorf("a fork: %+v, %v", fork, err)
	}
	if got := w.Missing(fork); len(got) != 2 {
		t.Errorf("of a fork of another key %v are missing", got)
	}
	for what, bad := range map[string]store.Config{
		"taken":     {Key: owner, Env: map[string]string{"ONE": "x"}, Secrets: []store.SecretUse{{Name: "one"}}},
		"twice":     {Key: owner, Secrets: []store.SecretUse{{Name: "one"}, {Name: "one", Env: "B"}}},
		"same name": {Key: owner, Secrets: []store.SecretUse{{Name: "one", Env: "A"}, {Name: "two", Env: "A"}}},
		"PATH":      {Key: owner, Secrets: []store.SecretUse{{Name: "one", Env: "PATH"}}},
		"many":      {Key: owner, Secrets: make([]store.SecretUse, maxUses+1)},
	} {
		if err := w.Bind(&bad); !errdef.Is(err, errdef.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, u := range map[string]store.SecretUse{
		"placeholder": {Name: "a", Env: "A", Placeholder: "e"},
		"name":        {Name: "a b", Env: "A", Placeholder: newPlaceholder()},
		"variable":    {Name: "a", Env: "PATH", Placeholder: newPlaceholder()},
	} {
		if CheckUses([]store.SecretUse{u}, "ab") == nil {
			t.Errorf("an import may say %s: %+v", what, u)
		}
	}
}
