package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/store"
)

// hashForm is how clients call the files of a step.
var hashForm = lazyregexp.New(`^[0-9a-f]{64}$`)

// Bounds of what is uploaded.
const (
	mostArchive = 4 << 30 // bytes of one archive
	mostFiles   = 8 << 30 // of all archives of an API key; the oldest go
	mostUploads = 4       // of an API key that are under way; others wait
	uploadStep  = 8 << 20 // how much is written before it is asked again whether there is room
)

// files are the archives that clients have uploaded. Nothing in them is looked at
// here.
type files struct {
	dir  string
	room func() error
	most int64 // see mostFiles

	mu sync.Mutex // held while archives come and go
}

func newFiles(o Options) *files {
	return &files{dir: filepath.Join(o.Dir, filesDir), room: o.Room, most: mostFiles}
}

func (f *files) path(template, hash string) string { return filepath.Join(f.dir, template, hash) }

// has reports whether the files of a step are here.
func (f *files) has(template, hash string) bool {
	_, err := os.Lstat(f.path(template, hash))
	return err == nil
}

// open opens the files of a step.
func (f *files) open(template, hash string) (*os.File, error) {
	file, err := os.Open(f.path(template, hash))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdef.New(errdef.Invalid, "build_files_missing", "the files of the step are not here any more").
			WithRemedy("upload them again, and build again")
	}
	return file, err
}

// incomingDir is where archives are that have not come whole. No template is called so.
const incomingDir = ".incoming"

// clean removes what unfinished uploads have left, and the files of templates that
// are not known.
func (f *files) clean(known func(template string) bool) error {
	entries, err := os.ReadDir(f.dir)
	for _, e := range entries {
		if !known(e.Name()) {
			err = errors.Join(err, f.forget(e.Name()))
		}
	}
	return err
}

// forget removes all files of a template.
func (f *files) forget(template string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return os.RemoveAll(filepath.Join(f.dir, template))
}

// put takes the files of a step. They are there when it returns, or not at all. Files
// that are there already stay as they are; the others are read all the same: some
// clients read no answer before they have sent everything. May is asked when they have
// come: a template that is deleted afterwards takes them along.
func (f *files) put(ctx context.Context, template, hash string, data io.Reader, may func() error) error {
	if f.has(template, hash) {
		return f.receive(ctx, io.Discard, data)
	}
	incoming := filepath.Join(f.dir, incomingDir)
	if err := os.MkdirAll(incoming, 0o700); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	tmp, err := os.CreateTemp(incoming, "")
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if err := f.receive(ctx, tmp, data); err != nil {
		return err
	}
	if err := durable.Sync(tmp.Name()); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := may(); err != nil {
		return err
	}
	dir := filepath.Join(f.dir, template)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	switch err := os.Link(tmp.Name(), f.path(template, hash)); {
	case errors.Is(err, fs.ErrExist): // another upload was first
		return nil
	case err != nil:
		return fmt.Errorf("upload: %w", err)
	}
	return errors.Join(durable.Sync(dir), durable.Sync(f.dir))
}

// receive writes an archive for as long as there is room.
func (f *files) receive(ctx context.Context, to io.Writer, data io.Reader) error {
	total := int64(0)
	for {
		if err := cmp.Or(ctx.Err(), f.room()); err != nil {
			return err
		}
		n, err := io.CopyN(to, data, uploadStep)
		total += n
		if err := CheckArchive(total); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("upload: %w", err)
		}
	}
}

// CheckArchive refuses files of a step that have so many bytes, if those are too many.
func CheckArchive(size int64) error {
	if size <= mostArchive {
		return nil
	}
	return errdef.New(errdef.Invalid, "build_files_too_large", "the files of the step have more than %d GiB", mostArchive>>30).
		WithRemedy("copy less, or have a command of the build fetch it")
}

// trim removes the oldest files of templates, if they have too many together.
func (f *files) trim(templates []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	type archive struct {
		path string
		size int64
		at   time.Time
	}
	var all []archive
	total := int64(0)
	for _, t := range templates {
		entries, err := os.ReadDir(filepath.Join(f.dir, t))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil && hashForm.MatchString(e.Name()) {
				all = append(all, archive{f.path(t, e.Name()), info.Size(), info.ModTime()})
				total += info.Size()
			}
		}
	}
	slices.SortFunc(all, func(a, b archive) int { return a.at.Compare(b.at) })
	var err error
	for _, x := range all {
		if total <= f.most {
			break
		}
		total -= x.size
		err = errors.Join(err, os.Remove(x.path))
	}
	return err
}

// HasFiles reports whether the files of a step of a template are here.
func (b *Builder) HasFiles(template, hash string) (bool, error) {
	if !hashForm.MatchString(hash) {
		return false, errdef.New(errdef.Invalid, "build_files_invalid", "%.100q is no hash of files: 64 hexadecimal digits are needed", hash)
	}
	if _, err := b.byID(template); err != nil {
		return false, err
	}
	return b.files.has(template, hash), nil
}

// Files opens the files of a step of a template, for another server.
func (b *Builder) Files(template, hash string) (*os.File, error) {
	if _, err := b.HasFiles(template, hash); err != nil {
		return nil, err
	}
	return b.files.open(template, hash)
}

// Upload is the files of a step that somebody sends.
type Upload struct {
	Template string // its id
	Hash     string
	// Asked is when the sender asked where to send them: they are for the builds that
	// waited then, and come too late when none of those does any more.
	Asked time.Time
	// May returns an error when the sender may not send them any more.
	May  func() error
	Data io.Reader
}

// PutFiles takes the files of a step of a template, unless they are here.
func (b *Builder) PutFiles(ctx context.Context, u Upload) error {
	if _, err := b.HasFiles(u.Template, u.Hash); err != nil {
		return err
	}
	may := func() error { return cmp.Or(b.awaits(u.Template, u.Asked), u.May()) }
	if err := may(); err != nil {
		return err
	}
	t, err := b.byID(u.Template)
	if err != nil {
		return err
	}
	leave, err := b.uploads.Enter(ctx, t.Key)
	if err != nil {
		return err
	}
	defer leave()
	if err := b.files.put(ctx, t.ID, u.Hash, u.Data, may); err != nil {
		return err
	}
	return b.files.trim(b.templatesOf(t.Key))
}

// awaits returns an error unless a build of a template waits still that waited at a
// time.
func (b *Builder) awaits(template string, then time.Time) error {
	t, err := b.byID(template)
	if err != nil {
		return err
	}
	for _, x := range t.Builds {
		if x.Status == Waiting && !x.CreatedAt.After(then) && time.Since(x.CreatedAt) < store.BuildStartWithin {
			return nil
		}
	}
	return errdef.New(errdef.Invalid, "build_started", "no build of template %s waits for these files any more", t.Name).
		WithRemedy("ask for another build, and where to send its files")
}

// templatesOf returns the ids of the templates of an API key.
func (b *Builder) templatesOf(key string) (ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.all() {
		if t.Key == key {
			ids = append(ids, t.ID)
		}
	}
	return ids
}
