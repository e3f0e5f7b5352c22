package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// endedAt returns a sandbox of an API key that ended at a time, with as many bytes of
// metadata.
func endedAt(id, key string, at time.Time, bytes int) store.Sandbox {
	sb := terminated(id)
	sb.Config.Key, sb.Config.Metadata = key, map[string]string{"m": strings.Repeat("x", bytes)}
	sb.Record.Tombstone.At = at
	return sb
}

// testTombstones holds that the commit in which a sandbox ends forgets the oldest of its
// key that are too much with it, and nothing else.
func testTombstones(t *testing.T, h harness) {
	s := h.open(t)
	const large = store.MostTombstoneBytes/4 - 1000
	end := func(sb store.Sandbox) []string {
		t.Helper()
		forgotten, err := s.CommitEnd(t.Context(), sb, []lifecycle.Entry{entry(1)})
		if err != nil {
			t.Fatal(err)
		}
		return forgotten
	}
	left := func() (ids []string) {
		for _, sb := range sorted(sandboxes(t, s)) {
			ids = append(ids, sb.ID)
		}
		return ids
	}
	commit(t, s, sandbox("lives", 1))
	other := endedAt("other", "k2", utc(0), large)
	for i, sb := range []store.Sandbox{other, endedAt("c", "k", utc(3), large), endedAt("a", "k", utc(2), large), endedAt("b", "k", utc(1), large), endedAt("d", "k", utc(4), large)} {
		if forgotten := end(sb); forgotten != nil {
			t.Errorf("with %d there, %q are forgotten", i, forgotten)
		}
	}
	sb := endedAt("e", "k", utc(0), 10_000)
	if forgotten := end(sb); !slices.Equal(forgotten, []string{"b"}) {
		t.Errorf("for one more, that ended first, %q are forgotten, want the oldest beside it", forgotten)
	}
	s = h.reopen(t, s)
	if got, want := left(), []string{"a", "c", "d", "e", "lives", "other"}; !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
	if n := len(events(t, s, "", 0, 100)); n != 5 {
		t.Errorf("%d entries are left, want those of the tombstones", n)
	}
	sb.Rev, sb.Config.Metadata["m"] = 1, strings.Repeat("x", store.MostTombstoneBytes)
	forgotten := end(sb)
	slices.Sort(forgotten)
	if !slices.Equal(forgotten, []string{"a", "c", "d"}) {
		t.Errorf("for one that is too large itself %q are forgotten", forgotten)
	}
	// One that is going to end takes nothing from anybody.
	sb.Rev, sb.Config.Metadata, sb.Record.Op = 2, nil, &lifecycle.Operation{}
	if forgotten := end(sb); forgotten != nil || !slices.Equal(left(), []string{"e", "lives", "other"}) {
		t.Errorf("before the end %q are forgotten", forgotten)
	}
}

// testTombstonesOfServers holds that each server keeps as much of a key as there were no
// other, also of what it had before it was claimed.
func testTombstonesOfServers(t *testing.T, h harness) {
	one := h.open(t)
	two := h.share(t, one)
	const large = store.MostTombstoneBytes/4 - 1000
	end := func(s store.Store, id string, at int, want ...string) {
		t.Helper()
		if forgotten, err := s.CommitEnd(t.Context(), endedAt(id, "k", utc(at), large), nil); err != nil || !slices.Equal(forgotten, want) {
			t.Errorf("after the end of %s %q are forgotten, %v; want %q", id, forgotten, err, want)
		}
	}
	end(one, "a0", 0)
	end(one, "a1", 1)
	claim(t, one, server("one", "here"), time.Hour)
	claim(t, two, server("two", "there"), time.Hour)
	end(one, "a2", 2)
	end(one, "a3", 3) // as much as a server keeps
	for i := range 3 {
		end(two, fmt.Sprint("b", i), 4+i)
	}
	end(one, "a4", 7, "a0")
	forget(t, one, "a2")
	end(one, "a5", 8)
	end(two, "b3", 9)
	end(two, "b4", 10, "b0")
}

// testTombstoneWriters holds that of many that end at once each is counted.
func testTombstoneWriters(t *testing.T, h harness) {
	s := h.open(t)
	const each = store.MostTombstoneBytes / 8
	told := make([]int, 20)
	if n := atOnce(t, len(told), "", func(i int) error {
		forgotten, err := s.CommitEnd(t.Context(), endedAt(fmt.Sprint("s", i), "k", utc(i), each), nil)
		told[i] = len(forgotten)
		return err
	}); n != len(told) {
		t.Fatalf("%d ended", n)
	}
	sum := 0
	for _, n := range told {
		sum += n
	}
	if n := len(sandboxes(t, s)); n != 7 || sum != len(told)-n {
		t.Errorf("%d are left, and %d were told of as forgotten", n, sum)
	}
}
