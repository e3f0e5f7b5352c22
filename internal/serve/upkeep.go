package serve

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/drowse-dev/drowse/internal/backup"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
	"github.com/drowse-dev/drowse/internal/runtime/drivers"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/volume"
)

// UpkeepOptions is what Fsck and GC are told.
type UpkeepOptions struct {
	StateDir string
	JSON     bool // rather than text
	Repair   bool // of Fsck: change what is safe to
	DryRun   bool // of GC: change nothing

	Backup          string // of Backup: the directory of the backup
	Verify, Restore bool   // of Backup: what is done with one that is there
}

// upkeep is a state directory that this process has taken while no server uses
// it. Taking it changes nothing in it.
type upkeep struct {
	dir     string
	unlock  func() error
	records store.Inspection
	layers  *layer.Store
	bases   *template.Store
	remains drivers.Remains
}

func beginUpkeep(ctx context.Context, dir string) (_ *upkeep, err error) {
	if err := needRoot("drowse fsck and gc"); err != nil {
		return nil, err
	}
	if dir, err = stateDirOf(dir); err != nil {
		return nil, err
	}
	u := &upkeep{dir: dir, layers: layer.At(dir), bases: template.At(templatesIn(dir))}
	u.unlock, err = lockDir(ctx, dir)
	if e, ok := errors.AsType[*errdef.Error](err); ok && e.Class == errdef.Conflict {
		return nil, e.WithRemedy("stop it first: this needs the directory for itself")
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.unlock())
		}
	}()
	if backup.Needs(dir, "") {
		return nil, errdef.New(errdef.Conflict, "backup_under_way", "%s is being backed up, and nothing was changed", dir).
			WithRemedy("wait until the backup has ended")
	}
	if u.remains, err = drivers.Default().Remains(runtimesIn(dir)); err != nil {
		return nil, err
	}
	u.records, err = inspectRecords(ctx, dir)
	return u, err
}

// inspectRecords reads the records of a state directory that no server uses. Those that are
// in PostgreSQL are copied for that.
func inspectRecords(ctx context.Context, dir string) (found store.Inspection, err error) {
	e, err := readElsewhere(dir)
	if err != nil {
		return found, err
	}
	if e == nil {
		return store.Inspect(ctx, databaseIn(dir))
	}
	g, err := e.checkIdle(ctx, dir)
	if err != nil {
		return found, err
	}
	tmp, err := os.MkdirTemp(dir, databaseCopy)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	path := filepath.Join(tmp, "copy.db")
	if err := store.Copy(ctx, e.Store, e.Server, g.Branch, path); err != nil {
		return found, err
	}
	return store.Inspect(ctx, path)
}

// stateDirOf returns the real path of a directory that a server has used.
func stateDirOf(dir string) (string, error) {
	if _, err := os.Stat(databaseIn(dir)); err != nil {
		return "", errdef.New(errdef.Invalid, "state_dir", "no server has used %s: %w", dir, err).
			WithRemedy("name the server's directory with --state-dir")
	}
	return realDir(dir)
}

// end gives the directory back.
func (u *upkeep) end() error { return u.unlock() }

func (u *upkeep) sweeper() sweep.Sweeper {
	return sweep.Sweeper{Runtimes: u.remains, RunDir: mountsIn(u.dir), Layers: u.layers, Templates: u.bases, Volumes: volumesAt(u.dir), Builds: buildsAt(u.dir)}
}

// Where things are in a state directory.
func databaseIn(dir string) string  { return filepath.Join(dir, "drowse.db") }
func templatesIn(dir string) string { return filepath.Join(dir, "templates") }
func recipesIn(dir string) string   { return filepath.Join(dir, "recipes") }
func acmeIn(dir string) string      { return filepath.Join(dir, "acme") }
func auditIn(dir string) string     { return filepath.Join(dir, "audit") }
func runtimesIn(dir string) string  { return filepath.Join(dir, "run", drivers.Default().Dir) }
func mountsIn(dir string) string    { return filepath.Join(dir, "run", "rootfs") }
func volumesIn(dir string) string   { return filepath.Join(dir, "volumes") }

func buildsAt(dir string) *builds.Store { return builds.At(filepath.Join(dir, "builds")) }

func volumesAt(dir string) *volume.Store { return volume.At(volumesIn(dir), template.UserID) }

func needRoot(what string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return errdef.New(errdef.Forbidden, "not_root", "%s must run as root: it deals with namespaces, mounts and cgroups", what).
		WithRemedy("run it with sudo")
}
