package checkpoint

import (
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// kept is how long it is not looked again whether a checkpoint is sound: that reads
// all of it.
const kept = time.Minute

// Finding is what is known of the checkpoint of a sandbox that sleeps. It has no
// lock of its own.
type Finding struct {
	checkpoint string // its id
	at         time.Time
	err        error // why it cannot be resumed from; nil if it can
}

// Note notes what an attempt to resume from a checkpoint found. An error that is not
// the checkpoint's says nothing of it.
func (f *Finding) Note(checkpoint string, err error) {
	if err == nil || IsFault(err) {
		*f = Finding{checkpoint: checkpoint, at: time.Now(), err: err}
	}
}

// Fresh reports whether there is no need to look at a checkpoint again.
func (f *Finding) Fresh(checkpoint string) bool {
	return f.checkpoint == checkpoint && time.Since(f.at) < kept
}

// Of returns why a sandbox cannot wake from a checkpoint; nil if nothing is known of
// that, or its owner lets it boot afresh instead.
func (f *Finding) Of(checkpoint string, fallback bool) error {
	if f.checkpoint != checkpoint || fallback && errdef.CodeOf(f.err) == CodeUnreadable {
		return nil
	}
	return f.err
}
