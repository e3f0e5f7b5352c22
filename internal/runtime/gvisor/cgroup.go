package gvisor

import (
	"errors"
	"iter"
	"os"
	"path"
	"path/filepath"
	"sync"
	_ "unsafe" // for linkname

	specs "github.com/opencontainers/runtime-spec/specs-go"
	_ "gvisor.dev/gvisor/runsc/cgroup" // the package whose variables are set below

	"github.com/drowse-dev/drowse/internal/cgroup"
)

// cgroupParent holds the cgroups of all runtimes in each hierarchy of cgroup v1,
// where gVisor makes them. In v2 they are in a place that is made ready before
// (see package cgroup), with the limits set by us: gVisor would enable
// controllers from the top of the tree, which belongs to systemd, and knows
// neither memory.oom.group nor a host without one of the controllers.
const cgroupParent = "drowse"

// group is where the kernel counts and limits a runtime: one cgroup of v2, or
// one in each hierarchy of v1.
type group struct {
	tree cgroup.Tree
	path string // in the tree; empty in v1
	// For v1, and for v2 as drowse made it at first: the mount and gVisor's id.
	root, id string
}

// groupFile is in the bundles of runtimes that have a cgroup of v2, and names it.
const groupFile = "cgroup"

// groupOf returns the cgroups of a runtime that gVisor knows as cid.
func groupOf(bundle, cid string) group {
	g := group{root: cgroup.Mount, id: cid}
	if path, err := os.ReadFile(filepath.Join(bundle, groupFile)); err == nil {
		if t, v2, err := cgroup.Open(); v2 && err == nil {
			g.tree, g.path = t, string(path)
		}
	}
	return g
}

// makeGroup makes the cgroup of a runtime that is about to be made.
func (d *Driver) makeGroup(bundle, cid string, r *specs.LinuxResources) error {
	if d.place == nil {
		return nil
	}
	// First, so that whoever removes the runtime knows of it.
	name := path.Join(d.place.Path, cid)
	if err := os.WriteFile(filepath.Join(bundle, groupFile), []byte(name), 0o600); err != nil {
		return err
	}
	_, err := d.place.Make(cid, cgroup.Limits{
		Memory: *r.Memory.Limit, CPUs: float64(*r.CPU.Quota) / float64(*r.CPU.Period), PIDs: r.Pids.Limit,
	})
	return err
}

// cgroupsPath returns where gVisor looks for the cgroup of a runtime.
func (d *Driver) cgroupsPath(cid string) string {
	if d.place != nil {
		return "/" + cid // of the place
	}
	return "/" + cgroupParent + "/" + cid
}

// placeVariable tells gVisor's tool the directory that is to be the top of the
// tree for it.
const placeVariable = "DROWSE_CGROUPS"

// cgroupRoot and cgroupRootOnce are what gVisor takes for the top of the tree.
// It has no flag for that.
//
//go:linkname cgroupRoot gvisor.dev/gvisor/runsc/cgroup.cgroupRootInternal
var cgroupRoot string

//go:linkname cgroupRootOnce gvisor.dev/gvisor/runsc/cgroup.cgroupRootOnce
var cgroupRootOnce sync.Once

// usePlace makes the place the top of the tree for gVisor in this process.
func usePlace() {
	if dir := os.Getenv(placeVariable); dir != "" {
		cgroupRootOnce.Do(func() { cgroupRoot = dir })
	}
}

// dirs returns the directories of the cgroups of v1 that exist, and of v2 where
// drowse made them at first.
func (g group) dirs() []string {
	var dirs []string
	for _, pattern := range []string{
		filepath.Join(g.root, cgroupParent, g.id),
		filepath.Join(g.root, "*", cgroupParent, g.id),
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			panic("internal error: " + err.Error()) // ids have no special characters
		}
		dirs = append(dirs, found...)
	}
	return dirs
}

// files yields the paths and texts of files: of the hierarchy of a controller in
// cgroup v1, and of those of v2. Which of them counts depends on the host.
func (g group) files(controller, v1, v2 string) iter.Seq2[string, string] {
	candidates := []string{g.tree.Dir(filepath.Join(g.path, v2))}
	if g.path == "" {
		candidates = nil
		for _, file := range [][2]string{{controller, v1}, {"", v2}, {"unified", v2}} {
			candidates = append(candidates, filepath.Join(g.root, file[0], cgroupParent, g.id, file[1]))
		}
	}
	return func(yield func(path, text string) bool) {
		for _, path := range candidates {
			data, err := os.ReadFile(path)
			if err == nil && !yield(path, string(data)) {
				return
			}
		}
	}
}

// remove ends what is left in the cgroups of a runtime and removes them.
func (g group) remove() error {
	if g.path != "" {
		return g.tree.Remove(g.path)
	}
	var errs []error
	for _, dir := range g.dirs() {
		errs = append(errs, cgroup.At(filepath.Dir(dir)).Remove(filepath.Base(dir)))
	}
	return errors.Join(errs...)
}
