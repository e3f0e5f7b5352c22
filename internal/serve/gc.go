package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/tree"
)

// garbage is something that nobody owns, and what becomes of it.
type garbage struct {
	sweep.Thing
	AgeSeconds int64  `json:"ageSeconds"`
	Bytes      int64  `json:"bytes"` // on disk
	Processes  int    `json:"processes"`
	Memory     int64  `json:"memoryBytes"`
	Removed    bool   `json:"removed"`
	Left       string `json:"left,omitempty"` // why it is still there
}

// GC writes what nobody owns in a state directory that no server uses, and
// removes it unless it is a dry run. It reports whether all of it went that
// was to go.
func GC(ctx context.Context, w io.Writer, o UpkeepOptions) (ok bool, err error) {
	u, err := beginUpkeep(ctx, o.StateDir)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, u.end()) }()
	if n := len(u.records.Problems); n > 0 {
		return false, errdef.New(errdef.Internal, "database_damaged", "the database has %d faults: what seems to be nobody's may belong to a record that cannot be read", n).
			WithRemedy("see drowse fsck")
	}
	list, err := u.garbage(ctx)
	if err != nil {
		return false, err
	}
	ok = true
	if !o.DryRun {
		ok = u.collect(ctx, list)
	}
	if o.JSON {
		return ok, json.NewEncoder(w).Encode(map[string]any{"ok": ok, "dryRun": o.DryRun, "items": list})
	}
	return ok, printGarbage(w, list, o.DryRun)
}

// garbage finds what nobody owns, and what would be got by removing it.
func (u *upkeep) garbage(ctx context.Context) ([]garbage, error) {
	things, err := u.sweeper().Find(ctx, sweep.Records{Sandboxes: u.records.Sandboxes, Volumes: u.records.Volumes, Snapshots: u.records.Snapshots})
	if err != nil {
		return nil, err
	}
	now := time.Now()
	list := make([]garbage, len(things))
	for i, t := range things {
		g := garbage{Thing: t, AgeSeconds: int64(max(0, now.Sub(t.Since)).Seconds()), Bytes: tree.DiskUsage(ctx, t.Path)}
		if t.Kind == sweep.Runtime {
			usage := u.remains.Usage(t.ID)
			g.Processes, g.Memory = usage.Processes, usage.Memory
		}
		switch {
		case t.Kept != "":
			g.Left = t.Kept
		case t.Due().After(now):
			g.Left = fmt.Sprintf("no record knows it, and it changed less than %s ago", sweep.Grace)
		}
		list[i] = g
	}
	return append(list, u.unnamed(now)...), nil
}

// unnamed returns the snapshots of builds that no template has. They are in the
// database, so that they are for the next server to remove. Where templates of a server
// before are not in the database yet, it cannot be known.
func (u *upkeep) unnamed(now time.Time) (list []garbage) {
	if !build.Adopted(recipesIn(u.dir)) {
		return nil
	}
	needed := map[string]bool{}
	for _, t := range u.records.Templates {
		maps.Copy(needed, t.Snapshots())
	}
	for _, snap := range u.records.Snapshots {
		if snap.Config.Build == "" || needed[snap.ID] {
			continue
		}
		list = append(list, garbage{
			Thing: sweep.Thing{
				Kind: sweep.Snapshot, ID: snap.ID, Path: databaseIn(u.dir), Since: snap.CreatedAt, Spare: true,
				Why: fmt.Sprintf("no template has snapshot %s, of the build %s, which did not come to its end", snap.ID, snap.Config.Build),
			},
			AgeSeconds: int64(max(0, now.Sub(snap.CreatedAt)).Seconds()), Bytes: snap.Bytes, Left: "the next server that starts removes it",
		})
	}
	return list
}

// collect removes what is due, and notes what became of it.
func (u *upkeep) collect(ctx context.Context, list []garbage) (ok bool) {
	ok = true
	for i := range list {
		g := &list[i]
		if g.Left != "" {
			continue
		}
		if err := u.sweeper().Remove(ctx, g.Thing); err != nil {
			g.Left, ok = err.Error(), false
			continue
		}
		g.Removed = true
	}
	// Nothing to do with any of them alone.
	return u.remains.Close() == nil && ok
}

func printGarbage(w io.Writer, list []garbage, dryRun bool) error {
	var sum int64
	for _, g := range list {
		fate := "removed"
		switch {
		case g.Left != "":
			fate = "left: " + g.Left
		case dryRun:
			fate = "would be removed"
		}
		if g.Left == "" {
			sum += g.Bytes
		}
		_, err := fmt.Fprintf(w, "%-9s %s\n          nobody's: %s\n          %s; last changed %s ago\n          %s\n",
			g.Kind, inLine(g.Path), inLine(g.Why), g.takes(), time.Duration(g.AgeSeconds)*time.Second, inLine(fate))
		if err != nil {
			return err
		}
	}
	verb := "given back"
	if dryRun {
		verb = "to be given back"
	}
	_, err := fmt.Fprintf(w, "%d found; %s on disk %s\n", len(list), human.Bytes(sum), verb)
	return err
}

// takes says what a piece of garbage takes.
func (g garbage) takes() string {
	text := human.Bytes(g.Bytes) + " on disk"
	if g.Kind == sweep.Runtime {
		text += fmt.Sprintf(", %d processes with %s of memory, its network, cgroups and mounts", g.Processes, human.Bytes(g.Memory))
	}
	return text
}
