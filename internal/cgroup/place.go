package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Place is a cgroup in which each sandbox gets one of its own.
type Place struct {
	Tree
	Path string
	// Controllers are those that the cgroups in it have.
	Controllers []string
}

// required are the controllers without which a sandbox would have a limit that
// nobody keeps; gVisor reads the number of processors from cpuset. "io" is used
// where it is there: the sandboxes then have equal shares of the disk.
var required = []string{"memory", "cpu", "cpuset", "pids"}

var wanted = append(slices.Clone(required), "io")

// groupName is the place's name where it is not a unit of systemd.
const groupName = "drowse"

// leafName is where processes go that are in the way: a cgroup with controllers
// for those below it has no processes itself.
const leafName = "drowse-others"

// manager is the systemd of this host.
type manager interface {
	// scope returns the cgroup of a scope for the sandboxes' cgroups, which it
	// makes if there is none, and a process that keeps the scope alive.
	scope(ctx context.Context) (group string, err error)
}

// Prepare finds the place and makes it ready. It can be called again, also by
// another process.
func Prepare(ctx context.Context, t Tree) (*Place, error) {
	groups, err := (system{}).ownGroups()
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	var m manager
	if booted() {
		m = systemd{t}
	}
	return prepare(ctx, t, own(groups), m)
}

// prepare chooses the place for a process in the cgroup self. m is nil without
// systemd.
func prepare(ctx context.Context, t Tree, self string, m manager) (*Place, error) {
	if m != nil {
		group, err := m.scope(ctx)
		if err == nil {
			return t.ready(group, group)
		}
		if ctx.Err() != nil {
			return nil, err
		} // else it is out of reach, as in a container that shows its directory
	}
	if !t.isRoot() {
		// A container: all of the tree is its own.
		return t.readyBeside("/")
	}
	if !t.exists("/init.scope") {
		return t.ready("/", "/"+groupName) // nobody else manages the tree
	}
	if t.delegated(self) {
		return t.readyBeside(self)
	}
	return t.ready("/", "/"+groupName)
}

// isRoot reports whether the tree shows all there is, rather than a container's
// part.
func (t Tree) isRoot() bool { return !t.has("/", "cgroup.type") }

func (t Tree) exists(group string) bool { return t.has(group, "cgroup.procs") }

func (t Tree) has(group, name string) bool {
	_, err := t.files.read(t.Dir(path.Join(group, name)))
	return err == nil
}

// delegated reports whether systemd leaves the inside of a cgroup to others.
func (t Tree) delegated(group string) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		value := make([]byte, 8)
		if n, err := unix.Lgetxattr(t.Dir(group), name, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return false
}

// readyBeside makes a place in a cgroup with processes, which it moves to a leaf.
func (t Tree) readyBeside(group string) (*Place, error) {
	if err := t.vacate(group); err != nil {
		return nil, err
	}
	return t.ready(group, path.Join(group, groupName))
}

// vacate moves the processes of a cgroup itself to a leaf below it. They may
// fork meanwhile.
func (t Tree) vacate(group string) error {
	for range 100 {
		pids, err := t.words(group, "cgroup.procs")
		if err != nil {
			return fmt.Errorf("processes of cgroup %s: %w", group, err)
		}
		if len(pids) == 0 {
			return nil
		}
		leaf := path.Join(group, leafName)
		if err := t.files.mkdir(t.Dir(leaf)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make cgroup %s: %w", leaf, err)
		}
		for _, pid := range pids {
			if err := t.write(leaf, "cgroup.procs", pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move process %s to cgroup %s: %w", pid, leaf, err)
			}
		}
	}
	return fmt.Errorf("processes come into cgroup %s faster than they can be moved out of it", group)
}

// ready makes the cgroup group and enables controllers from the cgroup top,
// which is group or above it, down to those in group.
func (t Tree) ready(top, group string) (*Place, error) {
	for at := top; ; {
		if err := t.files.mkdir(t.Dir(at)); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, noPlace(err, "make cgroup %s", at)
		}
		if kind, err := t.read(at, "cgroup.type"); err == nil && kind != "domain" {
			return nil, noCgroups("cgroup %s is %q: in a tree of threads no limit of memory can be set", at, kind).
				WithRemedy("start drowse outside of the threaded cgroup %s", at)
		}
		if err := t.enable(at); err != nil {
			return nil, err
		}
		if at == group {
			break
		}
		rest := strings.TrimPrefix(strings.TrimPrefix(group, at), "/")
		next, _, _ := strings.Cut(rest, "/")
		at = path.Join(at, next)
	}
	have, err := t.words(group, "cgroup.subtree_control")
	if err != nil {
		return nil, noPlace(err, "controllers of cgroup %s", group)
	}
	for _, c := range required {
		if !slices.Contains(have, c) {
			return nil, t.lacks(c, group)
		}
	}
	return &Place{Tree: t, Path: group, Controllers: have}, nil
}

// enable enables the controllers that a cgroup has for those below it. One that
// cannot be enabled shows in the end as missing.
func (t Tree) enable(group string) error {
	have, err := t.words(group, "cgroup.controllers")
	if err != nil {
		return noPlace(err, "controllers of cgroup %s", group)
	}
	on, err := t.words(group, "cgroup.subtree_control")
	if err != nil {
		return noPlace(err, "controllers of cgroup %s", group)
	}
	for _, c := range wanted {
		if !slices.Contains(have, c) || slices.Contains(on, c) {
			continue
		}
		err := t.write(group, "cgroup.subtree_control", "+"+c)
		switch {
		case errors.Is(err, unix.EBUSY):
			return noCgroups("controllers cannot be enabled in cgroup %s, because it has processes of its own", group).
				WithRemedy("end or move the processes in %s/cgroup.procs", t.Dir(group))
		case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return noPlace(err, "enable controller %s in cgroup %s", c, group)
		}
	}
	return nil
}

func noPlace(err error, format string, args ...any) *errdef.Error {
	return noCgroups("%s: %w", fmt.Sprintf(format, args...), err).
		WithRemedy("drowse must be able to write to %s: run it as root on the host, or in a container with --privileged", Mount)
}

// lacks says where on the way to a cgroup a controller is lost.
func (t Tree) lacks(controller, group string) error {
	have, err := t.words("/", "cgroup.controllers")
	if err != nil {
		return noPlace(err, "controllers of the host")
	}
	if slices.Contains(have, controller) {
		return noCgroups("the cgroups in %s have no controller %q, which limits sandboxes", group, controller).
			WithRemedy("enable it on the way from %s to %s, in cgroup.subtree_control of each", t.dir, group)
	}
	if !t.isRoot() {
		return noCgroups("this container has no cgroup controller %q, which limits sandboxes", controller).
			WithRemedy("let the container's manager delegate it: run the container with --privileged --cgroupns=private")
	}
	controllers, _ := os.ReadFile("/proc/cgroups")
	return notOffered(controller, string(controllers))
}

// notOffered says why the root of the tree lacks a controller, and how it can be
// had. controllers is what /proc/cgroups says.
func notOffered(controller, controllers string) error {
	lacking := noCgroups("the host's kernel has no cgroup controller %q for cgroup v2, which limits sandboxes", controller)
	for line := range strings.Lines(controllers) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] != controller {
			continue
		}
		if f[3] == "0" {
			return lacking.WithRemedy("boot with cgroup_enable=%s on the kernel's command line", controller)
		}
		if f[1] != "0" {
			return noCgroups("the host's cgroup controllers, which limit sandboxes, are not all in cgroup v2: %q is bound to v1", controller).
				WithRemedy("boot with systemd.unified_cgroup_hierarchy=1 or cgroup_no_v1=all on the kernel's command line, so that all belong to v2")
		}
	}
	return lacking.WithRemedy("boot a kernel that has it")
}

// LeastPIDs returns the smallest limit of tasks on the way to the place, and the
// cgroup that has it; 0 if there is none.
func (p *Place) LeastPIDs() (group string, most int64) {
	for at := p.Path; ; at = path.Dir(at) {
		text, err := p.read(at, "pids.max")
		if n, err2 := strconv.ParseInt(text, 10, 64); err == nil && err2 == nil && (most == 0 || n < most) {
			group, most = at, n
		}
		if at == "/" {
			return group, most
		}
	}
}

// Make makes the cgroup name in the place, with limits, and returns its path.
// One that is there already gets the limits.
func (p *Place) Make(name string, l Limits) (group string, err error) {
	group = path.Join(p.Path, name)
	if err := p.files.mkdir(p.Dir(group)); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make cgroup %s: %w", group, err)
	}
	return group, p.limit(group, l)
}
