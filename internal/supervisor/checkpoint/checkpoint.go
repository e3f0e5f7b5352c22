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
	e, ok := errors.AsType[*errdef.Error](err)
	return ok && (e.Code == CodeDamaged || e.Code == CodeUnreadable)
}

// Reader knows what checkpoints are made of.
type Reader struct {
	Layers    *layer.Store
	Templates *template.Store
	Driver    runtime.Driver
	Ledger    *cost.Ledger
	Log       *slog.Logger
}

// Image is a memory image that can be restored, and what restores it.
type Image struct {
	ID    string // none where the sandbox is to boot afresh
	Build string // the build of the runtime, as runtime.Spec takes it
}

// Image verifies a checkpoint of a sandbox, and returns the memory image that a
// resume restores: none, and why, where the sandbox is to boot afresh.
func (x Reader) Image(ctx context.Context, sb store.Sandbox, cp lifecycle.Checkpoint, t template.Template) (image Image, detail string, err error) {
	begin := time.Now()
	defer func() { x.Ledger.Spent(sb.Config.Key, time.Since(begin)) }()
	m, err := x.Verify(ctx, cp)
	if err != nil || cp.Mode == lifecycle.Filesystem {
		return image, "", err
	}
	build, err := x.reader(m)
	if err == nil {
		err = x.overChanged(ctx, m, t)
	}
	if err == nil {
		return Image{ID: cp.ID, Build: build.Digest}, "", nil
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

// Verify checks all of a checkpoint that a resume will use, and returns the
// manifest of its memory image if it has one.
func (x Reader) Verify(ctx context.Context, cp lifecycle.Checkpoint) (m layer.Manifest, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return x.Layers.VerifyStack(ctx, cp.Stack, cp.Layers) })
	if cp.Mode == lifecycle.Memory {
		g.Go(func() (err error) {
			m, err = x.Layers.Verify(cp.ID, cp.Digest)
			return err
		})
	}
	err = g.Wait()
	return m, err
}
