package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

func TestSecondBuildRunsNoStep(t *testing.T) {
	w := newWorld(t)
	r := recipe(run("one"), Step{Kind: Env, Args: []string{"A", "b"}}, run("two"))
	if b := w.make("tpl", r); b.Status != Ready {
		t.Fatalf("%s: %+v", b.Status, b.Reason)
	}
	if got := w.commands(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("ran %q", got)
	}
	snap, ok := w.named("tpl")
	if !ok || snap.done != "|one|two" || snap.spec.State.Env["A"] != "b" || snap.memory {
		t.Errorf("the result is %+v", snap)
	}
	w.make("tpl", r)
	if got := w.commands(); len(got) > 0 {
		t.Errorf("the second build ran %q", got)
	}
	if again, _ := w.named("tpl"); again.done != "|one|two" {
		t.Errorf("the second result is %+v", again)
	}
	w.open() // what is known survives the server
	w.make("tpl", r)
	if got := w.commands(); len(got) > 0 {
		t.Errorf("the build after a restart ran %q", got)
	}
}

func TestChangedStepsRun(t *testing.T) {
	for name, c := range map[string]struct {
		then Recipe
		want []string
	}{
		"last":      {recipe(run("a"), run("b"), run("x")), []string{"x"}},
		"middle":    {recipe(run("a"), run("x"), run("c")), []string{"x", "c"}},
		"fewer":     {recipe(run("a")), nil},
		"env":       {recipe(Step{Kind: Env, Args: []string{"A", "b"}}, run("a"), run("b")), []string{"a", "b"}},
		"user":      {recipe(run("a"), Step{Kind: Run, Args: []string{"b", "root"}}), []string{"b"}},
		"all":       {Recipe{Base: Base{Template: "base"}, Force: true, Steps: []Step{run("a"), run("b")}}, []string{"a", "b"}},
		"from here": {recipe(run("a"), Step{Kind: Run, Args: []string{"b"}, Force: true}, run("c")), []string{"b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.make("tpl", recipe(run("a"), run("b"), run("c")))
			w.commands()
			if b := w.make("tpl", c.then); b.Status != Ready {
				t.Fatalf("%s: %+v", b.Status, b.Reason)
			}
			if got := w.commands(); !slices.Equal(got, c.want) {
				t.Errorf("ran %q, want %q", got, c.want)
			}
		})
	}
}

func TestStateOfSteps(t *testing.T) {
	w := newWorld(t)
	id := w.start("tpl", recipe(
		Step{Kind: User, Args: []string{"ada"}}, Step{Kind: Workdir, Args: []string{"/srv"}}, Step{Kind: Workdir, Args: []string{"app"}},
		Step{Kind: Env, Args: []string{"A", "1", "B", "$A"}}, run("who"), Step{Kind: Run, Args: []string{"who", "root"}}))
	if b := w.await("tpl", id); b.Status != Ready {
		t.Fatalf("%+v", b.Reason)
	}
	p, _ := w.Progress("tpl", id, 0, 1000)
	var said []string
	for _, l := range p.Lines {
		if strings.Contains(l.Text, " with ") {
			said = append(said, l.Step+": "+l.Text)
		}
	}
	want := []string{"5: ada in /srv/app with map[A:1 B:expanded]", "6: root in /srv/app with map[A:1 B:expanded]"}
	if !slices.Equal(said, want) {
		t.Errorf("commands ran as %q, want %q", said, want)
	}
	if snap, _ := w.named("tpl"); snap.spec.State.User != "ada" || snap.spec.State.Workdir != "/srv/app" {
		t.Errorf("the result has %+v", snap.spec.State)
	}
}

func TestFailedStep(t *testing.T) {
	w := newWorld(t)
	b := w.make("tpl", recipe(run("one"), run("exit 3"), run("two")))
	if b.Status != Failed || b.Reason == nil || b.Reason.Step != "2" || b.Reason.Text != "exit 3" {
		t.Fatalf("%s: %+v", b.Status, b.Reason)
	}
	if _, has := w.named("tpl"); has {
		t.Error("there is a result")
	}
	w.commands()
	if b := w.make("tpl", recipe(run("one"), run("better"))); b.Status != Ready {
		t.Fatalf("%+v", b.Reason)
	}
	if got := w.commands(); !slices.Equal(got, []string{"better"}) {
		t.Errorf("the build after the failed one ran %q", got)
	}
	if b := w.make("other", Recipe{Base: Base{Template: "nothing"}}); b.Reason == nil || b.Reason.Step != "base" {
		t.Errorf("of a base that is not there: %+v", b.Reason)
	}
}

// A build that failed leaves the result of the one before as it is.
func TestFailureKeepsTheResult(t *testing.T) {
	w := newWorld(t)
	w.make("tpl", recipe(run("one")))
	w.make("tpl", recipe(run("exit 1")))
	if snap, _ := w.named("tpl"); snap.done != "|one" {
		t.Errorf("the result is %+v", snap)
	}
}

// What a step leaves in /tmp is there in the next ones, and for the start command;
// it is not among the files of the result.
func TestTmpGoesFromStepToStep(t *testing.T) {
	w := newWorld(t)
	r := recipe(run("tmp one"), run("tmp ,two"))
	w.make("tpl", r)
	if snap, _ := w.named("tpl"); snap.saved != "" {
		t.Errorf("the result has %q among its files", snap.saved)
	}
	r.Steps = append(r.Steps, run("tmp ,three")) // the first two are known
	r.Start, r.Ready = "echo", "true"
	w.make("tpl", r)
	if snap, _ := w.named("tpl"); snap.tmp != "one,two,three" || snap.saved != "" || !snap.memory {
		t.Errorf("the result that runs is %+v", snap)
	}
}

func TestStartCommand(t *testing.T) {
	w := newWorld(t)
	r := recipe(run("one"))
	r.Start, r.Ready = "serve", "ready?"
	if b := w.make("tpl", r); b.Status != Ready {
		t.Fatalf("%+v", b.Reason)
	}
	if snap, _ := w.named("tpl"); !snap.memory || !strings.Contains(snap.done, "|serve") {
		t.Errorf("the result is %+v", snap)
	}
	r.Start, r.Ready = "exit 4", "exit 1"
	b := w.make("tpl", r)
	if b.Reason == nil || b.Reason.Step != "finalize" || !strings.Contains(b.Reason.Text, "exit 4") {
		t.Errorf("of a start command that fails: %s, %+v", b.Status, b.Reason)
	}
}

func TestCopiedFiles(t *testing.T) {
	w := newWorld(t)
	hash := strings.Repeat("a", 64)
	s := Step{Kind: Copy, Args: []string{"src/*.py", "/app", "", ""}, Files: hash}
	_, b, err := w.Request(Request{Name: "tpl", Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	class(t, w.Start("tpl", b.ID, recipe(s)), errdef.Invalid, "build_files_missing")
	if err := w.PutFiles(t.Context(), "tpl", hash, io.MultiReader(strings.NewReader("half"), brokenReader{})); err == nil {
		t.Error("half an archive was taken")
	}
	if has, err := w.HasFiles("tpl", hash); has || err != nil {
		t.Errorf("half an archive is there: %v", err)
	}
	if err := w.PutFiles(t.Context(), "tpl", hash, strings.NewReader("archive")); err != nil {
		t.Fatal(err)
	}
	if err := w.Start("tpl", b.ID, recipe(s)); err != nil {
		t.Fatal(err)
	}
	if b := w.await("tpl", b.ID); b.Status != Ready {
		t.Fatalf("%+v", b.Reason)
	}
	want := fmt.Sprintf("|put archive|script %s/%s src /app user:user   user -xf", unpackDir, hash)
	if snap, _ := w.named("tpl"); snap.done != want {
		t.Errorf("did %q, want %q", snap.done, want)
	}
	class(t, w.Start("tpl", b.ID, recipe(s)), errdef.Invalid, "build_started")
	for _, bad := range []string{"", "x", strings.Repeat("A", 64), "../" + strings.Repeat("a", 61)} {
		class(t, w.PutFiles(t.Context(), "tpl", bad, strings.NewReader("")), errdef.Invalid, "build_files_invalid")
	}
	if err := w.PutFiles(t.Context(), "nothing", hash, strings.NewReader("")); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("files of no template: %v", err)
	}
}

// What uploads have left that a server did not finish is removed by the next.
func TestUnfinishedUploadsAreRemoved(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.Request(Request{Name: "tpl", Key: "k1"}); err != nil {
		t.Fatal(err)
	}
	hash := strings.Repeat("a", 64)
	if err := w.PutFiles(t.Context(), "tpl", hash, strings.NewReader("whole")); err != nil {
		t.Fatal(err)
	}
	left := []string{w.files.path(incomingDir, "1"), w.files.path("gone", hash)}
	for _, path := range left {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("left"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	w.open()
	for _, path := range left {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if has, err := w.HasFiles("tpl", hash); !has || err != nil {
		t.Errorf("whole files are gone: %v", err)
	}
}

// The oldest files of a key go where it has too many, and no others.
func TestOldFilesMakeRoom(t *testing.T) {
	w := newWorld(t)
	w.files.most = 25
	for name, key := range map[string]string{"a": "k1", "b": "k1", "c": "k2"} {
		if _, _, err := w.Request(Request{Name: name, Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	hash := func(n int) string { return fmt.Sprintf("%064x", n) }
	put := func(name string, n int) {
		if err := w.PutFiles(t.Context(), name, hash(n), strings.NewReader("ten bytes.")); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(n), 0)
		if err := os.Chtimes(w.files.path(w.idOf(name), hash(n)), at, at); err != nil {
			t.Fatal(err)
		}
	}
	put("c", 1)
	put("a", 2)
	put("b", 3)
	put("b", 4)
	for name, want := range map[string]map[int]bool{"a": {2: false}, "b": {3: true, 4: true}, "c": {1: true}} {
		for n, want := range want {
			if has, err := w.HasFiles(name, hash(n)); has != want || err != nil {
				t.Errorf("%v: file %d of %s is there: %t, want %t", err, n, name, has, want)
			}
		}
	}
}

// TestFilesStayAsTheyAre: the first who sends files of a hash has sent them. Others are
// heard to their end, and change nothing.
func TestFilesStayAsTheyAre(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.Request(Request{Name: "tpl", Key: "k1"}); err != nil {
		t.Fatal(err)
	}
	hash := strings.Repeat("a", 64)
	slow, more := io.Pipe()
	late := make(chan error, 1)
	go func() { late <- w.PutFiles(t.Context(), "tpl", hash, slow) }()
	if _, err := more.Write([]byte("late")); err != nil { // it has begun
		t.Fatal(err)
	}
	if err := w.PutFiles(t.Context(), "tpl", hash, strings.NewReader("first")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(more.Close(), <-late); err != nil {
		t.Errorf("an upload that came late: %v", err)
	}
	again := strings.NewReader("again")
	if err := w.PutFiles(t.Context(), "tpl", hash, again); err != nil || again.Len() != 0 {
		t.Errorf("an upload of files that are here: %v, and %d bytes not read", err, again.Len())
	}
	if got, err := os.ReadFile(w.files.path(w.idOf("tpl"), hash)); string(got) != "first" {
		t.Errorf("the files are %q, %v", got, err)
	}
	if left, err := os.ReadDir(filepath.Join(w.files.dir, incomingDir)); len(left) != 0 {
		t.Errorf("left of uploads: %v, %v", left, err)
	}
}

// TestUploadsEnd: an upload comes too late when its template, its build or its sender is
// gone by its end. It does not keep the template from going.
func TestUploadsEnd(t *testing.T) {
	hash := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		end  func(w *world, build string, forbid func()) error
		code string
	}{
		"the template": {func(w *world, _ string, _ func()) error {
			err := w.Delete(w.Context(), "tpl")
			_, _, again := w.Request(Request{Name: "tpl", Key: "k1"})
			return errors.Join(err, again)
		}, "template_not_found"},
		"the build": {func(w *world, build string, _ func()) error {
			err := w.Start("tpl", build, recipe(run("one")))
			_, _, again := w.Request(Request{Name: "tpl", Key: "k1"})
			return errors.Join(err, again)
		}, "build_started"},
		"the sender": {func(_ *world, _ string, forbid func()) error { forbid(); return nil }, "role_insufficient"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tpl, b, err := w.Request(Request{Name: "tpl", Key: "k1"})
			if err != nil {
				t.Fatal(err)
			}
			var forbidden atomic.Bool
			u := Upload{Template: tpl.ID, Hash: hash, Asked: now(), May: func() error {
				if forbidden.Load() {
					return errdef.New(errdef.Forbidden, "role_insufficient", "no")
				}
				return nil
			}}
			slow, more := io.Pipe()
			u.Data = slow
			ended := make(chan error, 1)
			go func() { ended <- w.Builder.PutFiles(t.Context(), u) }()
			if _, err := more.Write([]byte("files")); err != nil {
				t.Fatal(err)
			}
			if err := c.end(w, b.ID, func() { forbidden.Store(true) }); err != nil {
				t.Fatal(err)
			}
			if err := more.Close(); err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				if e, ok := errors.AsType[*errdef.Error](<-ended); !ok || e.Code != c.code {
					t.Errorf("try %d: %v, want %s", i, e, c.code)
				}
				u.Data = strings.NewReader("again")
				ended <- w.Builder.PutFiles(t.Context(), u)
			}
			for _, id := range []string{tpl.ID, w.idOf("tpl")} {
				if w.files.has(id, hash) {
					t.Errorf("the files are there")
				}
			}
		})
	}
}

// TestDeleteDuringUploads deletes a template again and again while files come for it.
func TestDeleteDuringUploads(t *testing.T) {
	w := newWorld(t)
	for i := range 50 {
		tpl, _, err := w.Request(Request{Name: "tpl", Key: "k1"})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for n := range mostUploads {
			all.Go(func() {
				u := Upload{Template: tpl.ID, Hash: fmt.Sprintf("%064x", n), Asked: time.Now(), May: func() error { return nil }, Data: strings.NewReader("files")}
				if err := w.Builder.PutFiles(t.Context(), u); err != nil && !errdef.Is(err, errdef.NotFound) {
					t.Errorf("upload %d: %v", i, err)
				}
			})
		}
		if err := w.Delete(t.Context(), "tpl"); err != nil {
			t.Errorf("delete %d: %v", i, err)
		}
		all.Wait()
		if left, err := os.ReadDir(filepath.Join(w.files.dir, tpl.ID)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left of it: %v, %v", left, err)
		}
	}
}

// TestNamesOfKeys: two keys have templates of one name, and neither touches the other's.
func TestNamesOfKeys(t *testing.T) {
	w := newWorld(t)
	one, _, err := w.Request(Request{Name: "tpl", Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	two, _, err := w.Request(Request{Name: "tpl", Key: "k2"})
	if err != nil || two.ID == one.ID {
		t.Fatalf("%v: the templates of two keys are %s and %s", err, one.ID, two.ID)
	}
	for key, want := range map[string]string{"k1": one.ID, "k2": two.ID} {
		if got, err := w.Builder.Template(key, "tpl"); err != nil || got.ID != want {
			t.Errorf("to %s the name stands for %s, %v; want %s", key, got.ID, err, want)
		}
	}
	if _, err := w.Builder.Template("k3", "tpl"); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("to a third key: %v", err)
	}
	if err := w.Builder.Delete(t.Context(), one.ID); err != nil {
		t.Fatal(err)
	}
	w.open()
	if got, err := w.Builder.Template("k2", "tpl"); err != nil || got.ID != two.ID {
		t.Errorf("with the other gone: %s, %v", got.ID, err)
	}
	for _, name := range []string{one.ID, "s" + one.ID[1:]} {
		_, _, err := w.Request(Request{Name: name, Key: "k1"})
		class(t, err, errdef.Invalid, "template_name_invalid")
	}
}

// asBefore has what a template is be in a file alone, as a server before had it: under
// its id, or its name.
func (w *world) asBefore(name string, version int) (path string, data []byte) {
	w.Helper()
	w.Stop()
	old, err := w.Builder.Template("", w.idOf(name))
	if err != nil {
		w.Fatal(err)
	}
	stem := old.ID
	if version == 1 {
		old.ID, stem = "", old.Name
	}
	data, err = json.Marshal(map[string]any{"version": version, "template": old})
	path = w.recordPath(stem)
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
		w.Fatal(err)
	}
	w.data = memstore.NewData()
	return path, data
}

// TestTemplatesOfAServerBefore: what it had in files is in the store, with ids and
// uploads, also if the server is killed while it takes them over, or cannot.
func TestTemplatesOfAServerBefore(t *testing.T) {
	for version := 1; version <= 2; version++ {
		w := newWorld(t)
		w.make("tpl", recipe(run("one")))
		_, waits, err := w.Request(Request{Name: "tpl", Key: "k1"})
		if err != nil {
			t.Fatal(err)
		}
		path, data := w.asBefore("tpl", version)
		hash, stem := strings.Repeat("a", 64), strings.TrimSuffix(filepath.Base(path), recordEnd)
		files := w.files.path(stem, hash)
		if err := errors.Join(os.MkdirAll(filepath.Dir(files), 0o700), os.WriteFile(files, []byte("files"), 0o600)); err != nil {
			t.Fatal(err)
		}
		refuse := memstore.Open(w.data, memstore.Hooks{})
		if _, err := Open(t.Context(), Options{Dir: w.dir, Store: fullStore{refuse}, Origins: w.shop, Workshop: w.shop, Yard: w.shop, Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Error("it opened without the store")
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("what could not be stored: %v", err)
		}
		for range 2 { // the second time the file is there still
			w.open()
			now, err := w.Builder.Template("k1", "tpl")
			if err != nil || now.ID == "" || len(now.Cache) != 1 || len(now.Builds) != 2 || len(w.Templates()) != 1 {
				t.Fatalf("%v: it is %+v, of %d", err, now, len(w.Templates()))
			}
			if now.Build(waits.ID).Status != Failed {
				t.Errorf("the build that waited is %+v", now.Build(waits.ID))
			}
			if !w.files.has(now.ID, hash) {
				t.Error("its files are gone")
			}
			if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the files of before: %v", err)
			}
			w.Stop()
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600), os.WriteFile(path+".new", nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		w.open()
		w.commands()
		w.make("tpl", recipe(run("one")))
		if got := w.commands(); len(got) != 0 {
			t.Errorf("the next build ran %q again", got)
		}
	}
}

// fullStore takes nothing.
type fullStore struct{ *memstore.Store }

func (fullStore) PutTemplate(context.Context, Template) error { return memstore.ErrFull }

// TestTwoServers has two builders on one store: what one does holds for the other, whose
// memory knows nothing of it.
func TestTwoServers(t *testing.T) {
	w := newWorld(t)
	one := w.Builder
	w.open()
	two := w.Builder
	if _, _, err := one.Request(Request{Name: "tpl", Key: "k1"}); err != nil {
		t.Fatal(err)
	}
	for i := range store.MostOpenBuilds + 5 {
		_, _, err := []*Builder{two, one}[i%2].Request(Request{Name: "tpl", Key: "k1"})
		if i < store.MostOpenBuilds-1 && err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if i >= store.MostOpenBuilds-1 {
			class(t, err, errdef.Exhausted, "too_many_builds")
		}
	}
	all, err := one.o.Store.Templates(t.Context())
	if err != nil || len(all) != 1 || len(all[0].Builds) != store.MostOpenBuilds {
		t.Fatalf("%v: there are %+v", err, all)
	}
	if err := one.Delete(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	class(t, two.Untag(t.Context(), all[0].ID, nil), errdef.NotFound, "template_not_found")
	if again, _, err := two.Request(Request{Name: "tpl", Key: "k1"}); err != nil || again.ID == all[0].ID {
		t.Errorf("after the other server deleted it: %s, %v", again.ID, err)
	}
}

// TestTemplatesOfOtherServers: each server knows the templates of all, and builds and
// changes its own alone.
func TestTemplatesOfOtherServers(t *testing.T) {
	one := &world{T: t, shop: newShop(), dir: t.TempDir(), data: memstore.NewData(), server: "one"}
	one.open()
	one.make("done", recipe(run("one")))
	runs := one.start("runs", recipe(run("block")))
	<-one.blocked

	two := &world{T: t, shop: newShop(), dir: t.TempDir(), data: one.data, server: "two"}
	two.open()
	if p, err := one.Progress("runs", runs, 0, 1); err != nil || p.Build.Status != Building {
		t.Errorf("beside another server that starts, the build is %+v, %v", p.Build, err)
	}
	late, _, err := one.Request(Request{Name: "late", Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := two.Builder.Template("k1", "late"); err != nil || got.ID != late.ID || got.Owner != "one" {
		t.Errorf("what another server has just made is %+v, %v", got, err)
	}
	elsewhere := func(about string, err error) {
		t.Helper()
		if server, ok := store.Elsewhere(err); !ok || server != "one" {
			t.Errorf("%s: %v, want that it is on server one", about, err)
		}
	}
	for _, name := range []string{"done", "runs", "late"} {
		_, _, err := two.Request(Request{Name: name, Key: "k1"})
		elsewhere("build", err)
		elsewhere("start", two.Start(name, runs, recipe(run("x"))))
		_, err = two.Progress(name, runs, 0, 1)
		elsewhere("log", err)
		_, err = two.Tag(t.Context(), name+":default", []string{"x"})
		elsewhere("tag", err)
		elsewhere("untag", two.Untag(t.Context(), name, []string{"x"}))
		_, err = two.HasFiles(name, strings.Repeat("a", 64))
		elsewhere("files", err)
		elsewhere("delete", two.Delete(t.Context(), name))
	}

	two.make("own", recipe(run("two")))
	if err := one.Delete(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*world{one, two} {
		if err := w.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tpl := range w.Templates() {
			names = append(names, tpl.Name)
		}
		if want := []string{"late", "own", "runs"}; !slices.Equal(names, want) {
			t.Errorf("server %s knows %q, want %q", w.server, names, want)
		}
	}
	close(one.block)
	if b := one.await("runs", runs); b.Status != Ready {
		t.Errorf("after all that the build is %+v", b)
	}
}

// TestBuildWhereItsSnapshotIs: the first build of a template is made by the server that has the
// snapshot with which it begins, with what was uploaded to another. What a server has made of a
// template stays on it.
func TestBuildWhereItsSnapshotIs(t *testing.T) {
	one := &world{T: t, shop: newShop(), dir: t.TempDir(), data: memstore.NewData(), server: "one"}
	one.open()
	two := &world{T: t, shop: newShop(), dir: t.TempDir(), data: one.data, server: "two", others: []*world{one}}
	two.open()
	hash := strings.Repeat("a", 64)
	on := func(server string, steps ...Step) Recipe {
		return Recipe{Base: Base{Template: "on:" + server}, Steps: steps}
	}
	copies := Step{Kind: Copy, Args: []string{"a", "b", "", ""}, Files: hash}
	elsewhere := func(about, want string, err error) {
		t.Helper()
		if server, ok := store.Elsewhere(err); !ok || server != want {
			t.Errorf("%s: %v, want that it is on server %s", about, err, want)
		}
	}

	tpl, b, err := one.Request(Request{Name: "tpl", Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	class(t, two.Start(tpl.ID, b.ID, on("two", copies)), errdef.Invalid, "build_files_missing")
	if got, _ := two.Builder.Template("k1", tpl.ID); got.Owner != "two" {
		t.Errorf("what only waits is server %q's", got.Owner)
	}
	if err := one.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = one.HasFiles(tpl.ID, hash)
	elsewhere("upload", "two", err)

	files, b, err := one.Request(Request{Name: "files", Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := one.PutFiles(t.Context(), files.ID, hash, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	elsewhere("where the snapshot is not", "two", one.Start(files.ID, b.ID, on("two", copies)))
	elsewhere("without a snapshot", "one", two.Start(files.ID, b.ID, recipe(copies)))
	if err := two.Start(files.ID, b.ID, on("two", run("true"), copies)); err != nil {
		t.Fatal(err)
	}
	if b := two.await(files.ID, b.ID); b.Status != Ready {
		t.Fatalf("%s: %+v", b.Status, b.Reason)
	}
	if got := two.commands(); len(got) == 0 || got[0] != "true" {
		t.Errorf("ran %q", got)
	}
	if err := one.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.work.Wait()
	if one.files.has(files.ID, hash) {
		t.Error("its files are still where they were uploaded")
	}
	elsewhere("start again", "two", one.Start(files.ID, b.ID, recipe(run("x"))))

	_, b, err = two.Request(Request{Name: "files", Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere("what was made already", "two", one.Start(files.ID, b.ID, on("one", run("x"))))
	if err := two.Start(files.ID, b.ID, on("two", run("true"))); err != nil {
		t.Fatal(err)
	}
	two.await(files.ID, b.ID)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestTakenOverDuringBuild: a build ends whose template another server has taken over meanwhile,
// and leaves nothing, whether its server has learned of that or not.
func TestTakenOverDuringBuild(t *testing.T) {
	for _, learns := range []bool{true, false} {
		w := &world{T: t, shop: newShop(), dir: t.TempDir(), data: memstore.NewData(), server: "one"}
		w.open()
		if _, _, err := w.Request(Request{Name: "tpl", Key: "k1"}); err != nil { // for which files are sent
			t.Fatal(err)
		}
		hash := strings.Repeat("a", 64)
		if err := w.PutFiles(t.Context(), "tpl", hash, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		id := w.start("tpl", recipe(run("one"), run("block")))
		<-w.blocked
		one, two := w.put.Store, memstore.Open(w.data, memstore.Hooks{})
		if _, err := two.Claim(t.Context(), store.Server{ID: "two", Place: "two"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		next := w.Templates()[0]
		next.Cache = nil
		next.FailUnfinished("it is gone", now())
		if err := errors.Join(one.Leave(t.Context()), one.Renew(t.Context(), 0), two.TakeTemplate(t.Context(), next, nil), one.Renew(t.Context(), time.Hour)); err != nil {
			t.Fatal(err)
		}
		if learns {
			if err := w.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else {
			close(w.block)
			w.work.Wait()
			if err := w.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.work.Wait()
		w.clean()
		if w.files.has(next.ID, hash) {
			t.Error("its files are still here")
		}
		if got, err := w.With(t.Context(), next.ID); err != nil || got.Owner != "two" || got.Build(id).Status != Failed || got.Build(id).Reason.Text != "it is gone" {
			t.Errorf("the template is %+v, %v", got, err)
		}
		_, err := w.Progress("tpl", id, 0, 1)
		class(t, err, errdef.Conflict, "on_another_server")
		w.open() // nothing of it is in the way of a start
	}
}

func TestTags(t *testing.T) {
	w := newWorld(t)
	r := recipe(run("one"))
	r.Ready = "ready?"
	b := w.make("tpl", r, "v1", "v2")
	id, err := w.Tag(t.Context(), "tpl:v1", []string{"prod", "default"})
	if err != nil || id != b.ID {
		t.Fatalf("%s, %v", id, err)
	}
	w.clean()
	for _, name := range []string{"tpl", "tpl:v1", "tpl:v2", "tpl:prod"} {
		if snap, ok := w.named(name); !ok || !strings.HasPrefix(snap.done, "|one") || !snap.memory {
			t.Errorf("%s is %+v", name, snap)
		}
	}
	class(t, w.Untag(t.Context(), "tpl", []string{"default"}), errdef.Invalid, "template_tag_fixed")
	class(t, w.Untag(t.Context(), "tpl", []string{"v1", "nothing"}), errdef.NotFound, "template_tag_not_found")
	if _, ok := w.named("tpl:v1"); !ok {
		t.Error("a refused call removed a tag")
	}
	if err := w.Untag(t.Context(), "tpl", []string{"v1", "v2"}); err != nil {
		t.Fatal(err)
	}
	w.clean()
	_, err = w.Tag(t.Context(), "tpl:v1", []string{"x"})
	class(t, err, errdef.NotFound, "template_tag_not_found")
	if err := w.Delete(t.Context(), "tpl"); err != nil {
		t.Fatal(err)
	}
	w.clean()
	if err := w.Delete(t.Context(), "tpl"); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	w.open()
	if all := w.Templates(); len(all) > 0 {
		t.Errorf("after a restart there is %v", all)
	}
}

func TestServerStopsDuringBuild(t *testing.T) {
	w := newWorld(t)
	id := w.start("tpl", recipe(run("one"), run("block"), run("two")))
	<-w.blocked
	_, waits, err := w.Request(Request{Name: "tpl", Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	w.open()
	w.clean()
	for _, id := range []string{id, waits.ID} {
		if p, err := w.Progress("tpl", id, 0, 10); err != nil || p.Build.Status != Failed || !strings.Contains(p.Build.Reason.Text, "server was stopped") {
			t.Errorf("%v: %+v", err, p)
		}
	}
	w.commands()
	w.make("tpl", recipe(run("one"), run("two")))
	if got := w.commands(); !slices.Equal(got, []string{"two"}) {
		t.Errorf("the build after that ran %q", got)
	}
}

// A server that is killed leaves a sandbox, and a snapshot that no record has.
func TestServerIsKilledDuringBuild(t *testing.T) {
	w := newWorld(t)
	before := w.Builder
	id := w.start("tpl", recipe(run("one"), run("block")))
	<-w.blocked
	w.open()
	w.clean()
	if p, err := w.Progress("tpl", id, 0, 10); err != nil || p.Build.Status != Failed {
		t.Errorf("%v: %+v", err, p)
	}
	before.Stop()
	w.commands()
	w.make("tpl", recipe(run("one"), run("two")))
	if got := w.commands(); !slices.Equal(got, []string{"two"}) {
		t.Errorf("the build after that ran %q", got)
	}
}

// A file of a server before that cannot be taken over stops the server before anything
// is removed that only the file says is needed.
func TestUnreadableRecord(t *testing.T) {
	w := newWorld(t)
	w.make("tpl", recipe(run("one")))
	at, good := w.asBefore("tpl", 2)
	unreadable := func(what, text string) {
		t.Helper()
		_, err := Open(t.Context(), Options{Dir: w.dir, Store: memstore.Open(w.data, memstore.Hooks{}), Origins: w.shop, Workshop: w.shop, Yard: w.shop, Log: slog.New(slog.DiscardHandler)})
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "template_unreadable" || !strings.Contains(err.Error(), at) || !strings.Contains(err.Error(), text) {
			t.Errorf("with the record %q: %v", what, err)
		}
	}
	for _, bad := range []string{"", "{", `{"version":99,"template":{"name":"tpl"}}`} {
		if err := os.WriteFile(at, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		unreadable(bad, "")
	}
	if err := os.WriteFile(at, good, 0o600); err != nil {
		t.Fatal(err)
	}
	st := memstore.Open(w.data, memstore.Hooks{})
	other := Template{ID: newTemplateID(), Name: "tpl", Key: "k1"}
	if err := st.PutTemplate(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	unreadable("beside another of its name", `another template named "tpl"`)
	if err := st.RemoveTemplate(t.Context(), other.ID); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.commands()
	w.make("tpl", recipe(run("one")))
	if got := w.commands(); len(got) != 0 {
		t.Errorf("with the record back the build ran %q again", got)
	}
}

func TestDeleteDuringBuild(t *testing.T) {
	w := newWorld(t)
	w.start("tpl", recipe(run("one"), run("block")))
	<-w.blocked
	if err := w.Delete(t.Context(), "tpl"); err != nil {
		t.Fatal(err)
	}
	if b := w.make("tpl", recipe(run("two"))); b.Status != Ready { // another of that name
		t.Errorf("%+v", b.Reason)
	}
	if all, err := w.Builder.Template("k1", "tpl"); err != nil || len(all.Cache) != 1 || len(all.Builds) != 1 {
		t.Errorf("%v: the new template has what the old one led to: %+v", err, all)
	}
}

// The builds of an API key wait for each other, also for those that never end. Nobody
// else's do.
func TestFewBuildsRunAtOnce(t *testing.T) {
	w := newWorld(t)
	var all []string
	for i := range 5 {
		all = append(all, w.start(fmt.Sprintf("t%d", i), recipe(run("block"))))
	}
	for range sideBySide {
		<-w.blocked
	}
	_, other, err := w.Builder.Request(Request{Name: "others", Key: "another"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start("others", other.ID, recipe(run("one"))); err != nil {
		t.Fatal(err)
	}
	if b := w.await("others", other.ID); b.Status != Ready {
		t.Errorf("%+v", b.Reason)
	}
	close(w.block)
	for i, id := range all {
		if b := w.await(fmt.Sprintf("t%d", i), id); b.Status != Ready {
			t.Errorf("%+v", b.Reason)
		}
	}
	w.clean()
	if w.most > sideBySide+1 {
		t.Errorf("%d sandboxes ran at once", w.most)
	}
}

// Builds of one template come one after another: each forgets what others led to.
func TestBuildsOfOneTemplateTakeTurns(t *testing.T) {
	w := newWorld(t)
	var all []string
	for i := range 4 {
		all = append(all, w.start("tpl", recipe(run("one"), run(fmt.Sprint("of ", i)), Step{Kind: Run, Args: []string{"block"}, Force: true}), fmt.Sprint("v", i)))
	}
	close(w.block)
	for _, id := range all {
		if b := w.await("tpl", id); b.Status != Ready {
			t.Errorf("%+v", b.Reason)
		}
	}
	w.clean()
	if w.most > 1 {
		t.Errorf("%d sandboxes ran at once", w.most)
	}
	for i := range 4 {
		if snap, _ := w.named(fmt.Sprint("tpl:v", i)); snap.done != fmt.Sprintf("|one|of %d|block", i) {
			t.Errorf("v%d is %+v", i, snap)
		}
	}
}

// A snapshot of a step that somebody has removed is made again.
func TestResultsThatAreGoneAreMadeAgain(t *testing.T) {
	w := newWorld(t)
	w.make("tpl", recipe(run("one"), run("two")))
	for id, snap := range w.snapshots {
		if snap.name == "" {
			delete(w.snapshots, id)
		}
	}
	w.commands()
	if b := w.make("tpl", recipe(run("one"), run("two"))); b.Status != Ready {
		t.Fatalf("%+v", b.Reason)
	}
	if got := w.commands(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("ran %q", got)
	}
}

func TestForcedStepsReplaceWhatTheyLedTo(t *testing.T) {
	w := newWorld(t)
	r := recipe(run("one"), run("two"))
	w.make("tpl", r)
	r.Force = true
	w.make("tpl", r) // clean wants nothing of the first to be left
	w.commands()
	r.Force = false
	w.make("tpl", r)
	if got := w.commands(); len(got) > 0 {
		t.Errorf("ran %q", got)
	}
}

func TestOpenBuildsAreBounded(t *testing.T) {
	w := newWorld(t)
	for range store.MostOpenBuilds {
		if _, _, err := w.Request(Request{Name: "tpl", Key: "k1"}); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := w.Request(Request{Name: "tpl", Key: "k1"})
	class(t, err, errdef.Exhausted, "too_many_builds")
	if _, _, err := w.Request(Request{Name: "other", Key: "k2"}); err != nil {
		t.Errorf("another key: %v", err)
	}
}

// Whatever fails in the workshop, nothing is left, and the next build succeeds.
func TestEveryFailureOfTheWorkshop(t *testing.T) {
	r := recipe(run("one"), Step{Kind: Env, Args: []string{"A", "$B"}}, run("two"))
	r.Ready = "ready?"
	for n := 1; ; n++ {
		w := newWorld(t)
		w.failAt = n
		b := w.make("tpl", r, "v1", "v2")
		if w.calls < n {
			if b.Status != Ready {
				t.Errorf("without a failure: %+v", b.Reason)
			}
			if n < 10 {
				t.Errorf("only %d calls", n)
			}
			return
		}
		if b.Status != Failed || !strings.Contains(b.Reason.Text, "injected") {
			t.Errorf("failure %d: %s, %+v", n, b.Status, b.Reason)
		}
		if b := w.make("tpl", r, "v1", "v2"); b.Status != Ready {
			t.Errorf("after failure %d: %+v", n, b.Reason)
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	w := newWorld(t)
	for _, req := range []Request{{}, {Name: "A"}, {Name: "a/b"}, {Name: ".."}, {Name: "-a"}, {Name: strings.Repeat("a", 65)}, {Name: "a", Tags: []string{""}}, {Name: "a", Tags: []string{"b/c"}}, {Name: "a", Tags: []string{newID()}}} {
		_, _, err := w.Request(req)
		class(t, err, errdef.Invalid, "template_name_invalid")
	}
	_, b, err := w.Request(Request{Name: "tpl"})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Step{
		"kind": {Kind: "ADD", Args: []string{"a"}}, "no command": {Kind: Run}, "too many": {Kind: Run, Args: []string{"a", "b", "c"}},
		"odd": {Kind: Env, Args: []string{"a"}}, "name": {Kind: Env, Args: []string{"a=b", "c"}}, "no hash": {Kind: Copy, Args: []string{"a", "b"}},
		"mode": {Kind: Copy, Args: []string{"a", "b", "", "u+x"}, Files: strings.Repeat("a", 64)}, "NUL": run("a\x00"),
	} {
		t.Run(name, func(t *testing.T) {
			err := w.Start("tpl", b.ID, recipe(s))
			if !errdef.Is(err, errdef.Invalid) || !strings.Contains(err.Error(), "step 1") {
				t.Errorf("%v", err)
			}
		})
	}
	if err := w.Start("tpl", newID(), recipe()); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("an unknown build: %v", err)
	}
}

func TestLogIsGivenInPieces(t *testing.T) {
	w := newWorld(t)
	id := w.start("tpl", recipe(run(`say a\nb\rc\r\nd`)))
	w.await("tpl", id)
	var lines []string
	for {
		p, err := w.Progress("tpl", id, len(lines), 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Lines) == 0 {
			break
		}
		for _, l := range p.Lines {
			lines = append(lines, l.Text)
		}
	}
	want := []string{"FROM base", `RUN say a\nb\rc\r\nd`, "a", "c", "d"}
	if !slices.Equal(lines, want) {
		t.Errorf("the log is %q, want %q", lines, want)
	}
}

func TestLogHasNoColours(t *testing.T) {
	j := &journal{}
	j.add(Info, "1", "\x1b[1;31mred\x1b[0m \x1b]0;title\aand\x1b[2K plain\x07")
	if got := j.from(0, 1)[0].Text; got != "red and plain?" {
		t.Errorf("the log has %q", got)
	}
}

func TestLogIsBounded(t *testing.T) {
	j := &journal{}
	for range mostLines * 2 {
		j.add(Info, "1", strings.Repeat("x", 100))
	}
	lines := j.from(0, mostLines*2)
	if len(lines) > mostLines+1 || lines[len(lines)-1].Level != Warn {
		t.Errorf("%d lines, the last is %+v", len(lines), lines[len(lines)-1])
	}
	s, long := &speaker{say: func(string) {}}, strings.Repeat("y", mostLine)
	for range 100 {
		s.write(long)
	}
	if len(s.rest) > 2*mostLine {
		t.Errorf("%d bytes without a line end are kept", len(s.rest))
	}
}

// What a hostile recipe can make the server remember is bounded.
func TestWhatIsKnownIsBounded(t *testing.T) {
	w := newWorld(t)
	var steps []Step
	for i := range 60 {
		steps = append(steps, Step{Kind: Env, Args: []string{fmt.Sprint("A", i), strings.Repeat("x", 1000)}}, run(fmt.Sprint("run ", i)))
	}
	if b := w.make("tpl", recipe(steps...)); b.Status != Ready {
		t.Fatalf("%+v", b.Reason)
	}
	one, err := w.Builder.Template("k1", "tpl")
	total := 0
	for _, r := range one.Cache {
		total += weight(r)
	}
	if err != nil || total > mostResults || len(one.Cache) == 0 {
		t.Errorf("%v: %d results of %d bytes are known", err, len(one.Cache), total)
	}
	b := w.make("tpl", recipe(Step{Kind: Env, Args: []string{"A", strings.Repeat("x", mostEnv)}}))
	if b.Reason == nil || b.Reason.Step != "1" {
		t.Errorf("too many variables: %s, %+v", b.Status, b.Reason)
	}
	for i := range 2 * mostLogs {
		w.make(fmt.Sprint("t", i), recipe())
	}
	w.Builder.work.Wait() // a build tidies up after its status says that it is over
	w.Builder.mu.Lock()
	defer w.Builder.mu.Unlock()
	if n := len(w.journals); n > mostLogs {
		t.Errorf("the logs of %d builds are kept", n)
	}
}

func TestFixedPart(t *testing.T) {
	for source, want := range map[string]string{".": ".", "a": "a", "./a/b": "a/b", "a/*.py": "a", "**/x": ".", "a/b[1]/c": "a", "a/{b,c}": "a"} {
		if got := fixedPart(source); got != want {
			t.Errorf("of %q it is %q, want %q", source, got, want)
		}
	}
}

// TestBuildElsewhereRefused: what was uploaded to another server is not kept where the template does
// not go, and a start goes on when the template has changed meanwhile.
func TestBuildElsewhereRefused(t *testing.T) {
	hash := strings.Repeat("a", 64)
	other := strings.Repeat("b", 64)
	r := Recipe{Base: Base{Template: "on:two"}, Steps: []Step{{Kind: Copy, Args: []string{"a", "b", "", ""}, Files: hash}, {Kind: Copy, Args: []string{"c", "d", "", ""}, Files: other}}}
	type made struct {
		one, two *world
		tpl      Template
		build    string
	}
	for name, c := range map[string]struct {
		meanwhile func(m made) error // while the first files come
		fails     error              // of reading them
		want      string             // the code
	}{
		"nothing happens": {},
		"it is deleted":   {func(m made) error { return m.one.Delete(t.Context(), m.tpl.ID) }, nil, "template_not_found"},
		"it is built":     {func(m made) error { return m.one.Start(m.tpl.ID, m.build, recipe(run("block"))) }, nil, "on_another_server"},
		"another build is asked for": {func(m made) error {
			_, _, err := m.one.Request(Request{Name: m.tpl.Name, Key: "k1"})
			return err
		}, nil, ""},
		"they do not come": {nil, errdef.New(errdef.Unavailable, "server_unreachable", "no"), "server_unreachable"},
	} {
		t.Run(name, func(t *testing.T) {
			one := &world{T: t, shop: newShop(), dir: t.TempDir(), data: memstore.NewData(), server: "one"}
			one.open()
			two := &world{T: t, shop: newShop(), dir: t.TempDir(), data: one.data, server: "two", others: []*world{one}}
			two.open()
			two.files.most = 16 // for both archives, once
			tpl, b, err := one.Request(Request{Name: "tpl", Key: "k1"})
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range []string{hash, other} {
				if err := one.PutFiles(t.Context(), tpl.ID, h, strings.NewReader("archive!")); err != nil {
					t.Fatal(err)
				}
			}
			if c.meanwhile != nil {
				two.fetching = func() error { two.fetching = nil; return c.meanwhile(made{one, two, tpl, b.ID}) }
			}
			two.breaks = c.fails
			err = two.Start(tpl.ID, b.ID, r)
			if errdef.CodeOf(err) != c.want {
				t.Errorf("the start: %v, want code %q", err, c.want)
			}
			for _, h := range []string{hash, other} {
				if has := two.files.has(tpl.ID, h); has != (c.want == "") {
					t.Errorf("files %.1s are there: %t", h, has)
				}
			}
			if c.want == "" {
				if b := two.await(tpl.ID, b.ID); b.Status != Ready {
					t.Errorf("the build is %+v", b)
				}
			}
			close(one.block)
			one.work.Wait()
		})
	}
}
