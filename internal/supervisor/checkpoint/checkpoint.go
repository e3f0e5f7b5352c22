// Package checkpoint looks at checkpoints with the eyes of a wake: whether one is
// what was written, and whether its memory image can be restored here.
package checkpoint

import (
	"context"
	"errors"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
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
	Log       *slog.Logger
}

// Image verifies a checkpoint, and returns the id of the memory image that a
// resume restores: none, and why, where the sandbox is to boot afresh.
func (x Reader) Image(ctx context.Context, cp lifecycle.Checkpoint, t template.Template, settings lifecycle.Settings) (id, detail string, err error) {
	m, err := x.Verify(ctx, cp)
	if err != nil || cp.Mode == lifecycle.Filesystem {
		return "", "", err
	}
	if detail, err = x.unreadable(ctx, m, t); err != nil {
		return "", "", err
	}
	if detail == "" {
		return cp.ID, "", nil
	}
	if !settings.FilesystemFallback {
		return "", "", errdef.New(errdef.Unavailable, CodeUnreadable, "%s", detail)
	}
	return "", detail + ": it has booted afresh from its files", nil
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
