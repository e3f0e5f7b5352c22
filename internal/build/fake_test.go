package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// shop is a workshop whose sandboxes are lists of what was done in them.
type shop struct {
	server    string // whose it is
	mu        sync.Mutex
	last      int
	sandboxes map[string]*bench
	snapshots map[string]kept
	ran       []string // all commands, in order
	most, now int      // how many sandboxes there were and are
	calls     int
	failAt    int           // the call that fails; 0 for none
	block     chan struct{} // what the command "block" waits for
	blocked   chan struct{} // gets one for each that waits

	ends, drops error // with which End and Drop fail, and nothing is done; nil for success
}

// bench is a sandbox.
type bench struct {
	done  string // what was done in it
	spec  Spec
	awake bool
	full  bool   // it rests with its memory
	tmp   string // what is in /tmp
	saved string // what of that is among its files
}

// kept is a snapshot.
type kept struct {
	name, done string
	spec       Spec
	memory     bool
	tmp, saved string
}

func newShop() *shop {
	return &shop{sandboxes: map[string]*bench{}, snapshots: map[string]kept{}, block: make(chan struct{}), blocked: make(chan struct{}, 100)}
}

var errInjected = errors.New("injected")

// enter counts a call. The caller holds mu.
func (s *shop) enter() error {
	if s.calls++; s.calls == s.failAt {
		return errInjected
	}
	return nil
}

func (s *shop) id(kind string) string {
	s.last++
	return fmt.Sprintf("%s%d", kind, s.last)
}

func (s *shop) Resolve(_ context.Context, base Base) (Origin, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(); err != nil {
		return Origin{}, err
	}
	if base.Template == "base" || base.Template == "on:"+s.server {
		return Origin{Template: "t1", Alias: "base"}, nil
	}
	return Origin{}, store.ErrTemplateNotFound(base.Template)
}

// SnapshotOf knows the server of a snapshot by its name, "on:SERVER".
func (s *shop) SnapshotOf(base Base) (store.Snapshot, bool) {
	server, is := strings.CutPrefix(base.Template, "on:")
	return store.Snapshot{ID: "s", Owner: server}, is
}

func (s *shop) Begin(_ context.Context, from Origin, spec Spec) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(); err != nil {
		return "", err
	}
	b := &bench{spec: spec, awake: true}
	if from.Snapshot != "" {
		snap, ok := s.snapshots[from.Snapshot]
		if !ok {
			return "", fmt.Errorf("no snapshot %q", from.Snapshot)
		}
		b.done, b.saved = snap.done, snap.saved
	}
	id := s.id("i")
	s.sandboxes[id] = b
	s.now = len(s.sandboxes)
	s.most = max(s.most, s.now)
	return id, nil
}

func (s *shop) at(id string, awake bool) (*bench, error) {
	b := s.sandboxes[id]
	if b == nil || b.awake != awake {
		return nil, fmt.Errorf("sandbox %q is not there, or not awake: %v", id, awake)
	}
	return b, s.enter()
}

func (s *shop) Run(ctx context.Context, id string, c Command, say func(string)) error {
	text := c.Args[len(c.Args)-1]
	if c.Path == "/bin/sh" {
		text = "script " + strings.Join(c.Args[3:], " ")
	}
	s.mu.Lock()
	b, err := s.at(id, true)
	if err == nil && b.moveTmp(c.Args[1]) {
		s.mu.Unlock()
		return nil
	}
	if err == nil {
		b.writeTmp(text)
		s.ran = append(s.ran, text)
		b.done += "|" + text
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return err
	case c.Started != nil:
		c.Started()
	}
	switch {
	case strings.HasPrefix(text, "exit"):
		return &ExitError{Status: text}
	case strings.HasPrefix(text, "say "):
		say(strings.NewReplacer(`\n`, "\n", `\r`, "\r").Replace(text[4:]))
	case strings.HasPrefix(text, "printf %s "):
		say("expanded")
	case text == "who":
		say(fmt.Sprintf("%s in %s with %v\n", c.User, c.Workdir, c.Env))
	case text == "block" || text == "serve":
		s.blocked <- struct{}{}
		select {
		case <-s.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// moveTmp does what the builder's scripts for /tmp do, if it is one of them.
func (b *bench) moveTmp(script string) bool {
	switch script {
	case keepTmp:
		b.saved = b.tmp
	case putTmp:
		b.tmp = b.saved
	case putTmp + dropTmp:
		b.tmp, b.saved = b.saved, ""
	default:
		return false
	}
	return true
}

// writeTmp does what the command "tmp TEXT" does.
func (b *bench) writeTmp(command string) {
	if text, ok := strings.CutPrefix(command, "tmp "); ok {
		b.tmp += text
	}
}

func (s *shop) Put(_ context.Context, id, path string, data io.Reader) error {
	all, err := io.ReadAll(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err2 := s.at(id, true)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	b.done += "|put " + string(all)
	return nil
}

func (s *shop) Rest(_ context.Context, id string, memory bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.at(id, true)
	if err == nil {
		if b.awake, b.full = false, memory; !memory {
			b.tmp = ""
		}
	}
	return err
}

func (s *shop) Wake(_ context.Context, id string, _ time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.at(id, false)
	if err == nil {
		b.awake = true
	}
	return err
}

func (s *shop) Keep(_ context.Context, id string, as Kept) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.at(id, false)
	if err != nil {
		return "", err
	}
	for old, snap := range s.snapshots {
		if as.Name != "" && snap.name == as.Name {
			if old != as.Replace {
				return "", fmt.Errorf("the name %s is taken by %s, not by %q", as.Name, old, as.Replace)
			}
			delete(s.snapshots, old)
		}
	}
	snap := s.id("s")
	s.snapshots[snap] = kept{name: as.Name, done: b.done, spec: b.spec, memory: b.full, tmp: b.tmp, saved: b.saved}
	return snap, nil
}

func (s *shop) End(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends != nil {
		return s.ends
	}
	delete(s.sandboxes, id)
	s.now = len(s.sandboxes)
	return nil
}

func (s *shop) Drop(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drops != nil {
		return s.drops
	}
	delete(s.snapshots, id)
	return nil
}

func (s *shop) Left(context.Context) (sandboxes, snapshots []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.sandboxes)), slices.Collect(maps.Keys(s.snapshots)), nil
}

// commands returns what was run since it was last asked.
func (s *shop) commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ran := s.ran
	s.ran = nil
	return ran
}

// named returns the snapshot of a name.
func (s *shop) named(name string) (kept, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, snap := range s.snapshots {
		if snap.name == name {
			return snap, true
		}
	}
	return kept{}, false
}

// world is a builder with its workshop.
type world struct {
	*testing.T
	*shop
	*Builder
	dir    string
	data   *memstore.Data
	server string   // which claims itself; empty for none
	others []*world // whose uploads it reads

	fetching func() error // called before it reads one; nil for nothing
	breaks   error        // with which such an upload ends; nil for its end

	put *puts
}

// puts is a store whose PutTemplate can be replaced.
type puts struct {
	*memstore.Store
	mu  sync.Mutex
	how func(t Template, put func(Template) error) error // nil for as it is
}

func (p *puts) PutTemplate(ctx context.Context, t Template) error {
	p.mu.Lock()
	how := p.how
	p.mu.Unlock()
	put := func(t Template) error { return p.Store.PutTemplate(ctx, t) }
	if how == nil {
		return put(t)
	}
	return how(t, put)
}

// as says how templates are stored from now on; nil for as they are.
func (p *puts) as(how func(t Template, put func(Template) error) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.how = how
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, shop: newShop(), dir: t.TempDir(), data: memstore.NewData()}
	w.open()
	return w
}

// open begins a server, as after a restart.
func (w *world) open() {
	w.Helper()
	st := memstore.Open(w.data, memstore.Hooks{})
	if w.server != "" {
		if _, err := st.Claim(w.Context(), store.Server{ID: w.server, Place: w.server}, time.Hour); err != nil {
			w.Fatal(err)
		}
	}
	w.shop.server = w.server
	w.put = &puts{Store: st}
	filesOf := func(_ context.Context, server, template, hash string) (io.ReadCloser, error) {
		i := slices.IndexFunc(w.others, func(o *world) bool { return o.server == server })
		if w.fetching != nil {
			if err := w.fetching(); err != nil {
				return nil, err
			}
		}
		file, err := w.others[i].Files(template, hash)
		if err != nil || w.breaks == nil {
			return file, err
		}
		return struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(file, 1), iotest.ErrReader(w.breaks)), file}, nil
	}
	b, err := Open(w.Context(), Options{
		Dir: w.dir, Store: w.put, Origins: w.shop, Workshop: w.shop, Yard: w.shop, FilesOf: filesOf, Room: func() error { return nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Builder = b
	w.Cleanup(b.Stop)
}

// idOf returns the id of the template of a name, of which a test has one.
func (w *world) idOf(name string) string {
	for _, t := range w.Templates() {
		if t.Name == name {
			return t.ID
		}
	}
	return name
}

// What the builder does with a template of an id is asked for here by its name.

func (w *world) Start(name, id string, r Recipe) error {
	return w.Builder.Start(w.Context(), w.idOf(name), id, r)
}

func (w *world) Progress(name, id string, offset, most int) (Progress, error) {
	return w.Builder.Progress(w.idOf(name), id, offset, most)
}

func (w *world) Delete(ctx context.Context, name string) error {
	return w.Builder.Delete(ctx, w.idOf(name))
}

func (w *world) Tag(ctx context.Context, ref string, tags []string) (string, error) {
	name, from, _ := strings.Cut(ref, ":")
	return w.Builder.Tag(ctx, w.idOf(name), from, tags)
}

func (w *world) Untag(ctx context.Context, name string, tags []string) error {
	return w.Builder.Untag(ctx, w.idOf(name), tags)
}

func (w *world) HasFiles(name, hash string) (bool, error) {
	return w.Builder.HasFiles(w.idOf(name), hash)
}

func (w *world) PutFiles(ctx context.Context, name, hash string, data io.Reader) error {
	return w.Builder.PutFiles(ctx, Upload{Template: w.idOf(name), Hash: hash, Asked: time.Now(), May: func() error { return nil }, Data: data})
}

// start begins a build, and returns its id.
func (w *world) start(name string, r Recipe, tags ...string) string {
	w.Helper()
	_, b, err := w.Request(Request{Name: name, Tags: tags, Key: "k1"})
	if err != nil {
		w.Fatal(err)
	}
	if err := w.Start(name, b.ID, r); err != nil {
		w.Fatal(err)
	}
	return b.ID
}

// await waits until a build is over.
func (w *world) await(name, id string) Build {
	w.Helper()
	for end := time.Now().Add(testmode.Patience()); time.Now().Before(end); time.Sleep(time.Millisecond) {
		p, err := w.Progress(name, id, 0, 1)
		if err != nil {
			w.Fatal(err)
		}
		if p.Build.Status.Over() {
			return p.Build
		}
	}
	w.Fatal("the build does not end")
	return Build{}
}

// make builds, and returns how that ended.
func (w *world) make(name string, r Recipe, tags ...string) Build {
	w.Helper()
	b := w.await(name, w.start(name, r, tags...))
	w.clean()
	return b
}

// clean waits until there are no sandboxes, and no snapshots but those that are
// needed.
func (w *world) clean() {
	w.Helper()
	var sandboxes, snapshots []string
	needed := map[string]bool{}
	for end := time.Now().Add(testmode.Patience()); time.Now().Before(end); time.Sleep(time.Millisecond) {
		sandboxes, snapshots, _ = w.Left(w.Context())
		needed = map[string]bool{}
		for _, t := range w.Templates() {
			maps.Copy(needed, t.Snapshots())
		}
		delete(needed, "")
		if len(sandboxes) == 0 && len(snapshots) == len(needed) && !slices.ContainsFunc(snapshots, func(id string) bool { return !needed[id] }) {
			return
		}
	}
	w.Fatalf("left: sandboxes %v, snapshots %v; needed are %v", sandboxes, snapshots, needed)
}

// recipe is one over the base.
func recipe(steps ...Step) Recipe { return Recipe{Base: Base{Template: "base"}, Steps: steps} }

func run(text string) Step { return Step{Kind: Run, Args: []string{text}} }

// class checks what kind of error something is.
func class(t *testing.T, err error, want errdef.Class, code string) {
	t.Helper()
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Class != want || e.Code != code {
		t.Errorf("got %v, want %s with code %s", err, want, code)
	}
}
