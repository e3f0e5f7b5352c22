package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/backup"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// onStream is the name of a backup on the standard output or input.
const onStream = "-"

// Backup makes a backup of a state directory, verifies one, or restores one. It writes
// what was done.
func Backup(ctx context.Context, w io.Writer, o UpkeepOptions) error {
	if err := needRoot("drowse backup"); err != nil {
		return err
	}
	var r report
	var err error
	switch {
	case o.Verify:
		r.what = "verified"
		r.Summary, err = verify(ctx, o.Backup)
	case o.Restore:
		r.what = "restored"
		r.Summary, err = restore(ctx, o.Backup, o.StateDir)
	default:
		r.what = "backed up"
		r, err = backUp(ctx, o)
	}
	if err != nil {
		return err
	}
	if o.Backup == onStream && !o.Verify && !o.Restore {
		w = os.Stderr
	}
	return r.write(w, o)
}

func verify(ctx context.Context, from string) (backup.Summary, error) {
	if from == onStream {
		return backup.VerifyStream(ctx, os.Stdin)
	}
	return backup.Verify(ctx, from)
}

func restore(ctx context.Context, from, stateDir string) (sum backup.Summary, err error) {
	if stateDir, err = realDir(stateDir); err != nil {
		return sum, err
	}
	if from == onStream {
		return backup.RestoreStream(ctx, os.Stdin, stateDir)
	}
	return backup.Restore(ctx, from, stateDir)
}

// report is what came of a backup.
type report struct {
	backup.Summary
	what string
	// Sandboxes that sleep wake from the backup as they are. Those that run are in it
	// as after a crash of the machine: Older go back to their last checkpoint, and Lost,
	// which have none, end.
	Asleep      int
	Older, Lost []string
}

func (r report) write(w io.Writer, o UpkeepOptions) error {
	if o.JSON {
		v := map[string]any{"ok": true, "backup": o.Backup, "files": r.Files, "bytes": r.Bytes}
		if !o.Verify && !o.Restore {
			v["asleep"], v["runningWithCheckpoint"], v["runningWithoutCheckpoint"] = r.Asleep, append([]string{}, r.Older...), append([]string{}, r.Lost...)
		}
		return json.NewEncoder(w).Encode(v)
	}
	_, err := fmt.Fprintf(w, "%s: %d files, %s\n", r.what, r.Files, human.Bytes(r.Bytes))
	if r.what != "backed up" || err != nil {
		return err
	}
	if _, err = fmt.Fprintf(w, "asleep, and wake from it as they are: %d\n", r.Asleep); err != nil {
		return err
	}
	if len(r.Older) > 0 {
		if _, err = fmt.Fprintf(w, "running, and in it with their last checkpoint: %s\n", few(r.Older)); err != nil {
			return err
		}
	}
	if len(r.Lost) > 0 {
		_, err = fmt.Fprintf(w, "running without a checkpoint, so that they end at a restore: %s\n  to keep them, pause them and back up again\n", few(r.Lost))
	}
	return err
}

// few names some of many sandboxes.
func few(ids []string) string {
	const most = 5
	if len(ids) <= most {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d others", strings.Join(ids[:most], ", "), len(ids)-most)
}

// backUp makes a backup, beside a server that may run. First it has the server remove
// nothing any more, then it copies the database, and then the files that this needs.
func backUp(ctx context.Context, o UpkeepOptions) (r report, err error) {
	dir, err := stateDirOf(o.StateDir)
	if err != nil {
		return r, err
	}
	to, err := filepath.Abs(o.Backup)
	if err != nil {
		return r, err
	}
	if rel, err := filepath.Rel(dir, to); o.Backup != onStream && err == nil && filepath.IsLocal(rel) {
		return r, errdef.New(errdef.Invalid, "backup_inside", "%s is inside the state directory", to).WithRemedy("name a directory elsewhere, best on another disk")
	}
	end, err := backup.Begin(dir)
	if err != nil {
		return r, err
	}
	defer end()
	database, records, err := copyDatabase(ctx, dir)
	if err != nil {
		return r, err
	}
	defer database.Close()
	r = reportOf(records)
	need := neededBy(records)
	src := backup.Source{Dir: dir, Skip: need.leavesOut, Instead: map[string]*os.File{filepath.Base(databaseIn(dir)): database}}
	if o.Backup == onStream {
		r.Summary, err = backup.Write(ctx, src, os.Stdout, need.complete)
	} else {
		r.Summary, err = backup.Create(ctx, src, to, need.complete)
	}
	return r, err
}

// copyDatabase copies the database, and reads it. The copy has no name any more.
func copyDatabase(ctx context.Context, dir string) (_ *os.File, found store.Inspection, err error) {
	tmp, err := os.MkdirTemp(dir, databaseCopy)
	if err != nil {
		return nil, found, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	path := filepath.Join(tmp, "copy.db")
	if err := store.Copy(ctx, databaseIn(dir), path); err != nil {
		return nil, found, err
	}
	found, err = store.Inspect(ctx, path)
	if n := len(found.Problems); err == nil && n > 0 {
		err = errdef.New(errdef.Internal, "database_damaged", "the database has %d faults, and was not backed up", n).WithRemedy("see drowse fsck")
	}
	if err != nil {
		return nil, found, err
	}
	f, err := os.Open(path)
	return f, found, err
}

// databaseCopy begins the names of directories that a backup has in a state directory
// while it copies the database.
const databaseCopy = ".backup-"

// notInBackup are names in a state directory that a server makes anew.
var notInBackup = []string{"run", "lock", "backup.lock", "ballast", "imports", "url", "drowse.db-shm", "drowse.db-wal"}

// needs are the layers and images that the records of a database need.
type needs map[string]bool // by id, whether a backup has it yet

func neededBy(records store.Inspection) needs {
	n := needs{}
	for _, sb := range records.Sandboxes {
		for _, part := range sb.Parts() {
			n[part] = false
		}
	}
	for _, snap := range records.Snapshots {
		for _, part := range snap.Checkpoint.Parts() {
			n[part] = false
		}
	}
	return n
}

// leavesOut judges what is in a state directory by the names of its path. Tops that are
// being written, and images that nobody needs, are no part of a backup, and neither is
// what a top has of overlayfs.
func (n needs) leavesOut(names ...string) bool {
	switch {
	case len(names) == 1:
		return slices.Contains(notInBackup, names[0]) || strings.HasPrefix(names[0], databaseCopy)
	case names[0] == "volumes" && len(names) == 2:
		return strings.HasPrefix(names[1], ".") // files on their way
	case names[0] != "layers" && names[0] != "images":
		return false
	case len(names) == 2:
		_, needed := n[names[1]]
		if needed {
			n[names[1]] = true
		}
		return !needed
	}
	return names[0] == "layers" && names[2] == ".work"
}

// complete reports an error if something was not there.
func (n needs) complete() error {
	for part, has := range n {
		if !has {
			return errdef.New(errdef.Internal, "backup_incomplete", "%s, which a sandbox or a snapshot needs, is not in the state directory; no backup was made", part).
				WithRemedy("stop the server and run drowse fsck, which says whose it is")
		}
	}
	return nil
}

func reportOf(records store.Inspection) report {
	r := report{what: "backed up"}
	for _, sb := range records.Sandboxes {
		switch rec := sb.Record; {
		case sb.Ended() || rec.State == lifecycle.Terminated:
		case rec.State == lifecycle.Paused && rec.Phase() == "":
			r.Asleep++
		case rec.Checkpoint != nil:
			r.Older = append(r.Older, sb.ID)
		default:
			r.Lost = append(r.Lost, sb.ID)
		}
	}
	return r
}
