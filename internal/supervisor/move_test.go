package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// exportOf returns a sandbox as a file.
func exportOf(t *testing.T, s *Supervisor, id string) []byte {
	t.Helper()
	e, err := s.Export(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Release()
	var b bytes.Buffer
	if err := e.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// asleep makes a sandbox that has counted to 2, has a file and is paused.
func (b *bench) asleep(s *Supervisor, req CreateRequest) string {
	b.t.Helper()
	id := create(b.t, s, req)
	wantCount(b.t, s, id, 1, 1)
	wantCount(b.t, s, id, 2, 1)
	if err := os.WriteFile(filepath.Join(b.dir, "layers", sweep.RuntimeID(id, 1), "root", "file"), []byte("of "+id), 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := s.Pause(b.t.Context(), id, PauseRequest{}); err != nil {
		b.t.Fatal(err)
	}
	return id
}

func (b *bench) wantFile(s *Supervisor, id, text string) {
	b.t.Helper()
	cp := record(b.t, s, id).Checkpoint
	got, err := os.ReadFile(filepath.Join(b.dir, "layers", cp.Stack[0], "root", "file"))
	if err != nil || string(got) != text {
		b.t.Errorf("the file has %q, %v; want %q", got, err, text)
	}
}

func code(err error) string {
	return errdef.CodeOf(err)
}

func wantCode(t *testing.T, err error, want string) {
	t.Helper()
	if code(err) != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestMove takes a sandbox to another server, and from there to a third before
// it wakes: it goes on with its memory and its files under its own id, its agent
// obeys the new server alone, and a copy gets an id of its own.
func TestMove(t *testing.T) {
	from, to := newBench(t), newBench(t)
	first, _ := from.open()
	second, stop := to.open()
	id := from.asleep(first, CreateRequest{Settings: lifecycle.Settings{MaxLifetime: time.Hour}, Config: store.Config{Metadata: map[string]string{"a": "b"}, Secure: true, Name: "web", Built: store.Built{ID: "tbuilt", Name: "app"}}})
	file := exportOf(t, first, id)
	sb, err := second.Import(t.Context(), bytes.NewReader(file), ImportRequest{Actor: "key:1"})
	if err != nil {
		t.Fatal(err)
	}
	was := record(t, first, id)
	rec := sb.Record
	if sb.ID != id || rec.State != lifecycle.Paused || rec.Generation != 1 || !rec.CreatedAt.Equal(was.CreatedAt) || rec.Settings != was.Settings || sb.Config.Metadata["a"] != "b" {
		t.Errorf("imported as %+v", sb)
	}
	if c := sb.Config; c.Name != "web" || c.TemplateID() != "tbuilt" || c.TemplateName() != "app" {
		t.Errorf("it is called %q, of template %s (%s)", c.Name, c.TemplateID(), c.TemplateName())
	}
	if named, ok := second.Named("", "web"); !ok || named != id {
		t.Errorf("its name leads to %q", named)
	}
	if rec.PausedAt.Before(was.PausedAt) {
		t.Errorf("asleep since %s, which is before it came here", rec.PausedAt)
	}
	events, err := second.Events(t.Context(), id, 0, 10)
	if err != nil || len(events) != 1 || events[0].Type != lifecycle.EntryImported || events[0].Actor != "key:1" || events[0].To != "paused" || events[0].Bytes == 0 {
		t.Errorf("the log has %+v, %v", events, err)
	}
	again := exportOf(t, second, id) // before its agent knows this server

	stop() // and over a restart
	second, _ = to.open()
	if c, err := second.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil || !c.Resumed {
		t.Fatalf("connect: %+v, %v", c, err)
	}
	wantCount(t, second, id, 3, 2)
	to.wantFile(second, id, "of "+id)
	if second.EnvdToken(id) == first.EnvdToken(id) {
		t.Error("the tokens are the old server's")
	}
	for g := int64(3); g < 5; g++ { // what is paused here needs nothing of the old server
		if err := second.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		if token := record(t, second, id).Checkpoint.AgentToken; token != "" {
			t.Errorf("the token of the old server is still there: %s", token)
		}
		if _, err := second.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
		wantCount(t, second, id, g+1, g)
	}
	if err := second.Kill(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	to.wantNothingLeft()

	third := newBench(t)
	last, _ := third.open()
	if _, err := last.Import(t.Context(), bytes.NewReader(again), ImportRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err = last.Import(t.Context(), bytes.NewReader(again), ImportRequest{})
	wantCode(t, err, "sandbox_exists")
	had := ""
	copied, err := last.Import(t.Context(), bytes.NewReader(file), ImportRequest{NewID: true, Named: func(name string) { had = name }})
	if err != nil || copied.ID == id {
		t.Fatalf("copied as %s, %v", copied.ID, err)
	}
	if copied.Config.Name != "" || had != "web" {
		t.Errorf("a copy of %q is called %q", had, copied.Config.Name)
	}
	if named, _ := last.Named("", "web"); named != id {
		t.Errorf("the name of the first leads to %s", named)
	}
	for _, id := range []string{id, copied.ID} {
		if _, err := last.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
		wantCount(t, last, id, 3, 2)
		if err := last.Kill(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
	}
	third.wantNothingLeft()
	// Where it came from it is as it was.
	if _, err := first.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, first, id, 3, 2)
}

// TestFallBackToAnImport: a runtime that is lost before its next pause goes back
// to the imported image, whose agent knows the old server again.
func TestFallBackToAnImport(t *testing.T) {
	from, to := newBench(t), newBench(t)
	first, _ := from.open()
	second, _ := to.open()
	id := from.asleep(first, CreateRequest{})
	if _, err := second.Import(t.Context(), bytes.NewReader(exportOf(t, first, id)), ImportRequest{}); err != nil {
		t.Fatal(err)
	}
	for g := int64(2); g < 5; g++ {
		if _, err := second.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
		wantCount(t, second, id, 3, g)
		to.machine.Exceed(sweep.RuntimeID(id, record(t, second, id).Launch), runtime.MemoryLimit)
		testmode.Eventually(t, "the fall back", func() bool { return record(t, second, id).State == lifecycle.Paused })
	}
}

// TestExportNeedsASleeper: what runs is not exported, what ended is not there,
// and an operation in flight is waited for.
func TestExportNeedsASleeper(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	_, err := s.Export(t.Context(), id)
	wantCode(t, err, "not_paused")
	_, err = s.Export(t.Context(), "i0")
	wantCode(t, err, "sandbox_not_found")

	reached, goOn := make(chan struct{}), make(chan struct{})
	b.set(func() { b.checkpoint = func() error { close(reached); <-goOn; return nil } })
	running := create(t, s, CreateRequest{})
	paused := make(chan error, 1)
	go func() { paused <- s.Pause(t.Context(), running, PauseRequest{}) }()
	<-reached
	exported := make(chan error, 1)
	go func() {
		e, err := s.Export(t.Context(), running)
		if err == nil {
			e.Release()
		}
		exported <- err
	}()
	close(goOn)
	if err := errors.Join(<-paused, <-exported); err != nil {
		t.Error(err)
	}
	if err := s.Kill(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	_, err = s.Export(t.Context(), id)
	wantCode(t, err, "sandbox_terminated")
}

// TestExportOutlivesAWake: what an export reads stays, though the sandbox wakes
// and sleeps again; its end cuts the export off.
func TestExportOutlivesAWake(t *testing.T) {
	from, to := newBench(t), newBench(t)
	first, _ := from.open()
	second, _ := to.open()
	id := from.asleep(first, CreateRequest{})
	old := record(t, first, id).Checkpoint.ID
	snap := take(t, first, id, SnapshotRequest{}) // needs it too, for a while
	e, err := first.Export(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, first, id, 3, 2)
	if err := errors.Join(first.Pause(t.Context(), id, PauseRequest{}), first.RemoveSnapshot(t.Context(), snap.ID, "")); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := e.Write(&file); err != nil {
		t.Fatal(err)
	}
	e.Release()
	e.Release()
	testmode.Eventually(t, "the removal of the old image", func() bool {
		_, err := os.Stat(first.o.Layers.ImageDir(old))
		return errors.Is(err, os.ErrNotExist)
	})
	if _, err := second.Import(t.Context(), &file, ImportRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, second, id, 3, 2)

	if e, err = first.Export(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	killed := make(chan error, 1)
	go func() { killed <- first.Kill(t.Context(), id, "") }()
	<-e.Cut
	e.Release()
	if err := <-killed; err != nil {
		t.Error(err)
	}
	if err := e.Write(io.Discard); err == nil {
		t.Error("an export was written after it was cut off")
	}
	from.wantNothingLeft()
}

func TestExportRefusesDamage(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := b.asleep(s, CreateRequest{})
	cp := record(t, s, id).Checkpoint
	for _, path := range []string{filepath.Join(s.o.Layers.ImageDir(cp.ID), "memory"), filepath.Join(s.o.Layers.LayerDir(cp.Stack[0]), "root", "file")} {
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = s.Export(t.Context(), id)
		wantCode(t, err, checkpoint.CodeDamaged)
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if len(exportOf(t, s, id)) == 0 {
		t.Error("nothing was exported")
	}
}

// rewritten is a bundle with another manifest and contents that fit it.
func rewritten(t *testing.T, file []byte, change func(*bundle.Manifest)) []byte {
	t.Helper()
	r, err := bundle.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	m := r.Manifest
	p := &parts{layers: map[int][]part{}, image: map[string]string{}}
	if err := r.Extract(kept{p}); err != nil {
		t.Fatal(err)
	}
	change(&m)
	var b bytes.Buffer
	if err := bundle.Write(&b, m, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// parts is the contents of a bundle in memory.
type parts struct {
	layers map[int][]part
	image  map[string]string
}

type part struct {
	layer.Entry
	data string
}

func (p *parts) take(n int, e layer.Entry, data io.Reader) error {
	text, err := io.ReadAll(data)
	p.layers[n] = append(p.layers[n], part{e, string(text)})
	return err
}

// kept takes a bundle in.
type kept struct{ *parts }

func (k kept) Layer(n int, e layer.Entry, data io.Reader) error { return k.take(n, e, data) }

func (k kept) ImageFile(name string, _ int64, data io.Reader) error {
	text, err := io.ReadAll(data)
	k.image[name] = string(text)
	return err
}

// Layer implements bundle.Source.
func (p *parts) Layer(n int, f func(layer.Entry, io.Reader) error) error {
	for _, x := range p.layers[n] {
		if err := f(x.Entry, strings.NewReader(x.data)); err != nil {
			return err
		}
	}
	return nil
}

// ImageFile implements bundle.Source.
func (p *parts) ImageFile(name string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(p.image[name])), nil
}

func TestImportRefusesWhatCannotRunHere(t *testing.T) {
	from, to := newBench(t), newBench(t)
	to.ceiling = 24 * time.Hour
	first, _ := from.open()
	second, _ := to.open()
	id := from.asleep(first, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour}})
	file := exportOf(t, first, id)
	for name, c := range map[string]struct {
		change     func(*bundle.Manifest)
		code       string
		filesystem string // the code without the memory; empty if it works
	}{
		"architecture": {func(m *bundle.Manifest) { m.Needs.Architecture = "vax" }, "cannot_run_here", "cannot_run_here"},
		"runtime":      {func(m *bundle.Manifest) { m.Needs.Runtime = "gvisor 0" }, "cannot_run_here", ""},
		"processor":    {func(m *bundle.Manifest) { m.Needs.CPU = []string{"flux"} }, "cannot_run_here", ""},
		"system":       {func(m *bundle.Manifest) { m.Needs.System = "other" }, "cannot_run_here", ""},
		"template":     {func(m *bundle.Manifest) { m.Needs.Template, m.Config.Alias = "other", "test" }, "cannot_run_here", ""},
		"all of them":  {func(m *bundle.Manifest) { m.Needs.Template, m.Config.Alias = "other", "none" }, "cannot_run_here", "template_not_found"},
		"other image": {func(m *bundle.Manifest) {
			m.Needs.Template, m.Config.Alias, m.Config.Image = "other", "test", "sha256:0"
		}, "cannot_run_here", "cannot_run_here"},
		"limits":  {func(m *bundle.Manifest) { m.Config.Limits.PIDs = 1 }, "limit_out_of_range", "limit_out_of_range"},
		"timeout": {func(m *bundle.Manifest) { m.Settings.Timeout = 1000 * time.Hour }, "timeout_too_large", "timeout_too_large"},
		"hook": {func(m *bundle.Manifest) {
			m.Config.Hooks.PrePause.Command, m.Config.Hooks.PrePause.Budget = "a", time.Hour
		}, "timeout_too_large", "timeout_too_large"},
		"lifetime":   {func(m *bundle.Manifest) { m.Settings.MaxLifetime = time.Nanosecond }, "lifetime_over", "lifetime_over"},
		"settings":   {func(m *bundle.Manifest) { m.Settings.OnTimeout = "dance" }, "action_invalid", "action_invalid"},
		"size":       {func(m *bundle.Manifest) { m.Layers[0].Bytes = 1 << 49 }, "disk_full", "disk_full"},
		"id":         {func(m *bundle.Manifest) { m.ID = "../" + m.ID[3:] }, "import_damaged", "import_damaged"},
		"generation": {func(m *bundle.Manifest) { m.Generation = 0 }, "import_damaged", "import_damaged"},
		"digest":     {func(m *bundle.Manifest) { m.Layers[0].Digest = strings.Repeat("0", 64) }, "import_damaged", "import_damaged"},
		"no digest":  {func(m *bundle.Manifest) { m.Layers[0].Digest = "" }, "import_damaged", "import_damaged"},
		"image":      {func(m *bundle.Manifest) { m.Image.Files[0].CRC32C[0]++ }, "import_damaged", ""},
	} {
		t.Run(name, func(t *testing.T) {
			changed := rewritten(t, file, c.change)
			_, err := second.Import(t.Context(), bytes.NewReader(changed), ImportRequest{})
			wantCode(t, err, c.code)
			to.wantNothingLeft()
			sb, err := second.Import(t.Context(), bytes.NewReader(changed), ImportRequest{Filesystem: true, NewID: name != "id"})
			if c.filesystem != "" {
				wantCode(t, err, c.filesystem)
				to.wantNothingLeft()
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := second.Kill(t.Context(), sb.ID, ""); err != nil {
				t.Fatal(err)
			}
			to.wantNothingLeft()
		})
	}
}

// TestImportBesideASnapshot: a sandbox that was forgotten does not come back under its id
// where a snapshot has its layers yet, and these stay as they are.
func TestImportBesideASnapshot(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := b.asleep(s, CreateRequest{})
	file, snap := exportOf(t, s, id), take(t, s, id, SnapshotRequest{})
	kill(t, s, id)
	gone, err := s.box(id)
	if err != nil {
		t.Fatal(err)
	}
	gone.forgetRecord(t.Context())
	_, err = s.Import(t.Context(), bytes.NewReader(file), ImportRequest{})
	wantCode(t, err, "sandbox_exists")
	child := from(t, s, snap.ID)
	wantCount(t, s, child, 3, 1)
	copied, err := s.Import(t.Context(), bytes.NewReader(file), ImportRequest{NewID: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
		t.Fatal(err)
	}
	kill(t, s, child, copied.ID)
	b.wantAllGone(s)
}

// TestImportOfFiles: without its memory the sandbox boots afresh from its files.
func TestImportOfFiles(t *testing.T) {
	from, to := newBench(t), newBench(t)
	first, _ := from.open()
	second, _ := to.open()
	id := from.asleep(first, CreateRequest{})
	sb, err := second.Import(t.Context(), bytes.NewReader(exportOf(t, first, id)), ImportRequest{Filesystem: true})
	if err != nil {
		t.Fatal(err)
	}
	if cp := sb.Record.Checkpoint; cp.Mode != lifecycle.Filesystem || cp.AgentToken != "" {
		t.Errorf("imported with %+v", cp)
	}
	if images, err := second.o.Layers.Images(); err != nil || len(images) > 0 {
		t.Errorf("images %v, %v", images, err)
	}
	again := exportOf(t, second, id) // has no memory either
	if _, err := second.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, second, id, 1, 2)
	to.wantFile(second, id, "of "+id)

	third := newBench(t)
	last, _ := third.open()
	if _, err := last.Import(t.Context(), bytes.NewReader(again), ImportRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, last, id, 1, 2)
}

// TestFailedImportLeavesNothing breaks imports off at many places.
func TestFailedImportLeavesNothing(t *testing.T) {
	from, to := newBench(t), newBench(t)
	first, _ := from.open()
	second, _ := to.open()
	id := from.asleep(first, CreateRequest{})
	file := exportOf(t, first, id)
	gone := errors.New("the client went away")
	for at := 0; at < len(file); at += 700 {
		_, err := second.Import(t.Context(), bytes.NewReader(file[:at]), ImportRequest{})
		wantCode(t, err, "import_damaged")
		if _, err := second.Import(t.Context(), io.MultiReader(bytes.NewReader(file[:at]), iotest.ErrReader(gone)), ImportRequest{}); !errors.Is(err, gone) {
			t.Errorf("broken off at %d: %v", at, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := second.Import(ctx, bytes.NewReader(file), ImportRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	to.wantNothingLeft()
	if list, err := second.All(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("there are %v, %v", list, err)
	}
	if _, err := second.Import(t.Context(), bytes.NewReader(file), ImportRequest{}); err != nil {
		t.Error(err)
	}
}

// TestImportsOfTheSame: of many at once, one is taken.
func TestImportsOfTheSame(t *testing.T) {
	from, to := newBench(t), newBench(t)
	first, _ := from.open()
	second, _ := to.open()
	id := from.asleep(first, CreateRequest{})
	file := exportOf(t, first, id)
	const n = 5
	results := make(chan error, n)
	for range n {
		go func() {
			_, err := second.Import(t.Context(), bytes.NewReader(file), ImportRequest{})
			results <- err
		}()
	}
	var codes []string
	for range n {
		codes = append(codes, code(<-results))
	}
	slices.Sort(codes)
	if want := append([]string{""}, slices.Repeat([]string{"sandbox_exists"}, n-1)...); !slices.Equal(codes, want) {
		t.Errorf("answers %q", codes)
	}
	if _, err := second.Connect(t.Context(), id, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, second, id, 3, 2)
}

// TestImportOnce holds what a second import under an idempotency key gets: the
// sandbox of the first, also over a restart, whenever that sandbox was created,
// and without a look at what follows the manifest.
func TestImportOnce(t *testing.T) {
	from, to := newBench(t), newBench(t)
	first, _ := from.open()
	second, stop := to.open()
	id := from.asleep(first, CreateRequest{})
	file, other := exportOf(t, first, id), exportOf(t, first, id)
	asked := func(key, request string) ImportRequest {
		return ImportRequest{NewID: true, Key: "k1", Idempotency: &store.Idempotency{Key: key, Request: request}}
	}
	imported := func(file io.Reader, req ImportRequest) string {
		t.Helper()
		sb, err := second.Import(t.Context(), file, req)
		if err != nil {
			t.Fatal(err)
		}
		return sb.ID
	}

	_, err := second.Import(t.Context(), bytes.NewReader(file[:len(file)-1]), asked("a", "r1")) // leaves the key free
	wantCode(t, err, "import_damaged")
	made := imported(bytes.NewReader(file), asked("a", "r1"))
	if made == id {
		t.Fatal("it has no new id")
	}
	stop()
	second, _ = to.open()
	// Of the other half nothing is read.
	half := io.MultiReader(bytes.NewReader(file[:len(file)/2]), iotest.ErrReader(errors.New("read too far")))
	if again := imported(half, asked("a", "r1")); again != made {
		t.Errorf("a second import made %s beside %s", again, made)
	}
	for what, try := range map[string]struct {
		file    []byte
		request string
	}{"another file": {other, "r1"}, "other parameters": {file, "r2"}} {
		_, err = second.Import(t.Context(), bytes.NewReader(try.file), asked("a", try.request))
		if code(err) != "idempotency_key_reused" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if twin := imported(bytes.NewReader(file), asked("b", "r1")); twin == made {
		t.Error("two keys made one sandbox")
	}
	if n := sandboxes(t, second); n != 2 {
		t.Errorf("there are %d sandboxes, want 2", n)
	}
	if err := second.Kill(t.Context(), made, ""); err != nil {
		t.Fatal(err)
	}
	_, err = second.Import(t.Context(), bytes.NewReader(file), asked("a", "r1"))
	wantCode(t, err, "idempotency_sandbox_ended")
}
