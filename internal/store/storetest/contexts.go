package storetest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

func addContext(t *testing.T, s store.Store, c store.CodeContext) (dropped string) {
	t.Helper()
	dropped, err := s.AddContext(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return dropped
}

func contexts(t *testing.T, s store.Store, sandbox string) []store.CodeContext {
	t.Helper()
	all, err := s.Contexts(t.Context(), sandbox)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func testContexts(t *testing.T, h harness) {
	s := h.open(t)
	var in, want store.CodeContext
	fill(t, &in, elsewhere)
	fill(t, &want, utc)
	in.Sandbox, want.Sandbox = "a", "a"
	add := func(c store.CodeContext) error { _, err := s.AddContext(t.Context(), c); return err }
	wantClass(t, errdef.NotFound, func() error { return add(in) })
	commit(t, s, sandbox("a", 1))
	commit(t, s, sandbox("b", 1))
	addContext(t, s, in)
	later := store.CodeContext{ID: "later", Sandbox: "a", CreatedAt: want.CreatedAt.Add(1)}
	addContext(t, s, store.CodeContext{ID: want.ID, Sandbox: "b", CreatedAt: epoch}) // as a fork has it
	addContext(t, s, later)
	later.End = &store.ContextEnd{Exit: new(3), State: "crashed"}
	if err := s.ChangeContext(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	commit(t, s, sandbox("a", 2))
	s = h.reopen(t, s)
	if all := contexts(t, s, "a"); len(all) != 2 || !reflect.DeepEqual(all[1], later) {
		t.Fatalf("contexts are %+v", all)
	} else {
		diff(t, "CodeContext", all[0], want)
	}
	if err := s.RemoveContext(t.Context(), "a", want.ID); err != nil {
		t.Fatal(err)
	}
	wantClass(t, errdef.NotFound, func() error { return s.ChangeContext(t.Context(), want) })
	only(t, contexts(t, s, "a"))
	only(t, contexts(t, s, "b"))
	commit(t, s, terminated("a"))
	if all := contexts(t, s, "a"); len(all) != 0 {
		t.Errorf("of a sandbox that has ended there are %+v", all)
	}
	wantClass(t, errdef.NotFound, func() error { return add(in) })
	only(t, contexts(t, s, "b"))
	large := store.CodeContext{ID: "large", Sandbox: "b", Command: []string{strings.Repeat("x", store.MostContextBytes)}}
	wantClass(t, errdef.Exhausted, func() error { return add(large) })
	only(t, contexts(t, s, "b"))
}

// testContextWriters holds that a sandbox gets as many contexts as it may have, and that
// one that has ended makes room for one.
func testContextWriters(t *testing.T, h harness) {
	s := h.open(t)
	commit(t, s, sandbox("a", 1))
	addContext(t, s, store.CodeContext{ID: "running", Sandbox: "a", CreatedAt: utc(1)})
	for _, id := range []string{"second", "first"} {
		addContext(t, s, store.CodeContext{ID: id, Sandbox: "a", CreatedAt: utc(len(id)), End: &store.ContextEnd{}})
	}
	add := func(i int) error {
		_, err := s.AddContext(t.Context(), store.CodeContext{ID: fmt.Sprint("c", i), Sandbox: "a", CreatedAt: utc(10)})
		return err
	}
	if n := atOnce(t, store.MostContexts-4, errdef.Exhausted, add); n != store.MostContexts-4 {
		t.Fatalf("%d were stored", n)
	}
	if dropped := addContext(t, s, store.CodeContext{ID: "fits", Sandbox: "a", CreatedAt: utc(10)}); dropped != "" {
		t.Errorf("%q went though there was room", dropped)
	}
	if dropped := addContext(t, s, store.CodeContext{ID: "one more", Sandbox: "a", CreatedAt: utc(10)}); dropped != "first" {
		t.Errorf("%q made room, want the oldest that has ended", dropped)
	}
	if n := atOnce(t, 8, errdef.Exhausted, func(i int) error { return add(1000 + i) }); n != 1 {
		t.Errorf("%d were stored with one that has ended", n)
	}
	if n := len(contexts(t, s, "a")); n != store.MostContexts {
		t.Errorf("there are %d", n)
	}
}
