package serve

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/cluster"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// TestListsOfServers: a list has the sandboxes of all servers in one order, those of the server
// that is asked as it sees them.
func TestListsOfServers(t *testing.T) {
	data := memstore.NewData()
	one, two := memstore.Open(data, memstore.Hooks{}), memstore.Open(data, memstore.Hooks{})
	for id, s := range map[string]store.Store{"one": one, "two": two} {
		if _, err := s.Claim(t.Context(), store.Server{ID: id, Name: id, Place: id}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, func(o *supervisor.Options) { o.Store = one })
	v := cluster.NewView(w.sup, one, nil)
	var want []string // oldest first
	for i := range 12 {
		if i%2 == 0 {
			want = append(want, w.create(true))
			continue
		}
		sb := store.Sandbox{
			ID:     fmt.Sprintf("i%020d", i),
			Config: store.Config{Key: "key", Name: fmt.Sprint("name", i), Template: "base", Limits: store.Limits{MemoryMiB: i}},
			Record: lifecycle.Record{State: lifecycle.Running, CreatedAt: time.Now().UTC().Truncate(time.Microsecond)},
		}
		if i == 11 {
			sb.Record.State, sb.Record.Tombstone = lifecycle.Terminated, &lifecycle.Tombstone{Reason: lifecycle.Killed, At: sb.Record.CreatedAt}
		}
		if err := two.Commit(t.Context(), sb, nil); err != nil {
			t.Fatal(err)
		}
		want = append(want, sb.ID)
	}
	for _, limit := range []int{0, 5, 100} {
		q := store.Selection{Status: store.Alive, Order: store.Oldest, Limit: limit}
		var got []string
		for {
			p, err := v.Page(t.Context(), q)
			if err != nil || p.Count(store.Alive) != 11 || p.Counts[store.Outline{State: lifecycle.Terminated}] != 1 {
				t.Fatalf("limit %d: counted are %v, %v", limit, p.Counts, err)
			}
			for _, sb := range p.Sandboxes {
				got = append(got, sb.ID)
				if seen, err := v.Find(t.Context(), sb.ID); sb.Owner == "one" && (err != nil || !reflect.DeepEqual(seen, sb)) {
					t.Errorf("limit %d: sandbox %s is listed as %+v, and seen as %+v, %v", limit, sb.ID, sb, seen, err)
				}
			}
			if !p.More {
				break
			}
			last := q.Order.PlaceOf(&p.Sandboxes[len(p.Sandboxes)-1])
			q.After = &last
		}
		if !slices.Equal(got, want[:11]) {
			t.Errorf("limit %d: listed are %q, want %q", limit, got, want[:11])
		}
	}
	for name, want := range map[string]string{"name3": want[3], "name11": want[11], "name2": ""} {
		if id, ok := v.Named("key", name); id != want || ok != (want != "") {
			t.Errorf("%s is %q, %v; want %q", name, id, ok, want)
		}
	}
	if got, want := v.KeyUse("key"), (store.Use{Running: 5, Sandboxes: 5, MemoryMiB: 1 + 3 + 5 + 7 + 9}); got != want {
		t.Errorf("the key uses %+v, want %+v", got, want)
	}
}

// movedRecords has another server have a sandbox, and does something before it says so.
type movedRecords struct {
	cluster.Records
	sb   store.Sandbox
	then func()
}

func (r *movedRecords) Page(context.Context, store.Selection) (p store.Page, err error) {
	r.then()
	if r.sb.ID != "" {
		p = store.Page{Sandboxes: []store.Sandbox{r.sb}, Counts: map[store.Outline]int{store.OutlineOf(r.sb.Record): 1}}
	}
	return p, nil
}

// TestListsWhileSandboxesMove: a sandbox that moves while a list is made is there once, as the
// records have it if they say that it is elsewhere.
func TestListsWhileSandboxesMove(t *testing.T) {
	data := memstore.NewData()
	one := memstore.Open(data, memstore.Hooks{})
	if _, err := one.Claim(t.Context(), store.Server{ID: "one", Name: "one", Place: "one"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *supervisor.Options) { o.Store = one })
	records := &movedRecords{Records: one, then: func() {}}
	v := cluster.NewView(w.sup, records, nil)
	want := func(what string, owners ...string) {
		t.Helper()
		p, err := v.Page(t.Context(), store.Selection{Status: store.Alive})
		var got []string
		for _, sb := range p.Sandboxes {
			got = append(got, sb.Owner)
		}
		if err != nil || !slices.Equal(got, owners) || p.Count(store.Alive) != len(owners) {
			t.Errorf("%s: listed are sandboxes of %q, and counted %v, %v", what, got, p.Counts, err)
		}
	}
	id := w.create(true)
	want("it stays", "one")
	there, err := w.sup.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	there.Owner = "two"
	records.sb = there
	want("it has gone, which is not known here", "two")
	records.sb, records.then = store.Sandbox{}, func() { w.create(true) }
	want("one has come", "one", "one")
}

// TestCopyOfAGoneServer: what sleeps on a server that is gone is in object storage if its copy has what
// it sleeps with.
func TestCopyOfAGoneServer(t *testing.T) {
	data := memstore.NewData()
	one, two := memstore.Open(data, memstore.Hooks{}), memstore.Open(data, memstore.Hooks{})
	for id, st := range map[string]*memstore.Store{"one": one, "two": two} {
		if _, err := st.Claim(t.Context(), store.Server{ID: id, Name: id, Place: id}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, func(o *supervisor.Options) { o.Store = one })
	v := cluster.NewView(w.sup, one, nil)
	memory := lifecycle.Checkpoint{ID: "cp", Mode: lifecycle.Memory}
	for i, tt := range []struct {
		sleeps, copied lifecycle.Checkpoint
		want           store.Durability
	}{
		{memory, memory, store.Replicated}, {memory.Files(), memory, store.Replicated}, {memory.Files(), memory.Files(), store.Replicated},
		{memory, memory.Files(), store.Local}, {memory, lifecycle.Checkpoint{ID: "other", Mode: lifecycle.Memory}, store.Local},
	} {
		sb := store.Sandbox{ID: fmt.Sprintf("igone%016d", i), Record: lifecycle.Record{State: lifecycle.Paused, Generation: 1, Checkpoint: &tt.sleeps}}
		if err := two.Commit(t.Context(), sb, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := two.PutReplica(t.Context(), store.Replica{Sandbox: sb.ID, Checkpoint: store.CopyOf(tt.copied)}); err != nil {
			t.Fatal(err)
		}
		if err := two.Renew(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if got, err := v.Find(t.Context(), sb.ID); err != nil || got.Durability != tt.want {
			t.Errorf("asleep with %+v, and copied %+v: %q, %v; want %q", tt.sleeps, tt.copied, got.Durability, err, tt.want)
		}
		if err := two.Renew(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
}
