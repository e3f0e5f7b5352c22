package build

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// What is stored of templates.
type (
	Template = store.Template
	Build    = store.Build
	Status   = store.BuildStatus
	Reason   = store.BuildReason
	Limits   = store.BuildLimits
	Tag      = store.Tag
	Result   = store.StepResult
	State    = store.StepState
)

// The states of a build. The last two are final.
const (
	Waiting  = store.BuildWaiting
	Building = store.BuildRunning
	Ready    = store.BuildReady
	Failed   = store.BuildFailed
)

// with returns a state with one more variable.
func with(s State, name, value string) State {
	env := maps.Clone(s.Env)
	if env == nil {
		env = map[string]string{}
	}
	env[name] = value
	s.Env = env
	return s
}

// sizeOf is how many bytes the variables of a state have.
func sizeOf(s State) (n int) {
	for name, value := range s.Env {
		n += len(name) + len(value)
	}
	return n
}

// bounded returns the first of the results, as many as may be known.
func bounded(all []Result) []Result {
	total := 0
	for i, r := range all {
		if total += weight(r); total > mostResults {
			return all[:i]
		}
	}
	return all
}

// weight is about how much memory a result takes.
func weight(r Result) int { return 256 + sizeOf(r.State) }

// load reads all templates. What this server knows was read once; others may have
// changed it when it writes.
func (b *Builder) load(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(b.o.Dir, filesDir), 0o700); err != nil {
		return fmt.Errorf("open builds: %w", err)
	}
	if err := b.adopt(ctx); err != nil {
		return err
	}
	return b.reload(ctx)
}

// Refresh takes over what other servers have changed.
func (b *Builder) Refresh(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reload(ctx)
}

// reload reads all templates again. The caller holds mu, or is alone.
func (b *Builder) reload(ctx context.Context) error {
	all, err := b.o.Store.Templates(ctx)
	if err != nil {
		return fmt.Errorf("read templates: %w", err)
	}
	was := b.templates
	b.templates = map[string]*Template{}
	for i := range all {
		b.templates[all[i].ID] = &all[i]
	}
	for id, t := range was {
		if is := b.templates[id]; b.owns(t) && (is == nil || !b.owns(is)) { // another server has taken it over
			b.o.Log.Warn("another server has taken a template over: what is here of it is removed", "template", id, "name", t.Name)
			b.giveUp(t)
			b.work.Go(func() { b.forgetFiles(id) }) // what is being uploaded waits for mu
		}
	}
	return nil
}

// forgetFiles removes what was uploaded for a template that another server has.
func (b *Builder) forgetFiles(id string) {
	done, err := b.brings.Enter(b.ctx, id)
	if err != nil {
		return // the next start removes them
	}
	defer done()
	b.forgetUnowned(id)
}

// forgetUnowned is forgetFiles for who has the turn. A template that has come back keeps them.
func (b *Builder) forgetUnowned(id string) {
	b.mu.Lock()
	t := b.templates[id]
	owned := t != nil && b.owns(t)
	b.mu.Unlock()
	if owned {
		return
	}
	if err := b.files.forget(id); err != nil {
		b.o.Log.Error("uploaded files of a template could not be removed", "template", id, "err", err)
	}
}

// tries bounds how often a change is made anew because another server was faster.
const tries = 10

// save makes what make returns durable, and known. Make is called again, with what is
// stored by then, where another server was faster. The caller holds mu.
func (b *Builder) save(make func() (Template, error)) (Template, error) {
	ctx := context.WithoutCancel(b.ctx) // also what is noted at the end
	for n := 1; ; n++ {
		t, err := make()
		if err != nil {
			return Template{}, err
		}
		err = b.o.Store.PutTemplate(ctx, t)
		if err == nil {
			t.Rev++
			b.templates[t.ID] = &t
			return t.Copy(), nil
		}
		e, _ := errors.AsType[*errdef.Error](err)
		if e == nil || !behind[e.Code] || n == tries {
			return Template{}, err
		}
		if err := b.reload(ctx); err != nil {
			return Template{}, err
		}
	}
}

// behind are the errors of the store that say that this server knows too little.
var behind = map[string]bool{"template_changed": true, "template_exists": true, "template_not_found": true}

// Names in the directory of a builder.
const (
	recordsDir = "templates" // of a server before, whose templates are not in the store
	filesDir   = "files"
	recordEnd  = ".json"
)

// recordForm is the form of a template in a file of its own. In version 1 it has a name
// alone, and in version 2 an id.
type recordForm struct {
	Version  int      `json:"version"`
	Template Template `json:"template"`
}

func (b *Builder) recordPath(stem string) string {
	return filepath.Join(b.o.Dir, recordsDir, stem+recordEnd)
}

// adopt moves the templates of a server before into the store. Each file goes when its
// template is there; a server that is killed before goes on with the next.
func (b *Builder) adopt(ctx context.Context) error {
	dir := filepath.Join(b.o.Dir, recordsDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open builds: %w", err)
	}
	all, err := b.o.Store.Templates(ctx)
	if err != nil {
		return fmt.Errorf("open builds: %w", err)
	}
	known := map[string]bool{}
	for _, t := range all {
		known[t.ID] = true
	}
	for _, e := range entries {
		stem, ok := strings.CutSuffix(e.Name(), recordEnd)
		if !ok {
			continue // half written
		}
		t, err := b.read(stem)
		if err == nil {
			err = b.renameFiles(stem, t)
		}
		if err == nil && !known[t.ID] {
			failUnfinished(&t)
			err = b.o.Store.PutTemplate(ctx, t)
		}
		if err != nil {
			return errdef.New(errdef.Internal, "template_unreadable", "%s, which says what template %s was built from, cannot be taken into the database: %w", b.recordPath(stem), cmp.Or(t.Name, stem), err).
				WithRemedy("put back a copy of the file, or move it away: the server then goes on without the template, and removes its layers")
		}
		if err := os.Remove(b.recordPath(stem)); err != nil {
			return fmt.Errorf("open builds: %w", err)
		}
		b.o.Log.Info("template taken into the database", "template", t.Name, "id", t.ID, "key", t.Key)
	}
	if err := os.RemoveAll(dir); err != nil { // what is half written
		return fmt.Errorf("open builds: %w", err)
	}
	return durable.Sync(b.o.Dir)
}

// Adopted reports whether a directory has no templates of a server before, which are
// to be taken into the store.
func Adopted(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, recordsDir))
	return errors.Is(err, fs.ErrNotExist)
}

// read reads a file. A template that has no id gets one, which is the same whenever it
// is read.
func (b *Builder) read(stem string) (Template, error) {
	var f recordForm
	data, err := os.ReadFile(b.recordPath(stem))
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return Template{}, err
	}
	t, called := f.Template, f.Template.ID
	if f.Version == 1 {
		called = t.Name
		sum := sha256.Sum256([]byte(t.Name + " " + t.CreatedAt.Format(time.RFC3339Nano)))
		t.ID = "t" + hex.EncodeToString(sum[:])[:20]
	}
	if f.Version < 1 || f.Version > 2 || called != stem {
		return t, fmt.Errorf("it is of version %d, and this server reads 1 and 2", f.Version)
	}
	return t, nil
}

// renameFiles has the files of a template without an id be under the one that it got.
func (b *Builder) renameFiles(stem string, t Template) error {
	if stem == t.ID {
		return nil
	}
	dir := filepath.Join(b.o.Dir, filesDir)
	if err := os.Rename(filepath.Join(dir, stem), filepath.Join(dir, t.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return durable.Sync(dir)
}
