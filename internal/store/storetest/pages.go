package storetest

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// crowd has two servers make sandboxes of all kinds, some of them at the same time.
func crowd(t *testing.T, one, two store.Store) {
	t.Helper()
	labels := []map[string]string{
		nil, {"a": "b"}, {"a": "b", "c": "d"}, {"a": "B"}, {"x": `a":"b`}, {"a": "%"}, {"a_": `<"\\"> é`}, {"a": ""}, {"": "b"}, {"a": "\x00"},
	}
	ops := []*lifecycle.Operation{
		nil, {ID: "op", Phase: lifecycle.Pausing, Cause: lifecycle.CauseIdle}, {ID: "op", Phase: lifecycle.Pausing, Cause: lifecycle.CauseCheckpoint},
		nil, {ID: "op", Phase: lifecycle.Resuming}, {ID: "op", Phase: lifecycle.Killing, Cause: lifecycle.CauseCall},
	}
	states := []lifecycle.State{lifecycle.Running, lifecycle.Paused, lifecycle.Pending, lifecycle.Terminated}
	for i := range 60 {
		sb := sandbox(fmt.Sprintf("s%02d", i*37%60), 1)
		sb.Config.Key = fmt.Sprintf("key-%d", i%3)
		sb.Config.Metadata = labels[i%len(labels)]
		sb.Record.State, sb.Record.Op = states[i%len(states)], ops[i%len(ops)]
		sb.Record.CreatedAt = epoch.Add(time.Duration(i/4) * 1700 * time.Nanosecond)
		if sb.Record.State != lifecycle.Pending {
			sb.Record.StartedAt = epoch.Add(time.Duration(100-i/3) * time.Second / 2)
		}
		switch i % 5 {
		case 1:
			sb.Config.Template, sb.Config.Alias = "t-1", "tea"
		case 2:
			sb.Config.Built = store.Built{ID: "t-2", Name: "tea"}
		case 3:
			sb.Config.Name = fmt.Sprint("name", i)
		}
		if i%7 == 0 {
			sb.Config.Idempotency = &store.Idempotency{Key: fmt.Sprint("once ", i), At: epoch}
		}
		if sb.Record.State == lifecycle.Terminated {
			sb = ended(sb, lifecycle.Killed)
			sb.Config.Name = "ended"
		}
		if i == 35 {
			sb = ended(sb, lifecycle.CreateFailed)
		}
		commit(t, []store.Store{one, two}[i%2], sb)
	}
}

// testPages: the store finds, counts and orders sandboxes as [store.Selection.From] does.
func testPages(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	nothing, err := one.Page(t.Context(), store.Selection{Limit: 1})
	if err != nil || len(nothing.Sandboxes) > 0 || nothing.More || len(nothing.Counts) > 0 {
		t.Errorf("of nothing: %+v, %v", nothing, err)
	}
	crowd(t, one, two)
	all, err := one.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start, late, never := epoch.Add(time.Minute).UnixMicro(), int64(math.MaxInt64), int64(math.MinInt64)
	running := func(r lifecycle.Record) bool { return r.State == lifecycle.Running && !r.Checkpointing() }
	for name, q := range map[string]store.Selection{
		"all":              {},
		"key":              {Key: "key-1"},
		"unknown key":      {Key: "key"},
		"holder":           {Key: "key-0", Holds: "name33"},
		"holder, ended":    {Key: "key-0", Holds: "ended"},
		"name":             {Key: "key-0", Name: "name33"},
		"name, ended":      {Key: "key-0", Name: "ended"},
		"idempotency":      {Key: "key-0", Idempotency: "once 21"},
		"once, ended":      {Key: "key-1", Idempotency: "once 7"},
		"once, failed":     {Key: "key-2", Idempotency: "once 35"},
		"template":         {Template: "tea"},
		"id of a template": {Template: "t-2"},
		"case":             {Template: "Tea"},
		"label":            {Metadata: store.Labels{{"a", "b"}}},
		"label, no case":   {Metadata: store.Labels{{"a", "B"}}},
		"labels":           {Metadata: store.Labels{{"a", "b"}, {"c", "d"}}},
		"no labels":        {Metadata: store.Labels{{"a", "b"}, {"a", "B"}}},
		"wildcard":         {Metadata: store.Labels{{"a", "%"}}},
		"other wildcard":   {Metadata: store.Labels{{"a_", "%"}}},
		"escaped label":    {Metadata: store.Labels{{"a_", `<"\\"> é`}}},
		"empty label":      {Metadata: store.Labels{{"a", ""}}},
		"label of no key":  {Metadata: store.Labels{{"", "b"}}},
		"label with zero":  {Metadata: store.Labels{{"a", "\x00"}}},
		"ids":              {IDs: []string{"s01", "s02", "s59", "s02", "unknown"}},
		"no ids":           {IDs: []string{}},
		"started":          {StartedFrom: &start},
		"started late":     {StartedFrom: &late},
		"started ever":     {StartedFrom: &never},
		"owner":            {Owner: "two"},
		"owner and label":  {Owner: "one", Metadata: store.Labels{{"a", "b"}}},
		"unknown owner":    {Owner: "three"},
		"several":          {Key: "key-1", Metadata: store.Labels{{"a", "b"}}, Template: "tea", StartedFrom: &start},
	} {
		for what, status := range map[string]func(lifecycle.Record) bool{
			"any": nil, "running": running, "alive": store.Alive, "none": func(lifecycle.Record) bool { return false },
		} {
			q.Status = status
			for _, q.Order = range []store.Order{store.Newest, store.Oldest, store.LatestStart, store.EarliestStart} {
				for _, s := range []store.Store{one, two} {
					q := q
					what := fmt.Sprintf("%s, %s, %s, by %s", name, what, q.Order, s.Self())
					same(t, what, s, q, all)
					q.Skip, q.Limit = 3, 2
					same(t, what+", skipping", s, q, all)
					q.Others, q.Skip, q.Limit = true, 0, 0
					same(t, what+", of others", s, q, slices.DeleteFunc(slices.Clone(all), func(sb store.Sandbox) bool { return sb.Owner == s.Self() }))
				}
				walk(t, name+", "+what+", "+string(q.Order), one, q, all)
			}
		}
	}
	for _, at := range []int64{late, never} {
		for _, order := range []store.Order{store.Newest, store.Oldest} {
			same(t, fmt.Sprint("after ", at), one, store.Selection{Order: order, After: &store.Place{At: at, ID: "s"}, Limit: 100}, all)
		}
	}
}

// same holds a page to what it is of all sandboxes.
func same(t *testing.T, what string, s store.Store, q store.Selection, all []store.Sandbox) (p store.Page) {
	t.Helper()
	p, err := s.Page(t.Context(), q)
	want := q.From(all)
	if err != nil || !reflect.DeepEqual(p.Sandboxes, want.Sandboxes) || p.More != want.More || !maps.Equal(p.Counts, want.Counts) {
		t.Errorf("%s: %d sandboxes, more: %v, %v, %v;\nwant %d, %v, %v", what, len(p.Sandboxes), p.More, p.Counts, err, len(want.Sandboxes), want.More, want.Counts)
	}
	return p
}

// walk holds pages to what they are of all sandboxes, and together to the whole list.
func walk(t *testing.T, what string, s store.Store, q store.Selection, all []store.Sandbox) {
	t.Helper()
	want := q.From(all).Sandboxes
	q.Limit = 7
	var got []store.Sandbox
	for {
		p := same(t, fmt.Sprint(what, ", after ", q.After), s, q, all)
		got = append(got, p.Sandboxes...)
		if !p.More || len(p.Sandboxes) == 0 {
			break
		}
		last := q.Order.PlaceOf(&p.Sandboxes[len(p.Sandboxes)-1])
		q.After = &last
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: pages have %d sandboxes, want %d", what, len(got), len(want))
	}
}

// testPagesMeanwhile: what is there from the first page to the last is on one of them, once,
// also where it ends, falls asleep or goes to another server.
func testPagesMeanwhile(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	for i := range 20 {
		sb := asleep(fmt.Sprintf("s%02d", i), 1, "cp")
		sb.Record.CreatedAt = epoch.Add(time.Duration(i) * time.Second)
		commit(t, one, sb)
	}
	q := store.Selection{Order: store.Newest, Limit: 4}
	var got []string
	for n := 0; ; n++ {
		p, err := two.Page(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range p.Sandboxes {
			got = append(got, sb.ID)
		}
		if !p.More {
			break
		}
		last := q.Order.PlaceOf(&p.Sandboxes[len(p.Sandboxes)-1])
		q.After = &last
		fresh := sandbox(fmt.Sprint("fresh", n), 1)
		fresh.Record.CreatedAt = epoch.Add(time.Hour)
		commit(t, two, fresh)
		for _, i := range []int{19 - n, n} { // one that was on a page, and one that is yet to come
			id := fmt.Sprintf("s%02d", i)
			putReplica(t, one, id, "cp")
			if err := one.Offer(t.Context(), id, "cp", "two"); err != nil {
				t.Fatal(err)
			}
			sb, err := two.Sandbox(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			cp := *sb.Record.Checkpoint
			cp.ID = "made"
			sb.Record.Checkpoint = &cp
			if err := two.Take(t.Context(), sb, nil); err != nil {
				t.Fatal(err)
			}
			sb.Record.State, sb.Record.StartedAt = lifecycle.Running, epoch.Add(time.Hour)
			if n%2 == 0 {
				sb = ended(sb, lifecycle.Killed)
			}
			commit(t, two, sb)
		}
	}
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprintf("s%02d", 19-i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages have %q, want %q", got, want)
	}
}

// testUseOfOthers: what keys use elsewhere is what the sandboxes there take together.
func testUseOfOthers(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	if got, err := one.UseOfOthers(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("of nothing: %v, %v", got, err)
	}
	crowd(t, one, two)
	limited := sandbox("limited", 1)
	limited.Config.Key, limited.Config.Limits = "key-1", store.Limits{MemoryMiB: 3, DiskMiB: 5}
	commit(t, two, limited)
	for _, s := range []store.Store{one, two} {
		want := map[string]store.Use{}
		for _, sb := range sandboxes(t, s) {
			if use := sb.Use(); sb.Owner != s.Self() && use != (store.Use{}) {
				want[sb.Config.Key] = want[sb.Config.Key].Plus(use)
			}
		}
		if got, err := s.UseOfOthers(t.Context()); err != nil || !maps.Equal(got, want) {
			t.Errorf("others than %s use %v, %v; want %v", s.Self(), got, err, want)
		}
	}
}
