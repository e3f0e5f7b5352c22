package build

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// Status is how far a build is.
type Status string

// The states of a build. The last two are final.
const (
	Waiting  Status = "waiting"
	Building Status = "building"
	Ready    Status = "ready"
	Failed   Status = "error"
)

// Over reports whether a build has come to its end.
func (s Status) Over() bool { return s == Ready || s == Failed }

// Reason is why a build failed.
type Reason struct {
	Text string `json:"text"`
	Step string `json:"step,omitempty"` // as that of a [Line]
}

// Build is one making of a template.
type Build struct {
	ID         string    `json:"id"`
	Status     Status    `json:"status"`
	Tags       []string  `json:"tags"` // that it gets when it is ready
	Limits     Limits    `json:"limits"`
	CreatedAt  time.Time `json:"createdAt"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	Reason     *Reason   `json:"reason,omitempty"`
}

// Tag is a name of a result.
type Tag struct {
	Build    string    `json:"build"`
	Snapshot string    `json:"snapshot"`
	Memory   bool      `json:"memory,omitempty"` // it has memory too
	At       time.Time `json:"at"`
}

// Template is what an API key builds under one name.
type Template struct {
	ID        string         `json:"id"` // never used again
	Name      string         `json:"name"`
	Key       string         `json:"key"` // the id of the API key that has made it, among whose templates no other has the name
	CreatedAt time.Time      `json:"createdAt"`
	UpdatedAt time.Time      `json:"updatedAt"`
	Builds    []Build        `json:"builds"` // newest first
	Tags      map[string]Tag `json:"tags"`
	// Cache is what steps have led to, those that were used last first.
	Cache []Result `json:"cache,omitempty"`
}

// CalledBy returns by what an API key names the template: its id, unless it is its own.
func (t *Template) CalledBy(key string) string {
	if t.Key == key {
		return t.Name
	}
	return t.ID
}

// Result is what is known of steps that were run.
type Result struct {
	Hash     string `json:"hash"`     // of the origin and of all steps up to this one
	Snapshot string `json:"snapshot"` // of the files after it; empty for those of the origin
	State    State  `json:"state"`
}

// size is about how much memory a result takes.
func (r Result) size() int { return 256 + r.State.size() }

// size is how many bytes the variables of a state have.
func (s State) size() (n int) {
	for name, value := range s.Env {
		n += len(name) + len(value)
	}
	return n
}

// bounded returns the first of the results, as many as may be known.
func bounded(all []Result) []Result {
	total := 0
	for i, r := range all {
		if total += r.size(); total > mostResults {
			return all[:i]
		}
	}
	return all
}

// copy returns a template that shares nothing with t that changes.
func (t *Template) copy() Template {
	c := *t
	c.Builds, c.Cache = slices.Clone(t.Builds), slices.Clone(t.Cache)
	c.Tags = map[string]Tag{}
	for name, tag := range t.Tags {
		c.Tags[name] = tag
	}
	return c
}

// build returns a build of the template; nil if there is none.
func (t *Template) build(id string) *Build {
	for i := range t.Builds {
		if t.Builds[i].ID == id {
			return &t.Builds[i]
		}
	}
	return nil
}

// snapshots returns all that the template needs.
func (t *Template) snapshots() map[string]bool {
	needed := map[string]bool{}
	for _, tag := range t.Tags {
		needed[tag.Snapshot] = true
	}
	for _, r := range t.Cache {
		needed[r.Snapshot] = true
	}
	return needed
}

// recordForm is the form of a template on disk.
type recordForm struct {
	Version  int      `json:"version"`
	Template Template `json:"template"`
}

// recordVersion is that of records whose templates have ids. In those of version 1
// they have names alone.
const recordVersion = 2

// Names in the directory of a builder.
const (
	recordsDir = "templates"
	filesDir   = "files"
	recordEnd  = ".json"
	newEnd     = ".new"
)

func (b *Builder) recordPath(id string) string {
	return filepath.Join(b.o.Dir, recordsDir, id+recordEnd)
}

// save makes a template durable.
func (b *Builder) save(t Template) error {
	data, err := json.Marshal(recordForm{Version: recordVersion, Template: t})
	if err != nil {
		return err
	}
	at := b.recordPath(t.ID)
	if err := durable.WriteFile(at+newEnd, data); err != nil {
		return fmt.Errorf("store template %s: %w", t.Name, err)
	}
	if err := os.Rename(at+newEnd, at); err != nil {
		return fmt.Errorf("store template %s: %w", t.Name, err)
	}
	return durable.Sync(filepath.Dir(at))
}

// load reads all templates.
func (b *Builder) load() error {
	for _, dir := range []string{recordsDir, filesDir} {
		if err := os.MkdirAll(filepath.Join(b.o.Dir, dir), 0o700); err != nil {
			return fmt.Errorf("open builds: %w", err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(b.o.Dir, recordsDir))
	if err != nil {
		return fmt.Errorf("open builds: %w", err)
	}
	for _, e := range entries {
		stem, ok := strings.CutSuffix(e.Name(), recordEnd)
		if !ok {
			continue // half written
		}
		f, err := b.read(stem)
		if err != nil {
			return errdef.New(errdef.Internal, "template_unreadable", "%s, which says what template %s was built from, cannot be read: %w", b.recordPath(stem), cmp.Or(f.Template.Name, stem), err).
				WithRemedy("put back a copy of the file, or move it away: the server then goes on without the template, and removes its layers")
		}
		if f.Version == 1 {
			if err := b.renew(&f.Template); err != nil {
				return err
			}
		}
		b.templates[f.Template.ID] = &f.Template
	}
	return nil
}

// read reads a record.
func (b *Builder) read(stem string) (f recordForm, err error) {
	data, err := os.ReadFile(b.recordPath(stem))
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	called := f.Template.ID
	if f.Version == 1 {
		called = f.Template.Name
	}
	if err == nil && (f.Version < 1 || f.Version > recordVersion || called != stem) {
		err = fmt.Errorf("it is of version %d, and this server reads %d", f.Version, recordVersion)
	}
	return f, err
}

// renew gives a template of version 1 an id. It is the same whenever it is asked for:
// the server may be killed meanwhile.
func (b *Builder) renew(t *Template) error {
	sum := sha256.Sum256([]byte(t.Name + " " + t.CreatedAt.Format(time.RFC3339Nano)))
	t.ID = "t" + hex.EncodeToString(sum[:])[:20]
	if err := os.Rename(filepath.Join(b.o.Dir, filesDir, t.Name), filepath.Join(b.o.Dir, filesDir, t.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give template %s an id: %w", t.Name, err)
	}
	if err := b.save(*t); err != nil {
		return err
	}
	return b.unsave(t.Name)
}

// unsave removes what is stored of a template.
func (b *Builder) unsave(id string) error {
	err := os.Remove(b.recordPath(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove template %s: %w", id, err)
	}
	return durable.Sync(filepath.Join(b.o.Dir, recordsDir))
}
