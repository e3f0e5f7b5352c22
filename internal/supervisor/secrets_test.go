package supervisor

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// TestSecretsAcrossKeys holds that a sandbox which comes from another API key's, or
// from a file, gets no secrets of the key that it belongs to then, unless that says
// so. The key has secrets of the same names.
func TestSecretsAcrossKeys(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	const tenant, admin = "tenant", "admin"
	for i, key := range []string{tenant, admin} {
		if err := s.o.Store.AddKey(t.Context(), store.Key{ID: key, Name: key, Hash: [32]byte{byte(i)}}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"one", "two"} {
			value := "value of " + key
			if _, err := s.o.World.Secrets.Set(t.Context(), key, name, store.SecretRule{Hosts: []string{"api.example.com"}}, &value); err != nil {
				t.Fatal(err)
			}
		}
	}
	source := create(t, s, CreateRequest{Config: store.Config{Key: tenant, Secrets: []store.SecretUse{{Name: "one"}, {Name: "two"}}}})
	placeholders := map[string]string{}
	for _, u := range s.boxes[source].snapshot().Config.Secrets {
		placeholders[u.Name] = u.Placeholder
	}
	// lent returns which secrets a sandbox gets, and in place of which text.
	lent := func(sb store.Sandbox) string {
		t.Helper()
		for _, u := range sb.Config.Secrets {
			if u.Placeholder != placeholders[u.Name] {
				t.Errorf("the placeholder of %s was %q and is %q", u.Name, placeholders[u.Name], u.Placeholder)
			}
		}
		list, err := s.o.World.Secrets.Lend(sb.Config, nil).For("api.example.com", 443)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, x := range list {
			got = append(got, x.Name+": "+x.Value)
		}
		return fmt.Sprint(got)
	}
	fork := func(key, of string) store.Sandbox {
		t.Helper()
		children, err := s.Fork(t.Context(), of, ForkRequest{Count: 1, Key: key})
		if err != nil || children[0].Err != nil {
			t.Fatal(err, children)
		}
		return children[0].Sandbox
	}
	snap, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{Key: admin})
	if err != nil {
		t.Fatal(err)
	}
	from := func(key string, asked ...store.SecretUse) store.Sandbox {
		t.Helper()
		sb, err := s.Create(t.Context(), CreateRequest{Snapshot: snap.ID, Settings: lifecycle.Settings{OnTimeout: lifecycle.Kill}, Config: store.Config{Key: key, Secrets: asked}})
		if err != nil {
			t.Fatal(err)
		}
		return sb
	}
	if err := s.Pause(t.Context(), source, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	file := exportOf(t, s, source)
	arrived := func(key string, allowed bool) store.Sandbox {
		t.Helper()
		sb, err := s.Import(t.Context(), bytes.NewReader(file), ImportRequest{NewID: true, Key: key, Secrets: allowed})
		if err != nil {
			t.Fatal(err)
		}
		return sb
	}
	const none, its, admins = "[]", "[one: value of tenant two: value of tenant]", "[one: value of admin two: value of admin]"
	other := fork(admin, source)
	for about, c := range map[string]struct{ got, want string }{
		"a fork of the key":                     {lent(fork(tenant, source)), its},
		"a fork of another":                     {lent(other), none},
		"a fork of that":                        {lent(fork(admin, other.ID)), none},
		"from a snapshot":                       {lent(from(tenant)), its},
		"from a snapshot of another":            {lent(from(admin)), none},
		"from a snapshot of another, with one":  {lent(from(admin, store.SecretUse{Name: "two"})), "[two: value of admin]"},
		"an import":                             {lent(arrived(tenant, false)), none},
		"an import that may":                    {lent(arrived(tenant, true)), its},
		"an import of another's, which may too": {lent(arrived(admin, true)), admins},
	} {
		if c.got != c.want {
			t.Errorf("%s gets %s, want %s", about, c.got, c.want)
		}
	}
}
