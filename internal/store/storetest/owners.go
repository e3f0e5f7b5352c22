package storetest

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// twoServers returns the stores of the servers one and two, over one database.
func twoServers(t *testing.T, h harness) (one, two store.Store) {
	t.Helper()
	one = h.open(t)
	two = h.share(t, one)
	claim(t, one, server("one", "here"), time.Hour)
	claim(t, two, server("two", "there"), time.Hour)
	return one, two
}

// ownersOf returns who has what, by id.
func ownersOf(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, x := range sandboxes(t, s) {
		all["sandbox "+x.ID] = x.Owner
	}
	for _, x := range snapshots(t, s) {
		all["snapshot "+x.ID] = x.Owner
	}
	for _, x := range volumes(t, s) {
		all["volume "+x.ID] = x.Owner
	}
	for _, x := range templates(t, s) {
		all["template "+x.ID] = x.Owner
	}
	return all
}

func wantOwners(t *testing.T, s store.Store, want map[string]string) {
	t.Helper()
	if got := ownersOf(t, s); !maps.Equal(got, want) {
		t.Errorf("owners are %v, want %v", got, want)
	}
}

// furnished is what furnish makes, of an owner.
func furnished(owner string) map[string]string {
	return map[string]string{
		"sandbox a": owner, "sandbox gone": owner, "sandbox offered": owner, "sandbox source": owner, "snapshot s1": owner, "volume id-v": owner, "template t1": owner,
	}
}

// testOwners: all servers see all records, each with the server that has added it.
func testOwners(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	furnish(t, one)
	theirs := sandbox("b", 1)
	theirs.Owner = "one" // which is for the store to say
	commit(t, two, theirs)
	snap := store.Snapshot{ID: "s2", Key: "key-1", Sandbox: "b", CreatedAt: epoch, Owner: "one"}
	vol := volume("w", epoch)
	vol.Owner = "one"
	addVolume(t, two, vol)
	tpl := built("t2", "key-1", "tee")
	tpl.Owner = "one"
	for _, err := range []error{two.CommitSnapshot(t.Context(), snap, latest(t, two, theirs), nil), two.PutTemplate(t.Context(), tpl)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := furnished("one")
	maps.Copy(want, map[string]string{"sandbox b": "two", "snapshot s2": "two", "volume id-w": "two", "template t2": "two"})
	wantOwners(t, one, want)
	wantOwners(t, two, want)
	for i, s := range []store.Store{one, two} {
		all, err := s.Sandboxes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			if got, err := s.Sandbox(t.Context(), x.ID); err != nil || !reflect.DeepEqual(got, x) {
				t.Errorf("sandbox %s is %+v, %v; want %+v", x.ID, got, err, x)
			}
		}
		own := func(sb store.Sandbox) bool { return sb.Owner == s.Self() }
		q := store.Selection{Others: true, Order: store.Oldest}
		others, err := s.Page(t.Context(), q)
		want := slices.DeleteFunc(all, own)
		if q.Sort(want); err != nil || len(others.Sandboxes) == 0 || !reflect.DeepEqual(others.Sandboxes, want) {
			t.Errorf("sandboxes of others than %s are %+v, %v", s.Self(), others, err)
		}
		if got, want := s.Self(), []string{"one", "two"}[i]; got != want {
			t.Errorf("Self = %q, want %q", got, want)
		}
	}
	_, err := one.Sandbox(t.Context(), "unknown")
	wantCode(t, err, "sandbox_not_found")
	if got := h.share(t, one).Self(); got != "" {
		t.Errorf("a store that has claimed nothing is %q", got)
	}
	wantOwners(t, h.reopen(t, one), want)
}

// ofOwner are the methods among writes that change what has an owner, and ofAll those of
// what all servers have together, in an order in which each has something to do. One that
// adds what has an owner is among the latter.
var (
	ofOwner = []string{
		"Commit", "CommitEnd", "CommitSnapshot", "Forget", "ChangeSnapshot", "RemoveSnapshot", "RemoveVolume", "RemoveTemplate",
		"AddContext", "ChangeContext", "RemoveContext", "PutReplica", "Offer",
	}
	ofAll = []string{
		"AddKey", "UpdateKey", "KeysUsed", "ChangeWebhook", "AddSSHKey", "RemoveSSHKey", "PutSecret", "ChangeSecret", "RemoveSecret", "AddVolume", "PutTemplate",
		"SetTemplateSettings", "UseTemplateSettings", "PutWebhook", "DeleteWebhook", "Secret", "Elect", "Resign", "Leave", "Release", "Renew", "SetRoom", "SetDraining", "RemoveKey", "Take", "TakeSnapshot", "TakeTemplate",
	}
)

// testElsewhere: no method changes what another server has.
func testElsewhere(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	furnish(t, one)
	lose(t, h, one)
	listed := writes()
	for name := range listed {
		if slices.Contains(ofOwner, name) == slices.Contains(ofAll, name) {
			t.Errorf("%s is of records with an owner: %v; of others: %v", name, slices.Contains(ofOwner, name), slices.Contains(ofAll, name))
		}
	}
	commit(t, two, sandbox("b", 1))
	snapshot := func(change func(*store.Snapshot)) func(context.Context, store.Store) error {
		return func(ctx context.Context, s store.Store) error {
			snap := store.Snapshot{ID: "s2", Key: "key-1", Sandbox: "b", CreatedAt: epoch}
			change(&snap)
			return s.CommitSnapshot(ctx, snap, latest(t, s, sandbox("b", 1)), nil)
		}
	}
	refused := map[string]func(context.Context, store.Store) error{
		"PutTemplate of what is there": func(ctx context.Context, s store.Store) error {
			return s.PutTemplate(ctx, changed(built("t1", "key-1", "tea")))
		},
		"CommitSnapshot that replaces":       snapshot(func(snap *store.Snapshot) { snap.Replaces = "s1" }),
		"CommitSnapshot that drops":          snapshot(func(snap *store.Snapshot) { snap.KeepLast, snap.Drops = 1, []string{"s1"} }),
		"CommitSnapshot of the other's undo": snapshot(func(snap *store.Snapshot) { snap.ID, snap.Undo = "s1", true }),
		"CommitSnapshot of a result":         snapshot(func(snap *store.Snapshot) { snap.Name, snap.Config.Build = "tea", "build" }),
	}
	for _, name := range ofOwner {
		refused[name] = listed[name]
	}
	before := all(t, two)
	for name, write := range refused {
		err := write(t.Context(), two)
		if srv, ok := store.Elsewhere(err); !ok || srv != "one" || !errdef.Is(err, errdef.Conflict) || !store.Refused(err) {
			t.Errorf("%s: %v, want that server one has it", name, err)
		}
		for what, has := range all(t, two) {
			if !reflect.DeepEqual(has, before[what]) {
				t.Fatalf("%s has changed the %s: %+v, want %+v", name, what, has, before[what])
			}
		}
	}
	for name, write := range map[string]func() error{
		"the id of a sandbox": func() error { return two.Commit(t.Context(), sandbox("a", 1), nil) },
		"the id of a snapshot": func() error {
			return two.CommitSnapshot(t.Context(), store.Snapshot{ID: "s1", Key: "key-1", Sandbox: "b", CreatedAt: epoch}, latest(t, two, sandbox("b", 1)), nil)
		},
		"the name of a volume":   func() error { return two.AddVolume(t.Context(), store.Volume{ID: "w", Name: "v", CreatedAt: epoch}) },
		"the name of a template": func() error { return two.PutTemplate(t.Context(), built("t2", "key-1", "tea")) },
	} {
		if err := write(); !errdef.Is(err, errdef.Exists) {
			t.Errorf("%s that another server has: %v, want class %s", name, err, errdef.Exists)
		}
	}
	for _, name := range ofAll {
		if err := listed[name](t.Context(), two); err != nil {
			t.Errorf("%s of the other server: %v", name, err)
		}
	}
}

// changed returns a template as it is stored first, to be stored again.
func changed(t store.Template) store.Template {
	t.Rev = 1
	return t
}

// testOverServers: what is unique and counted is so over all servers.
func testOverServers(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	limited := key(1, epoch)
	limited.Limits = store.KeyLimits{Running: 2}
	addKey(t, one, limited)
	bound := namedSandbox("a", "key-1", "name")
	bound.Config.Idempotency = &store.Idempotency{Key: "once", At: epoch}
	commit(t, one, bound)

	wantCode(t, two.Commit(t.Context(), namedSandbox("b", "key-1", "name"), nil), "name_taken")
	again := namedSandbox("b", "key-1", "other")
	again.Config.Idempotency = bound.Config.Idempotency
	wantCode(t, two.Commit(t.Context(), again, nil), "idempotency_key_used")
	again.Config.Idempotency = &store.Idempotency{Key: "once", At: epoch.Add(store.IdempotencyLife)}
	commit(t, two, again) // a day later it is free
	wantClass(t, errdef.Exhausted, func() error { return two.Commit(t.Context(), namedSandbox("c", "key-1", ""), nil) })

	snap := store.Snapshot{ID: "s1", Name: "snap", Key: "key-1", Sandbox: "a", CreatedAt: epoch}
	if err := one.CommitSnapshot(t.Context(), snap, latest(t, one, bound), nil); err != nil {
		t.Fatal(err)
	}
	snap.ID, snap.Sandbox = "s2", "b"
	wantCode(t, two.CommitSnapshot(t.Context(), snap, latest(t, two, again), nil), "snapshot_exists")
}

// testChanges: each change of a kind of records is counted, for all servers, and nothing
// else is.
func testChanges(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	read := func(s store.Store) map[store.Kind]int64 {
		t.Helper()
		all, err := s.Changes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	kinds := []store.Kind{store.KindEvents, store.KindKeys, store.KindSSHKeys, store.KindSecrets, store.KindWebhooks, store.KindVolumes, store.KindSnapshots, store.KindTemplates, store.KindOwners}
	if got := read(one); len(got) != len(kinds) || got[store.KindEvents] != 0 {
		t.Errorf("at first: %v", got)
	}
	furnish(t, one)
	lose(t, h, one)
	listed, s := writes(), one
	next := func() store.Sandbox { return latest(t, s, sandbox("a", 3)) }
	steps := []struct {
		name  string // of a method among writes, where there is no do
		kinds []store.Kind
		do    func(context.Context) error
	}{
		{name: "CommitSnapshot", kinds: []store.Kind{store.KindSnapshots}},
		{"a commit", []store.Kind{store.KindEvents}, func(ctx context.Context) error {
			return s.Commit(ctx, next(), []lifecycle.Entry{entry(3)})
		}},
		{"a result", []store.Kind{store.KindSnapshots, store.KindTemplates}, func(ctx context.Context) error {
			snap := store.Snapshot{ID: "s3", Name: "tea", Key: "key-1", Sandbox: "a", CreatedAt: epoch}
			snap.Config.Build = "build"
			return s.CommitSnapshot(ctx, snap, next(), nil)
		}},
		{name: "ChangeSnapshot", kinds: []store.Kind{store.KindSnapshots}},
		{name: "RemoveSnapshot", kinds: []store.Kind{store.KindSnapshots}},
		{name: "AddVolume", kinds: []store.Kind{store.KindVolumes}},
		{name: "RemoveVolume", kinds: []store.Kind{store.KindVolumes}},
		{name: "PutTemplate", kinds: []store.Kind{store.KindTemplates}},
		{name: "RemoveTemplate", kinds: []store.Kind{store.KindTemplates}},
		{name: "SetTemplateSettings"},
		{name: "UseTemplateSettings"},
		{name: "AddContext"},
		{name: "ChangeContext"},
		{name: "RemoveContext"},
		{name: "AddKey", kinds: []store.Kind{store.KindKeys}},
		{name: "UpdateKey", kinds: []store.Kind{store.KindKeys}},
		{name: "KeysUsed"},
		{name: "AddSSHKey", kinds: []store.Kind{store.KindSSHKeys}},
		{name: "RemoveSSHKey", kinds: []store.Kind{store.KindSSHKeys}},
		{name: "PutSecret", kinds: []store.Kind{store.KindSecrets}},
		{name: "ChangeSecret", kinds: []store.Kind{store.KindSecrets}},
		{name: "RemoveSecret", kinds: []store.Kind{store.KindSecrets}},
		{name: "PutWebhook"}, // of how far it has got
		{"another webhook", []store.Kind{store.KindWebhooks}, func(ctx context.Context) error {
			return s.PutWebhook(ctx, store.Webhook{ID: "w2", CreatedAt: elsewhere(1)})
		}},
		{"the same webhook", nil, func(ctx context.Context) error {
			return s.PutWebhook(ctx, store.Webhook{ID: "w2", CreatedAt: utc(1), Delivered: 1, Dropped: 2})
		}},
		{"a webhook of other events", []store.Kind{store.KindWebhooks}, func(ctx context.Context) error {
			return s.PutWebhook(ctx, store.Webhook{ID: "w2", CreatedAt: utc(1), Events: []string{"x"}})
		}},
		{"a webhook with another secret", []store.Kind{store.KindWebhooks}, func(ctx context.Context) error {
			return s.PutWebhook(ctx, store.Webhook{ID: "w2", CreatedAt: utc(1), Events: []string{"x"}, Secret: "s"})
		}},
		{name: "DeleteWebhook", kinds: []store.Kind{store.KindWebhooks}},
		{name: "Secret"},
		{name: "Elect"},
		{name: "Resign"},
		{name: "Renew"},
		{name: "SetRoom"},
		{name: "SetDraining", kinds: []store.Kind{store.KindOwners}},
		{name: "PutReplica"},
		{name: "Offer"},
		{name: "Leave", kinds: []store.Kind{store.KindOwners}},
		{name: "Take", kinds: []store.Kind{store.KindOwners, store.KindEvents}},
		{name: "RemoveKey", kinds: []store.Kind{store.KindKeys, store.KindSSHKeys, store.KindSecrets}},
	}
	for _, step := range steps {
		before := read(two)
		do := step.do
		if do == nil {
			do = func(ctx context.Context) error { return listed[step.name](ctx, s) }
		}
		if err := do(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		after := read(two)
		for _, kind := range kinds {
			if higher := after[kind] > before[kind]; higher != slices.Contains(step.kinds, kind) || after[kind] < before[kind] {
				t.Errorf("%s: %s go from %d to %d", step.name, kind, before[kind], after[kind])
			}
		}
		if step.name == "a commit" {
			if last, err := two.LastEvents(t.Context(), "", 1); err != nil || only(t, last).Seq != after[store.KindEvents] {
				t.Errorf("events are at %d, and the last one is %+v, %v", after[store.KindEvents], last, err)
			}
		}
	}
	before := read(two)
	wantClass(t, errdef.Exists, func() error { return s.AddKey(t.Context(), key(2, epoch)) })
	if after := read(h.reopen(t, two)); !maps.Equal(after, before) {
		t.Errorf("a change that was refused, and a start: %v, want %v", after, before)
	}
}

// testElect: one server at a time has an office, while its lease lasts.
func testElect(t *testing.T, h harness) {
	free := h.open(t)
	want := func(s store.Store, office, want string) {
		t.Helper()
		if got, err := s.Elect(t.Context(), office); err != nil || got != want {
			t.Errorf("Elect(%s) = %q, %v; want %q", office, got, err, want)
		}
	}
	want(free, "a", "") // nobody has claimed anything
	one, two := h.share(t, free), h.share(t, free)
	claim(t, one, server("one", "here"), time.Hour)
	claim(t, two, server("two", "there"), time.Hour)
	for range 2 {
		want(one, "a", "one")
		want(two, "a", "one")
	}
	want(two, "b", "two")
	want(one, "b", "two")
	want(free, "b", "")

	if err := leasesOf(one).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(one, "a", "")
	want(one, "fresh", "")
	want(two, "a", "two") // the lease is over
	if err := leasesOf(one).Renew(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	want(one, "a", "two")

	next := h.share(t, free)
	claim(t, next, server("two", "there"), time.Hour)
	want(one, "a", "one") // the process that was elected is gone
	want(next, "a", "one")
	want(next, "b", "two") // nobody came first
	for _, office := range []string{"b", "fresh"} {
		_, err := two.Elect(t.Context(), office)
		wantCode(t, err, "fenced")
	}

	stores := []store.Store{one, next}
	elected := make([]string, 8)
	atOnce(t, len(elected), "", func(i int) (err error) {
		elected[i], err = stores[i%2].Elect(t.Context(), "c")
		return err
	})
	for i := range elected {
		if elected[i] != elected[0] || elected[i] == "" {
			t.Fatalf("elected at once are %q", elected)
		}
	}
}

// testResign: an office is free for another server while the lease of the one that had it
// lasts, once that has resigned.
func testResign(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	for _, s := range []store.Store{one, two} {
		for _, office := range []string{"a", "b"} {
			if got, err := s.Elect(t.Context(), office); err != nil || got != "one" {
				t.Fatalf("Elect(%s) of %s = %q, %v", office, s.Self(), got, err)
			}
		}
	}
	elected := func(when, a, b string) {
		t.Helper()
		for office, server := range map[string]string{"a": a, "b": b} {
			for _, s := range []store.Store{two, one} {
				if got, err := s.Elect(t.Context(), office); err != nil || got != server {
					t.Errorf("%s: Elect(%s) of %s = %q, %v; want %q", when, office, s.Self(), got, err, server)
				}
			}
		}
	}
	resign := func(s store.Store, office string) {
		t.Helper()
		if err := s.Resign(t.Context(), office); err != nil {
			t.Error(err)
		}
	}
	resign(two, "a")
	elected("one that was not elected has resigned", "one", "one")
	resign(one, "a")
	elected("the one that was has", "two", "one")
	resign(one, "a")
	elected("and does once more", "two", "one")
	again := h.share(t, one)
	claim(t, again, server("one", "here"), time.Hour)
	wantClass(t, errdef.Fenced, func() error { return one.Resign(t.Context(), "b") })
	one = again
	elected("one that is fenced", "two", "two")
	free := h.open(t)
	resign(free, "a") // it has claimed nothing
}

// testOwnerless: what has no owner goes to the first server.
func testOwnerless(t *testing.T, h harness) {
	s := h.open(t)
	furnish(t, s)
	wantOwners(t, s, furnished(""))
	one, two := h.share(t, s), h.share(t, s)
	before, err := s.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	claim(t, one, server("one", "here"), time.Hour)
	wantOwners(t, s, furnished("one"))
	after, err := s.Changes(t.Context())
	for _, kind := range []store.Kind{store.KindSnapshots, store.KindVolumes, store.KindTemplates} {
		if err != nil || after[kind] <= before[kind] {
			t.Errorf("%s have got an owner: %d, was %d, %v", kind, after[kind], before[kind], err)
		}
	}
	for name, write := range writes() {
		if name == "RemoveVolume" || name == "RemoveSnapshot" {
			if err := write(t.Context(), one); err != nil {
				t.Errorf("%s of what was adopted: %v", name, err)
			}
		}
	}
	commit(t, h.share(t, s), sandbox("late", 1)) // by what has claimed nothing
	claim(t, two, server("two", "there"), time.Hour)
	claim(t, one, server("one", "here"), time.Hour)
	for _, sb := range sandboxes(t, two) {
		if want := map[bool]string{true: "", false: "one"}[sb.ID == "late"]; sb.Owner != want {
			t.Errorf("sandbox %s is of %q, want %q", sb.ID, sb.Owner, want)
		}
	}
}

// testAddress: servers find each other.
func testAddress(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	for _, address := range []string{"https://10.0.0.1:4000", "https://10.0.0.2:4000"} {
		srv := server("one", "here")
		srv.Address = address
		if got := claim(t, one, srv, time.Hour); got.Address != address {
			t.Errorf("claimed with address %q, want %q", got.Address, address)
		}
		if all := servers(t, two); len(all) != 2 || all[0].Address != address || all[1].Address != "" {
			t.Errorf("servers are %+v, want the first at %s", all, address)
		}
	}
}
