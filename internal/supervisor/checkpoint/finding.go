package checkpoint

import (
	"context"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// kept is how long it is not looked again whether a checkpoint is sound: that reads
// all of it.
const kept = time.Minute

// Finding is what is known of the checkpoint of a sandbox that sleeps. The zero value
// knows nothing. It is safe for concurrent use.
type Finding struct {
	mu         sync.Mutex
	checkpoint string // its id
	at         time.Time
	err        error // why it cannot be resumed from; nil if it can
}

// Note notes what an attempt to resume from a checkpoint found. An error that is not
// the checkpoint's says nothing of it.
func (f *Finding) Note(cp *lifecycle.Checkpoint, err error) {
	if cp == nil || err != nil && !IsFault(err) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checkpoint, f.at, f.err = cp.ID, time.Now(), err
}

// Suspect reports whether a checkpoint was found to be damaged, or unreadable.
func (f *Finding) Suspect(cp *lifecycle.Checkpoint) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cp != nil && f.checkpoint == cp.ID && f.err != nil
}

// Inspect looks whether a sandbox could wake, if it sleeps, unless that is known.
func (f *Finding) Inspect(ctx context.Context, x Reader, sb store.Sandbox) {
	cp := sb.Record.Checkpoint
	if sb.Record.State != lifecycle.Paused || sb.Record.Op != nil || cp == nil || f.fresh(cp.ID) {
		return
	}
	t, err := x.Templates.Resolve(sb.Config.Template)
	if err == nil {
		_, _, err = x.Image(ctx, sb, *cp, t)
	}
	f.Note(cp, err)
}

// fresh reports whether there is no need to look at a checkpoint again.
func (f *Finding) fresh(checkpoint string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.checkpoint == checkpoint && time.Since(f.at) < kept
}

// Of returns why a sandbox cannot wake; nil if nothing is known of that, or its owner lets
// it boot afresh instead.
func (f *Finding) Of(rec lifecycle.Record) error {
	cp := rec.Checkpoint
	if rec.State != lifecycle.Paused || cp == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.checkpoint != cp.ID || rec.Settings.FilesystemFallback && errdef.CodeOf(f.err) == CodeUnreadable {
		return nil
	}
	return f.err
}
