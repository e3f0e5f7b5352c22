package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Remains is what there is of runtimes below the directory of a driver that
// nobody has open. It starts nothing, and changes nothing by itself.
type Remains struct{ d *Driver }

// RemainsOf returns what there is below dir.
func RemainsOf(dir string) (*Remains, error) {
	d, err := at(dir)
	if err != nil {
		return nil, err
	}
	return &Remains{d}, nil
}

// List returns the ids of all runtimes that exist in any state, those that
// waited for a start included.
func (r *Remains) List(context.Context) ([]string, error) {
	launched, err := names(r.d.bundles())
	waiting, err2 := names(r.d.waiting())
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("list runtimes: %w", err)
	}
	return append(launched, waiting...), nil
}

// Dir returns the directory of a runtime.
func (r *Remains) Dir(id string) string {
	if waits := filepath.Join(r.d.waiting(), id); isDir(waits) {
		return waits
	}
	return r.d.bundle(id)
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// Remove destroys what is left of a runtime. It is idempotent.
func (r *Remains) Remove(ctx context.Context, id string) error {
	if dir := r.Dir(id); filepath.Dir(dir) == r.d.waiting() {
		return r.d.remove(dir, id)
	}
	return r.d.Remove(ctx, id)
}

// Usage is what a runtime takes.
type Usage struct {
	Processes int
	Memory    int64 // in bytes; 0 where that is not known
}

// Usage returns what a runtime takes of the machine.
func (r *Remains) Usage(id string) Usage {
	var u Usage
	cid := id
	if filepath.Dir(r.Dir(id)) == r.d.bundles() {
		if known, err := r.d.containerID(id); err == nil {
			cid = known
		}
	}
	g := groupOf(r.Dir(id), cid)
	if pids, err := processesOf(g); err == nil {
		u.Processes = len(pids)
	}
	u.Memory, _, _ = memoryOf(g)
	return u
}

// Close lets go of what gVisor pins for all runtimes, if none is left.
func (r *Remains) Close() error { return r.d.letGo() }
