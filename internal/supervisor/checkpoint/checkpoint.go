// Package checkpoint looks at checkpoints with the eyes of a wake: whether one is
// what was written, and whether its memory image can be restored here.
package checkpoint

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
	"github.com/drowse-dev/drowse/internal/supervisor/fetch"
	"github.com/drowse-dev/drowse/internal/template"
)

const (
	// CodeDamaged is that of package layer for what Verify refuses.
	CodeDamaged = "checkpoint_damaged"
	// CodeUnreadable is that of an image that another version of the runtime wrote,
	// or whose programs ran from other files.
	CodeUnreadable = "checkpoint_unreadable"
)

// IsFault reports whether an error is the checkpoint's: no other try will succeed
// before something is put right.
func IsFault(err error) bool {
	code := errdef.CodeOf(err)
	return code == CodeDamaged || code == CodeUnreadable
}

// Reader knows what checkpoints are made of.
type Reader struct {
	Layers    *layer.Store
	Templates *template.Store
	Driver    runtime.Driver
	Ledger    *cost.Ledger
	Fetches   *fetch.Fetcher // nil where nothing comes from elsewhere
	Log       *slog.Logger
	Ways
}

// Ways is how memory images are written and read.
type Ways struct {
	// Early is how large a memory image must be, in bytes, for its sandbox to run
	// before all of it has been read, where the driver can do that; 0 for none.
	Early int64
	// Deltas is how much memory a runtime must use, in bytes, for its capture to write
	// only the pages that have changed, where the driver can do that; 0 for none. What
	// takes part in that takes time, which a small image is not worth.
	Deltas int64
}

// Image is a memory image that can be restored, and what restores it.
type Image struct {
	ID    string // none where the sandbox is to boot afresh
	Build string // the build of the runtime, as runtime.Spec takes it
	// Unread is nil if all has been verified, and AllFirst is set if all of it is to be
	// read before the runtime runs: as runtime.Spec takes them.
	Unread   []runtime.ImageFile
	AllFirst bool
	Late     runtime.Late // brings the rest of it; nil if it is whole
}

// Image verifies a checkpoint of a sandbox, and returns the memory image that a
// resume restores: none, and why, where the sandbox is to boot afresh.
func (x Reader) Image(ctx context.Context, sb store.Sandbox, cp lifecycle.Checkpoint, t template.Template) (image Image, detail string, err error) {
	begin := time.Now()
	defer func() { x.Ledger.Spent(sb.Config.Key, time.Since(begin)) }()
	m, err := x.Verify(ctx, cp)
	files := served(m)
	return x.image(ctx, m, Image{Unread: files, AllFirst: files != nil}, err, sb, cp, t)
}

// ForWake is Image for a resume that begins now. It may leave the contents of a large
// memory image, and of one with a map of pages, to the driver, which verifies them as it
// reads. Images that are under suspicion it verifies itself.
func (x Reader) ForWake(ctx context.Context, sb store.Sandbox, cp lifecycle.Checkpoint, t template.Template, suspect bool) (image Image, detail string, err error) {
	m, unverified := x.unread(cp)
	if unverified.Unread == nil || suspect {
		return x.Image(ctx, sb, cp, t)
	}
	begin := time.Now()
	defer func() { x.Ledger.Spent(sb.Config.Key, time.Since(begin)) }()
	err = x.Layers.VerifyStack(ctx, cp.Stack, cp.Layers)
	return x.image(ctx, m, unverified, err, sb, cp, t)
}

// unread returns the files of a memory image that the driver verifies as it reads
// them, and the manifest; none if it does not.
func (x Reader) unread(cp lifecycle.Checkpoint) (m layer.Manifest, image Image) {
	if cp.Mode != lifecycle.Memory {
		return m, image
	}
	if f := x.Fetches.Of(cp.ID); f != nil {
		return x.late(cp, f)
	}
	m, err := x.Layers.LookMapped(cp.ID, cp.Digest)
	if err != nil {
		return m, image // Verify says what is wrong
	}
	var size int64
	for _, f := range m.Files {
		if int64(len(f.CRC32C)) != (f.Size+layer.ChunkSize-1)/layer.ChunkSize {
			return m, image // as above
		}
		size += f.Size
	}
	switch {
	case x.Early > 0 && size >= x.Early && x.early(m):
		image.Unread = asRead(m)
	case m.Mapped():
		image.Unread, image.AllFirst = asRead(m), true
	}
	return m, image
}

// late is unread for an image whose pages are being fetched.
func (x Reader) late(cp lifecycle.Checkpoint, f *fetch.Fetch) (m layer.Manifest, image Image) {
	m, late, err := x.Layers.LookLate(cp.ID, cp.Digest)
	if err != nil || f.Failed() || x.Early <= 0 || !x.early(m) {
		return m, image // Verify waits for it, or says what is wrong
	}
	image.Unread = asRead(m)
	if late { // else it has just become whole
		image.Late = f
	}
	return m, image
}

// Late reports whether a file of an image that comes from elsewhere may come when its sandbox
// runs already.
func (x Reader) Late(m layer.Manifest, f layer.File) bool {
	return layer.MayBeLate(f) && x.Early > 0 && f.Size >= x.Early && x.early(m)
}

// early reports whether the runtime of an image can run before all of it is read.
func (x Reader) early(m layer.Manifest) bool {
	driver, ok := x.Driver.(runtime.EarlyRestorer)
	if !ok {
		return false
	}
	build, err := x.reader(m)
	return err == nil && driver.RestoresEarly(build.Digest)
}

// asRead returns what a driver needs to verify an image as it reads it.
func asRead(m layer.Manifest) (files []runtime.ImageFile) {
	for _, f := range m.Files {
		files = append(files, runtime.ImageFile{Name: f.Name, Size: f.Size, Chunk: layer.ChunkSize, CRC32C: f.CRC32C})
	}
	return files
}

// served is asRead for an image that has been verified: nil for one that a driver
// reads by itself.
func served(m layer.Manifest) []runtime.ImageFile {
	if !m.Mapped() {
		return nil
	}
	return asRead(m)
}

// image returns what a resume restores of a checkpoint whose verification has given
// m, or err. is says how the image is to be read.
func (x Reader) image(ctx context.Context, m layer.Manifest, is Image, err error, sb store.Sandbox, cp lifecycle.Checkpoint, t template.Template) (image Image, detail string, _ error) {
	if err != nil || cp.Mode == lifecycle.Filesystem {
		return image, "", err
	}
	build, err := x.reader(m)
	if err == nil {
		err = x.overChanged(ctx, m, t)
	}
	if err == nil {
		is.ID, is.Build = cp.ID, build.Digest
		return is, "", nil
	}
	if e, ok := errors.AsType[*errdef.Error](err); ok && e.Code == CodeUnreadable && sb.Record.Settings.FilesystemFallback {
		return image, e.Message + ": it has booted afresh from its files", nil
	}
	return image, "", err
}

// reader returns the build of the runtime that reads a memory image. Where there
// is none, the error has CodeUnreadable.
func (x Reader) reader(m layer.Manifest) (runtime.Build, error) {
	if builder, ok := x.Driver.(runtime.Builder); ok {
		return builder.Reader(m.Build, m.Runtime)
	}
	if own := x.Driver.Capabilities().Version; m.Runtime != own {
		return runtime.Build{}, unreadable("its memory image is of %s, which this server's %s cannot read", m.Runtime, own)
	}
	return runtime.Build{}, nil
}

// BuildFor returns the build of the runtime that reads memory images of a version
// that come from elsewhere, and has it stay; false where none does. Which program
// wrote them says nothing: it is not here, and is not let in with them.
func (x Reader) BuildFor(version string) (digest string, ok bool) {
	b, err := x.reader(layer.Manifest{Runtime: version})
	if err != nil {
		return "", false
	}
	if builder, ok := x.Driver.(runtime.Builder); ok {
		if err := builder.Keep(b.Digest); err != nil {
			x.Log.Warn("the program that can read a memory image is not kept: after an upgrade the sandbox may not wake", "build", b.Digest, "err", err)
		}
	}
	return b.Digest, true
}

func unreadable(format string, args ...any) error {
	return errdef.New(errdef.Unavailable, CodeUnreadable, format, args...)
}

// Whole returns when nothing of a checkpoint comes from elsewhere any more, or why it does not
// come. nil is none.
func (x Reader) Whole(ctx context.Context, cp *lifecycle.Checkpoint) error {
	if cp == nil {
		return nil
	}
	return x.Fetches.Wait(ctx, cp.ID)
}

// Ready returns when ForWake need not wait for what comes from elsewhere.
func (x Reader) Ready(ctx context.Context, cp lifecycle.Checkpoint, suspect bool) error {
	if x.Early > 0 && !suspect {
		return nil
	}
	return x.Whole(ctx, &cp)
}

// Verify checks all of a checkpoint that a resume will use, and returns the
// manifest of its memory image if it has one.
func (x Reader) Verify(ctx context.Context, cp lifecycle.Checkpoint) (m layer.Manifest, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return x.Layers.VerifyStack(ctx, cp.Stack, cp.Layers) })
	if cp.Mode == lifecycle.Memory {
		g.Go(func() (err error) {
			if err := x.Whole(ctx, &cp); err != nil {
				return err
			}
			m, err = x.Layers.Verify(cp.ID, cp.Digest)
			return err
		})
	}
	err = g.Wait()
	return m, err
}

// DamageOf returns the error of the memory image of a runtime that has ended because a
// part of it, which ForWake had left to the driver, is not what was written; nil
// where it ended of something else.
func DamageOf(inst runtime.Instance) *errdef.Error {
	w, ok := inst.(runtime.DamageWitness)
	if !ok {
		return nil
	}
	d := w.Damage()
	if d == nil {
		return nil
	}
	return errdef.New(errdef.Unavailable, CodeDamaged, "its memory image is damaged: %w", d).
		WithRemedy("put its files back from a backup and resume it again, or kill it")
}

// endSoon is how long a runtime may take to end whose connections have.
const endSoon = time.Second

// Behind returns the damage of a memory image that has made a wake fail with err,
// where it is that; else err.
func Behind(inst runtime.Instance, image Image, err error) error {
	if err == nil || image.Unread == nil {
		return err
	}
	select {
	case <-inst.Exited():
	case <-time.After(endSoon):
		return err
	}
	if e := DamageOf(inst); e != nil {
		return e
	}
	return err
}
