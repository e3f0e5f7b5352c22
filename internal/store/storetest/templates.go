package storetest

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

func built(id, key, name string) store.Template {
	return store.Template{ID: id, Key: key, Name: name, CreatedAt: epoch, UpdatedAt: epoch, Tags: map[string]store.Tag{}}
}

func templates(t *testing.T, s store.Store) []store.Template {
	t.Helper()
	all, err := s.Templates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// atOnce calls do n times at once. It returns how many calls had no error, and fails
// the test for an error of another class than the one wanted.
func atOnce(t *testing.T, n int, want errdef.Class, do func(i int) error) (done int) {
	t.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	for i, err := range errs {
		switch {
		case err == nil:
			done++
		case !errdef.Is(err, want):
			t.Errorf("call %d: %v, want an error of class %s", i, err, want)
		}
	}
	return done
}

func testTemplates(t *testing.T, h harness) {
	s := h.open(t)
	var in, want store.Template
	fill(t, &in, elsewhere)
	fill(t, &want, utc)
	in.Rev, want.Rev = 0, 1
	for _, x := range []store.Template{in, built("another", "k2", in.Name)} {
		if err := s.PutTemplate(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	in.Tags["later"] = store.Tag{} // of the caller alone
	for _, when := range []string{"before", "after"} {
		all := templates(t, s)
		if len(all) != 2 {
			t.Fatalf("%s reopen: %d templates", when, len(all))
		}
		diff(t, when+" reopen: Template", all[0], want)
		s = h.reopen(t, s)
	}
	want.Tags = map[string]store.Tag{"other": {Build: want.Builds[0].ID, Snapshot: "s1", At: epoch}}
	if err := s.PutTemplate(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	stale := want
	stale.Tags = nil
	wantClass(t, errdef.Conflict, func() error { return s.PutTemplate(t.Context(), stale) })
	want.Rev++
	diff(t, "changed", templates(t, s)[0], want)
	if err := s.RemoveTemplate(t.Context(), want.ID); err != nil {
		t.Fatal(err)
	}
	wantClass(t, errdef.NotFound, func() error { return s.RemoveTemplate(t.Context(), want.ID) })
	wantClass(t, errdef.NotFound, func() error { return s.PutTemplate(t.Context(), want) })
	s = h.reopen(t, s)
	if got := only(t, templates(t, s)); got.ID != "another" {
		t.Errorf("left is %+v", got)
	}
	want.Rev = 0
	if err := s.PutTemplate(t.Context(), want); err != nil { // nothing of it is in the way
		t.Error(err)
	}
}

// testTemplateWriters holds that of several who want one name, or to change one
// revision, one does, and that a key gets as many templates as it may have.
func testTemplateWriters(t *testing.T, h harness) {
	s := h.open(t)
	if n := atOnce(t, 8, errdef.Exists, func(i int) error { return s.PutTemplate(t.Context(), built(fmt.Sprint("t", i), "k", "name")) }); n != 1 {
		t.Errorf("%d templates of one key have one name", n)
	}
	first := only(t, templates(t, s))
	same := built(first.ID, "k2", "other")
	wantClass(t, errdef.Exists, func() error { return s.PutTemplate(t.Context(), same) })
	if n := atOnce(t, 8, errdef.Conflict, func(i int) error {
		change := first.Copy()
		change.Tags[fmt.Sprint("by", i)] = store.Tag{Build: "b", At: epoch}
		return s.PutTemplate(t.Context(), change)
	}); n != 1 {
		t.Errorf("%d changes were made of one revision", n)
	}
	if got := only(t, templates(t, s)); len(got.Tags) != 1 || got.Rev != 2 {
		t.Errorf("it is %+v", got)
	}
	renamed := only(t, templates(t, s))
	renamed.Name = "renamed"
	wantClass(t, errdef.Conflict, func() error { return s.PutTemplate(t.Context(), renamed) })

	const more = store.MostTemplates + 10
	n := atOnce(t, more, errdef.Exhausted, func(i int) error {
		return s.PutTemplate(t.Context(), built(fmt.Sprintf("m%03d", i), "k", fmt.Sprint("more", i)))
	})
	if n != store.MostTemplates-1 || len(templates(t, s)) != store.MostTemplates {
		t.Errorf("a key with one template got %d more, want %d", n, store.MostTemplates-1)
	}
	if err := s.PutTemplate(t.Context(), built("theirs", "k3", "name")); err != nil {
		t.Errorf("another key's: %v", err)
	}
}

// testOpenBuilds holds that builds of a key that are open are counted over all of its
// templates, and that a build has one template.
func testOpenBuilds(t *testing.T, h harness) {
	s := h.open(t)
	open := func(template, build string, at time.Time) error {
		x := built(template, "k", template)
		for _, has := range templates(t, s) {
			if has.ID == template {
				x = has
			}
		}
		x.Builds = append([]store.Build{{ID: build, Status: store.BuildWaiting, CreatedAt: at}}, x.Builds...)
		return s.PutTemplate(t.Context(), x)
	}
	if err := open("old", "forgotten", epoch.Add(-store.BuildStartWithin)); err != nil {
		t.Fatal(err)
	}
	n := atOnce(t, store.MostOpenBuilds+10, errdef.Exhausted, func(i int) error { return open(fmt.Sprint("t", i), fmt.Sprint("b", i), epoch) })
	if n != store.MostOpenBuilds {
		t.Errorf("%d builds are open, want %d", n, store.MostOpenBuilds)
	}
	before := templates(t, s)
	wantClass(t, errdef.Exhausted, func() error { return open("old", "more", epoch) })
	if after := templates(t, s); !reflect.DeepEqual(after, before) {
		t.Errorf("a refused build changed the templates to %+v", after)
	}
	over := before[len(before)-1]
	wantClass(t, errdef.Exists, func() error { return open("old", over.Builds[0].ID, epoch.Add(-time.Hour)) })
	over.Builds[0].Status = store.BuildReady
	for range 2 { // the second time it changes nothing but the revision
		if err := s.PutTemplate(t.Context(), over); err != nil {
			t.Fatal(err)
		}
		over.Rev++
	}
	s = h.reopen(t, s)
	if err := open("old", "more", epoch); err != nil {
		t.Errorf("with one over: %v", err)
	}
	wantClass(t, errdef.Exhausted, func() error { return open("old", "one too many", epoch) })
	if err := s.RemoveTemplate(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	if err := open("new", "more", epoch); err != nil {
		t.Errorf("with a template removed: %v", err)
	}
}

// testTemplateOrSnapshot holds that of a template and a snapshot that nobody built, and
// that could have one name, a key has one.
func testTemplateOrSnapshot(t *testing.T, h harness) {
	s := h.open(t)
	take := func(id, key, name, build string) error {
		snap := store.Snapshot{ID: id, Key: key, Name: name, CreatedAt: epoch, Config: store.Config{Build: build}}
		return s.CommitSnapshot(t.Context(), snap, sandbox("of "+id, 1), nil)
	}
	for i := range 10 {
		name := fmt.Sprint("n", i)
		if n := atOnce(t, 8, errdef.Exists, func(w int) error {
			if w == 0 {
				return s.PutTemplate(t.Context(), built("t"+name, "k", name))
			}
			return take(fmt.Sprint("s", name, w), "k", name+[]string{"", ":v1"}[w%2], "")
		}); n != 1 && n != 2 { // one template, or a snapshot of each name
			t.Errorf("%s: %d are there", name, n)
		}
	}
	taken := map[string]bool{}
	for _, snap := range snapshots(t, s) {
		taken[store.BaseName(snap.Name)] = true
	}
	for _, x := range templates(t, s) {
		if taken[x.Name] {
			t.Errorf("there are a template and a snapshot called %s", x.Name)
		}
	}
	if err := s.PutTemplate(t.Context(), built("ta", "k", "a")); err != nil {
		t.Fatal(err)
	}
	boxes := len(sandboxes(t, s))
	for _, name := range []string{"a", "a:v1", "ta"} {
		wantClass(t, errdef.Exists, func() error { return take("no", "k", name, "") })
		wantClass(t, errdef.Exists, func() error {
			return s.FreeForSnapshot(t.Context(), store.Snapshot{Key: "k", Name: name})
		})
	}
	if n := len(sandboxes(t, s)); n != boxes {
		t.Errorf("of snapshots that were refused %d sandboxes were committed", n-boxes)
	}
	for i, c := range []struct{ key, name, build string }{
		{"k", "a", "b1"}, {"k", "a:v1", "b1"}, {"k", "", ""}, {"k", "ab", ""}, {"k", "a-b:v1", ""}, {"k2", "a", ""}, {"k", "c", "b2"},
	} {
		if err := s.FreeForSnapshot(t.Context(), store.Snapshot{Key: c.key, Name: c.name, Config: store.Config{Build: c.build}}); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if err := take(fmt.Sprint("c", i), c.key, c.name, c.build); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, x := range []struct{ key, name string }{{"k", "ab"}, {"k", "a-b"}, {"k2", "a"}} {
		wantClass(t, errdef.Exists, func() error { return s.PutTemplate(t.Context(), built("tno", x.key, x.name)) })
	}
	if err := s.PutTemplate(t.Context(), built("tc", "k", "c")); err != nil { // its own result is in nobody's way
		t.Error(err)
	}
}

// testResults holds that a result of a build is one of its template from the commit on
// that takes the name from the result before.
func testResults(t *testing.T, h harness) {
	s := h.open(t)
	app := built("t", "k", "app")
	app.Builds = []store.Build{{ID: "of s1", Status: store.BuildRunning, CreatedAt: epoch}, {ID: "of s5", Status: store.BuildRunning, CreatedAt: epoch}}
	app.Tags["old"] = store.Tag{Build: "of s2", Snapshot: "s0", At: epoch} // of a build that is not remembered
	for _, x := range []store.Template{app, built("other", "k2", "app")} {
		if err := s.PutTemplate(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	take := func(snap store.Snapshot) {
		t.Helper()
		snap.Key, snap.Config.Build = "k", "of "+snap.ID
		if err := s.CommitSnapshot(t.Context(), snap, latest(t, s, sandbox("box", 1)), nil); err != nil {
			t.Fatal(err)
		}
	}
	take(store.Snapshot{ID: "s1", Name: "app", CreatedAt: elsewhere(1), Checkpoint: lifecycle.Checkpoint{Mode: lifecycle.Memory}})
	take(store.Snapshot{ID: "s2", Name: "app:v2", CreatedAt: utc(2)})
	take(store.Snapshot{ID: "s3", CreatedAt: utc(3)}) // of a step
	take(store.Snapshot{ID: "s4", Name: "gone", CreatedAt: utc(3)})
	take(store.Snapshot{ID: "s5", Name: "app:v2", Replaces: "s2", CreatedAt: utc(4)})
	wantClass(t, errdef.Exists, func() error { // nothing of one that is refused
		snap := store.Snapshot{ID: "s6", Key: "k", Name: "app", CreatedAt: utc(5), Config: store.Config{Build: "of s1"}}
		return s.CommitSnapshot(t.Context(), snap, latest(t, s, sandbox("box", 1)), nil)
	})
	s = h.reopen(t, s)
	all := templates(t, s)
	want := map[string]store.Tag{
		store.DefaultTag: {Build: "of s1", Snapshot: "s1", Memory: true, At: utc(1)},
		"v2":             {Build: "of s5", Snapshot: "s5", At: utc(4)},
		"old":            app.Tags["old"],
	}
	if i := slices.IndexFunc(all, func(x store.Template) bool { return x.ID == "t" }); !reflect.DeepEqual(all[i].Tags, want) || !all[i].UpdatedAt.Equal(utc(4)) || all[i].Rev != 4 {
		t.Errorf("the template is %+v", all[i])
	} else if len(all[1-i].Tags) != 0 {
		t.Errorf("that of another key is %+v", all[1-i])
	}
	stale := built("t", "k", "app")
	stale.Rev = 1
	wantClass(t, errdef.Conflict, func() error { return s.PutTemplate(t.Context(), stale) })
}

// testLateResult: a build whose template was removed gives its result to no template that
// has the name since, also not to one of another server.
func testLateResult(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	for _, next := range []store.Store{one, two} {
		first := built("t1 of "+next.Self(), "k", "app of "+next.Self())
		first.Builds = []store.Build{{ID: "b1 of " + next.Self(), Status: store.BuildRunning, CreatedAt: epoch}}
		second := built("t2 of "+next.Self(), "k", first.Name)
		second.Builds = []store.Build{{ID: "b2 of " + next.Self(), Status: store.BuildRunning, CreatedAt: epoch}}
		for _, err := range []error{
			one.PutTemplate(t.Context(), first),
			one.RemoveTemplate(t.Context(), first.ID),
			next.PutTemplate(t.Context(), second),
			one.CommitSnapshot(t.Context(), store.Snapshot{ID: "s of " + next.Self(), Key: "k", Name: first.Name, CreatedAt: utc(1), Config: store.Config{Build: first.Builds[0].ID}}, latest(t, one, sandbox("box", 1)), nil),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		all := templates(t, one)
		second.Owner, second.Rev = next.Self(), 1
		i := slices.IndexFunc(all, func(x store.Template) bool { return x.ID == second.ID })
		diff(t, "the second template", all[i], second)
	}
}
