package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/backup"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/volume"
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
	// Missing is what sandboxes need that was not there, by its path.
	Missing []string
}

func (r report) write(w io.Writer, o UpkeepOptions) error {
	if o.JSON {
		v := map[string]any{"ok": true, "backup": o.Backup, "files": r.Files, "bytes": r.Bytes}
		if !o.Verify && !o.Restore {
			v["asleep"], v["runningWithCheckpoint"], v["runningWithoutCheckpoint"], v["missing"] = r.Asleep, append([]string{}, r.Older...), append([]string{}, r.Lost...), append([]string{}, r.Missing...)
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
	if len(r.Missing) > 0 {
		if _, err = fmt.Fprintf(w, "not in the state directory, though sandboxes need it: %s\n  see drowse fsck\n", few(r.Missing)); err != nil {
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
	if inside, err := isInside(to, dir); o.Backup != onStream && (inside || err != nil) {
		return r, cmp.Or(err, error(errdef.New(errdef.Invalid, "backup_inside", "%s is inside the state directory", to).WithRemedy("name a directory elsewhere, best on another disk")))
	}
	mark, err := backup.Begin(dir)
	if err != nil {
		return r, err
	}
	defer mark.End()
	if mark.Alone() {
		if err := removeCopies(dir); err != nil {
			return r, err
		}
	}
	database, records, err := copyDatabase(ctx, dir)
	if err != nil {
		return r, err
	}
	defer database.Close()
	if err := mark.Settle(); err != nil {
		return r, err
	}
	r = reportOf(records)
	need := neededBy(dir, records)
	r.Missing = need.missing
	src := backup.Source{Dir: dir, Skip: need.leavesOut, Apart: "volumes", Instead: map[string]*os.File{filepath.Base(databaseIn(dir)): database}}
	if o.Backup == onStream {
		r.Summary, err = backup.Write(ctx, src, os.Stdout, need.complete)
	} else {
		r.Summary, err = backup.Create(ctx, src, to, need.complete)
	}
	return r, err
}

// isInside reports whether a path, of which the end need not be there, is in dir.
func isInside(path, dir string) (bool, error) {
	there, err := os.Stat(path)
	for ; errors.Is(err, fs.ErrNotExist) && path != "/"; there, err = os.Stat(path) {
		path = filepath.Dir(path)
	}
	if err != nil {
		return false, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil || !there.IsDir() {
		return false, err
	}
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel), nil
}

// removeCopies removes copies of the database that backups have left which were killed.
func removeCopies(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, databaseCopy+"*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// copyDatabase copies the database, and reads it. The copy has no name any more.
func copyDatabase(ctx context.Context, dir string) (_ *os.File, found store.Inspection, err error) {
	tmp, err := os.MkdirTemp(dir, databaseCopy)
	if err != nil {
		return nil, found, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	path := filepath.Join(tmp, "copy.db")
	if err := copyRecords(ctx, dir, path); err != nil {
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

// notInBackup are names in a state directory that a server makes anew. So it does with
// those that begin with a dot.
var notInBackup = []string{"run", "lock", "backup.lock", "ballast", "imports", "url", "drowse.db-shm", "drowse.db-wal", "drowse.db.before-postgres", "drowse.db.new"}

// needs is what the records of a database need of a state directory.
type needs struct {
	dir     string
	copied  map[string]bool // by path, whether it was met
	missing []string        // what was not there to begin with
}

func neededBy(dir string, records store.Inspection) *needs {
	n := &needs{dir: dir, copied: map[string]bool{}}
	owned := sweep.OwnedBy(sweep.Records{Sandboxes: records.Sandboxes, Volumes: records.Volumes, Snapshots: records.Snapshots})
	for kind, ids := range map[string]map[string]bool{"templates": owned.Templates, "layers": owned.Layers, "images": owned.Images, "volumes": owned.Volumes} {
		for id := range ids {
			n.add(kind, id)
		}
	}
	kept := layer.At(dir)
	for id := range owned.Images {
		if build, err := kept.BuildOf(id); err == nil && build != "" {
			n.add("builds", build)
		}
	}
	slices.Sort(n.missing)
	n.missing = slices.Compact(n.missing) // several images can need the same build
	return n
}

// add notes that something is needed, if it is there.
func (n *needs) add(kind, id string) {
	path := filepath.Join(kind, id)
	if _, known := n.copied[path]; known {
		return
	}
	if n.there(path) && !(kind == "images" && n.there(layer.LatePath(path))) { // the rest of it is in object storage
		n.copied[path] = false
	} else {
		n.missing = append(n.missing, path)
	}
}

// there reports whether something is in the state directory. A volume that was deleted
// since has another name until its files are removed, which a server that starts knows.
func (n *needs) there(path string) bool {
	_, err := os.Lstat(filepath.Join(n.dir, path))
	if err != nil && strings.HasPrefix(path, "volumes/") {
		_, err = os.Lstat(filepath.Join(n.dir, path+volume.Discarded))
	}
	return err == nil
}

// leavesOut judges what is in a state directory by the names of its path. Tops that are
// being written, and images and volumes that no record names, are no part of a backup, and
// neither is what a top has of overlayfs.
func (n *needs) leavesOut(names ...string) bool {
	switch {
	case len(names) == 1:
		return slices.Contains(notInBackup, names[0]) || strings.HasPrefix(names[0], ".")
	case len(names) == 2:
		path := filepath.Join(names...)
		if names[0] == "volumes" {
			path = strings.TrimSuffix(path, volume.Discarded)
		}
		_, needed := n.copied[path]
		if needed {
			n.copied[path] = true
		}
		return !needed && (names[0] == "layers" || names[0] == "images" || names[0] == "volumes")
	}
	return names[0] == "layers" && names[2] == ".work"
}

// complete reports an error if something was not met, or was removed meanwhile, as by a
// server of a version that knows nothing of backups.
func (n *needs) complete() error {
	for path, copied := range n.copied {
		if !copied || !n.there(path) {
			return errdef.New(errdef.Internal, "backup_incomplete", "%s, which a sandbox or a snapshot needs, was removed while it was copied; no backup was made", path).
				WithRemedy("back up again; if a server runs that is older than this drowse, restart it first")
		}
	}
	return nil
}

func reportOf(records store.Inspection) report {
	r := report{what: "backed up"}
	for _, sb := range records.Sandboxes {
		switch rec := sb.Record; {
		case rec.State == lifecycle.Terminated:
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
