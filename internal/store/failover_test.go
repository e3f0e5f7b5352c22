package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// TestFailOver: after a stand-by was promoted, all that was answered is there, and no store goes
// back to the old primary that is up again, first in the URL, and would take writes.
func TestFailOver(t *testing.T) {
	t.Parallel()
	old := pgtest.Start(t)
	database := old.NewDatabase(t)
	next := old.StandBy(t)
	toOld, toNext := old.Proxy(t), next.Proxy(t)
	both := pgtest.URLs(database, toOld, toNext)
	var kept []store.Branch
	s, err := store.ConnectFrom(t.Context(), both, store.Branch{}, func(b store.Branch) { kept = append(kept, b) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Claim(t.Context(), store.Server{ID: "one", Place: "here"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	idle := connect(t, both) // asks nothing while it fails over
	commit(t, s, record("a", 1), lines(1, "one"))
	wantGenerations(t, idle, "a", 1, 1)

	old.Crash(t)
	second := record("a", 2)
	second.Rev = 1
	err = s.Commit(t.Context(), second, lines(2, "two"))
	wantError(t, err, errdef.Unavailable, "store_unavailable", "check that PostgreSQL is up")
	next.Promote(t)
	commit(t, s, second, lines(2, "two"))
	wantGenerations(t, s, "a", 2, 1, 2)

	old.Up(t)
	old.Alone(t)
	for range 3 { // new connections too
		toNext.Cut()
		wantGenerations(t, s, "a", 2, 1, 2)
		wantGenerations(t, idle, "a", 2, 1, 2)
	}
	fresh := connect(t, both)
	wantGenerations(t, fresh, "a", 2, 1, 2)
	seen, err := store.Look(t.Context(), both, "one", kept[0])
	if err != nil || seen.Branch != kept[len(kept)-1] {
		t.Errorf("seen is %+v, %v; want %+v", seen.Branch, err, kept)
	}

	next.Crash(t)
	third := record("a", 3)
	third.Rev = 2
	wantError(t, s.Commit(t.Context(), third, nil), errdef.Unavailable, "store_unavailable", "timeline 1, and another was promoted to timeline 2", "old primary")
	_, err = fresh.Sandboxes(t.Context())
	wantError(t, err, errdef.Unavailable, "store_unavailable", "old primary")
	if len(kept) != 2 || !kept[0].Behind(kept[1]) {
		t.Errorf("kept %+v", kept)
	}
	newest := kept[len(kept)-1]
	_, err = store.ConnectFrom(t.Context(), both, newest, nil) // as after a start
	wantError(t, err, errdef.Unavailable, "store_unavailable", "old primary")
	_, err = store.Look(t.Context(), both, "one", newest)
	wantError(t, err, errdef.Unavailable, "store_unavailable", "old primary")
	err = store.Copy(t.Context(), both, "one", seen.Branch, newPath(t))
	wantError(t, err, errdef.Unavailable, "store_unavailable", "old primary", `remove "branch" from drowse.db`)
	if got := pgtest.SQL(t, old.Admin(), "select 1"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("the old primary says %q", got)
	}
	next.Up(t)
	commit(t, s, third, nil)
	wantGenerations(t, s, "a", 3, 1, 2)

	// The old primary becomes a stand-by, and is promoted in turn.
	old.Crash(t)
	old.Follow(t, next)
	third.Rev = 3
	third.Record.Generation = 4
	commit(t, s, third, nil)
	next.Crash(t)
	old.Promote(t)
	wantGenerations(t, s, "a", 4, 1, 2)
	if len(kept) != 3 || !kept[1].Behind(kept[2]) {
		t.Errorf("kept %+v", kept)
	}
}

// TestOtherSystem: a restored dump is another PostgreSQL, whose timelines say nothing.
func TestOtherSystem(t *testing.T) {
	server := pgtest.Shared(t)
	s, err := store.ConnectFrom(t.Context(), server.NewDatabase(t), store.Branch{System: "another", Timeline: 7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestBranchIsNotTold: a PostgreSQL where the role may not ask for the branch, or that lacks the
// functions, is used, but for stand-bys, and what was seen before stays.
func TestBranchIsNotTold(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	database := server.NewDatabase(t)
	admin := strings.Replace(database, "//drowse@", "//postgres@", 1)
	connectOnce := func(url string, seen store.Branch) (kept []store.Branch) {
		t.Helper()
		s, err := store.ConnectFrom(t.Context(), url, seen, func(b store.Branch) { kept = append(kept, b) })
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Claim(t.Context(), store.Server{ID: "one", Place: "here"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		return kept
	}
	told := connectOnce(database, store.Branch{})
	if len(told) != 1 || told[0] == (store.Branch{}) {
		t.Fatalf("kept %+v", told)
	}

	newest := store.Branch{System: told[0].System, Timeline: told[0].Timeline + 1}
	pgtest.SQL(t, admin, "revoke execute on function pg_control_system() from public") // 42501
	if kept := connectOnce(database, newest); !slices.Equal(kept, []store.Branch{{}}) {
		t.Errorf("kept %+v where the role may not ask", kept)
	}
	seen, err := store.Look(t.Context(), database, "one", newest)
	if err != nil || seen.Branch != newest {
		t.Errorf("seen is %+v, %v; want %+v", seen.Branch, err, newest)
	}
	pgtest.SQL(t, admin, "alter function pg_control_system() rename to other_control_system") // 42883
	standby := server.StandBy(t)
	first := pgtest.URLs(database, standby.Proxy(t), server.Proxy(t))
	if kept := connectOnce(first, store.Branch{}); !slices.Equal(kept, []store.Branch{{}}) {
		t.Errorf("kept %+v where there is no such function", kept)
	}
}
