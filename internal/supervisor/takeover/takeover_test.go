package takeover

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor/replication"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// late is a store in which something happens after it was read which sandboxes others have.
type late struct {
	store.Store
	then func()
}

func (l late) Others(ctx context.Context) (map[string]string, error) {
	all, err := l.Store.Others(ctx)
	l.then()
	return all, err
}

// TestDisown gives up what others have, and nothing that has come here since it was read who has
// what.
func TestDisown(t *testing.T) {
	data := memstore.NewData()
	open := func(id string) store.Store {
		s := memstore.Open(data, memstore.Hooks{})
		if _, err := s.Claim(t.Context(), store.Server{ID: id, Place: id}, time.Hour); err != nil {
			t.Fatal(err)
		}
		return s
	}
	one, two := open("one"), open("two")
	sleeper := func(id, checkpoint string) store.Sandbox {
		return store.Sandbox{ID: id, Record: lifecycle.Record{State: lifecycle.Paused, Checkpoint: &lifecycle.Checkpoint{ID: checkpoint, Mode: lifecycle.Filesystem}}}
	}
	for _, id := range []string{"unknown", "lost", "coming"} {
		if err := one.Commit(t.Context(), sleeper(id, "first"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := one.PutReplica(t.Context(), store.Replica{Sandbox: "coming", Checkpoint: "first"}); err != nil {
		t.Fatal(err)
	}
	if err := one.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	replicas, err := replication.New(t.Context(), replication.Options{})
	if err != nil {
		t.Fatal(err)
	}
	copies := replication.Snapshots{Replicator: replicas}
	shelf, err := snapshots.Open(t.Context(), snapshots.Options{Store: two, Copies: copies})
	if err != nil {
		t.Fatal(err)
	}
	knows, left := []string{"lost"}, []string{}
	taker := New(t.Context(), Options{
		Store: late{two, func() {
			sb := sleeper("coming", "second")
			sb.Rev, sb.Owner = 1, "one"
			if err := two.Take(t.Context(), sb, nil); err != nil {
				t.Error(err)
			}
			knows = append(knows, "coming")
		}},
		Shelf: func() *snapshots.Shelf { return shelf },
		Knows: func(id string) bool { return slices.Contains(knows, id) },
		Left:  func(sb store.Sandbox) { left = append(left, sb.ID+" to "+sb.Owner) },
	})
	if err := taker.Disown(t.Context()); err != nil || !slices.Equal(left, []string{"lost to one"}) {
		t.Errorf("given up are %q, %v", left, err)
	}
}
