package sweep

import (
	"context"
	"log/slog"
	"time"
)

// Broom removes what a Sweeper finds.
type Broom struct {
	Sweeper Sweeper
	// Insist removes something, and tries again for as long as it fails.
	Insist func(remove func() error, failed string, args ...any)
	// BackupNeeds reports whether a backup that is being made may need what is at a path,
	// or anything if that is empty.
	BackupNeeds func(path string) bool
	Log         *slog.Logger
}

// comesBack reports whether what nobody owned can come into use again under its name:
// what is named by its contents, or by a program.
func (t Thing) comesBack() bool { return t.Kind == Template || t.Kind == OfImage || t.Kind == Build }

// Sweep removes what is due, and returns what must wait for its time.
func (b Broom) Sweep(ctx context.Context, things []Thing) (young []Thing) {
	for _, t := range things {
		switch {
		case t.Kept != "":
			b.Log.Warn("nobody owns it, and it is kept", "kind", t.Kind, "id", t.ID, "why", t.Kept)
		case t.Due().After(time.Now()):
			young = append(young, t)
		case t.Kind != Runtime && b.BackupNeeds(t.Path):
			if !t.comesBack() { // else the next server looks again whether nobody owns it
				young = append(young, t)
			}
		default:
			b.remove(ctx, t)
		}
	}
	return young
}

func (b Broom) remove(ctx context.Context, t Thing) {
	b.Log.Info("removing what nobody owns", "kind", t.Kind, "id", t.ID, "why", t.Why)
	b.Insist(func() error { return b.Sweeper.Remove(context.WithoutCancel(ctx), t) },
		"what nobody owns could not be removed", "kind", t.Kind, "id", t.ID)
}

// Later removes what no record knew at the start, when its time has come, and what a
// backup may need when that has ended. Ids are never used again, so that none can be
// known by now; what can come into use again is removed at its time or not at all. If ctx
// ends before, the next server finds it again.
func (b Broom) Later(ctx context.Context, things []Thing) {
	for waited := false; ; waited = true {
		select {
		case <-time.After(Grace):
		case <-ctx.Done():
			return
		}
		if b.BackupNeeds("") {
			continue
		}
		for _, t := range things {
			if !waited || !t.comesBack() {
				b.remove(ctx, t)
			}
		}
		return
	}
}
