package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/backup"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// notInBackup are names in a state directory that a server makes anew.
var notInBackup = []string{"run", "lock", "ballast", "drowse.db-shm"}

// Backup makes a backup of a state directory that no server uses, verifies one, or
// restores one. It writes what was done.
func Backup(ctx context.Context, w io.Writer, o UpkeepOptions) error {
	if err := needRoot("drowse backup"); err != nil {
		return err
	}
	verb := "backed up to " + o.Backup
	var sum backup.Summary
	var err error
	switch {
	case o.Verify:
		verb = "verified in " + o.Backup
		sum, err = backup.Verify(ctx, o.Backup)
	case o.Restore:
		if o.StateDir, err = realDir(o.StateDir); err != nil {
			return err
		}
		verb = "restored to " + o.StateDir
		sum, err = backup.Restore(ctx, o.Backup, o.StateDir)
	default:
		sum, err = backUp(ctx, o)
	}
	if err != nil {
		return err
	}
	if o.JSON {
		return json.NewEncoder(w).Encode(map[string]any{"ok": true, "backup": o.Backup, "files": sum.Files, "bytes": sum.Bytes})
	}
	_, err = fmt.Fprintf(w, "%d files, %s: %s\n", sum.Files, human.Bytes(sum.Bytes), inLine(verb))
	return err
}

func backUp(ctx context.Context, o UpkeepOptions) (sum backup.Summary, err error) {
	u, err := beginUpkeep(ctx, o.StateDir)
	if err != nil {
		return sum, err
	}
	defer func() { err = cmp.Or(err, u.end()) }() // alone, an error has its next step
	if n := len(u.records.Problems); n > 0 {
		return sum, errdef.New(errdef.Internal, "database_damaged", "the database has %d faults, and was not backed up", n).WithRemedy("see drowse fsck")
	}
	var awake []string
	for _, sb := range u.records.Sandboxes {
		if at := sb.Record.State; at != lifecycle.Paused && at != lifecycle.Terminated || sb.Record.Phase() != "" {
			awake = append(awake, sb.ID)
		}
	}
	if len(awake) > 0 {
		slices.Sort(awake)
		return sum, errdef.New(errdef.WrongState, "sandboxes_awake", "%d sandboxes do not sleep, and their memory cannot be backed up: %s", len(awake), strings.Join(awake[:min(5, len(awake))], ", ")).
			WithRemedy("start the server, pause them (drowse pause --all), stop it, and back up again")
	}
	target, err := filepath.Abs(o.Backup)
	if err != nil {
		return sum, err
	}
	if rel, err := filepath.Rel(u.dir, target); err == nil && filepath.IsLocal(rel) {
		return sum, errdef.New(errdef.Invalid, "backup_inside", "%s is inside the state directory", target).WithRemedy("name a directory elsewhere, best on another disk")
	}
	return backup.Create(ctx, u.dir, target, func(name string) bool { return slices.Contains(notInBackup, name) })
}
