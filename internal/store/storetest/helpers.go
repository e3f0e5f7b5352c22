package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// sandbox returns a small record; n tells its commits apart.
func sandbox(id string, n int64) store.Sandbox {
	return store.Sandbox{
		ID:     id,
		Config: store.Config{Template: "base"},
		Record: lifecycle.Record{State: lifecycle.Running, Generation: n, CreatedAt: epoch},
	}
}

func terminated(id string) store.Sandbox {
	sb := sandbox(id, 1)
	sb.Record.State = lifecycle.Terminated
	sb.Record.Tombstone = &lifecycle.Tombstone{Reason: lifecycle.Killed, At: epoch}
	return sb
}

func entry(n int64) lifecycle.Entry {
	return lifecycle.Entry{Type: lifecycle.EntryRunning, At: epoch, Generation: n}
}

func key(n byte, at time.Time) store.Key {
	return store.Key{
		ID:        fmt.Sprintf("key-%d", n),
		Name:      fmt.Sprintf("name %d", n),
		Hash:      [32]byte{n, 31: n},
		Prefix:    "e2b_",
		Suffix:    "beef",
		CreatedAt: at,
	}
}

// commit commits a record, whatever revision the store has of it.
func commit(t *testing.T, s store.Store, sb store.Sandbox, entries ...lifecycle.Entry) {
	t.Helper()
	if err := s.Commit(t.Context(), latest(t, s, sb), entries); err != nil {
		t.Fatal(err)
	}
}

// latest returns a record with the revision that the store has of it.
func latest(t *testing.T, s store.Store, sb store.Sandbox) store.Sandbox {
	t.Helper()
	all, err := s.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sb.Rev = 0
	for _, x := range all {
		if x.ID == sb.ID {
			sb.Rev = x.Rev
		}
	}
	return sb
}

func forget(t *testing.T, s store.Store, id string) {
	t.Helper()
	if err := s.Forget(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// toLimits gives a key other limits, whichever it has.
func toLimits(l store.KeyLimits) func(*store.KeyLimits) error {
	return func(has *store.KeyLimits) error {
		*has = l
		return nil
	}
}

func addKey(t *testing.T, s store.Store, k store.Key) {
	t.Helper()
	if err := s.AddKey(t.Context(), k); err != nil {
		t.Fatal(err)
	}
}

func volume(name string, at time.Time) store.Volume {
	return store.Volume{ID: "id-" + name, Name: name, CreatedAt: at}
}

func addVolume(t *testing.T, s store.Store, v store.Volume) {
	t.Helper()
	if err := s.AddVolume(t.Context(), v); err != nil {
		t.Fatal(err)
	}
}

func volumes(t *testing.T, s store.Store) []store.Volume {
	t.Helper()
	all, err := s.Volumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// sandboxes returns all records, without their revisions.
func sandboxes(t *testing.T, s store.Store) []store.Sandbox {
	t.Helper()
	all, err := s.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].Rev == 0 {
			t.Errorf("sandbox %s has no revision", all[i].ID)
		}
		all[i].Rev = 0
	}
	return all
}

func events(t *testing.T, s store.Store, sandbox string, after int64, limit int) []store.Event {
	t.Helper()
	some, err := s.Events(t.Context(), sandbox, after, limit)
	if err != nil {
		t.Fatal(err)
	}
	return some
}

func keys(t *testing.T, s store.Store) []store.Key {
	t.Helper()
	all, err := s.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func secret(t *testing.T, s store.Store, name string) []byte {
	t.Helper()
	value, err := s.Secret(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func wantClass(t *testing.T, want errdef.Class, do func() error) {
	t.Helper()
	if err := do(); !errdef.Is(err, want) {
		t.Errorf("got error %v of class %q, want class %q", err, errdef.ClassOf(err), want)
	}
}

// only returns the single element of all.
func only[T any](t *testing.T, all []T) T {
	t.Helper()
	if len(all) != 1 {
		t.Fatalf("%d elements, want one: %+v", len(all), all)
	}
	return all[0]
}

func generations(events []store.Event) []int64 {
	var all []int64
	for _, e := range events {
		all = append(all, e.Generation)
	}
	return all
}

func sorted(all []store.Sandbox) []store.Sandbox {
	return slices.SortedFunc(slices.Values(all), func(a, b store.Sandbox) int { return strings.Compare(a.ID, b.ID) })
}
