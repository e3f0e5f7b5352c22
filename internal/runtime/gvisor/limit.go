package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The pages of an image that is being written count as memory of the runtime
// that writes it. Within its limit the kernel would drop them in the middle of
// the capture, only for them to be read again for their checksums, and what
// gVisor takes itself could end a runtime that holds all it may. So the limit
// is twice as high while the guest is frozen and cannot take more.

// memoryGroup is the cgroup that bounds a runtime's memory.
type memoryGroup struct{ dir, usage, limit string }

// memoryGroupOf returns a runtime's; false if nothing bounds its memory.
func memoryGroupOf(g group) (memoryGroup, bool) {
	for path := range g.files("memory", "memory.limit_in_bytes", "memory.max") {
		m := memoryGroup{filepath.Dir(path), "memory.current", filepath.Base(path)}
		if m.limit == "memory.limit_in_bytes" {
			m.usage = "memory.usage_in_bytes"
		}
		return m, true
	}
	return memoryGroup{}, false
}

func (g memoryGroup) file(name string) string { return filepath.Join(g.dir, name) }

func (g memoryGroup) read(name string) (int64, error) {
	data, err := os.ReadFile(g.file(name))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

func (g memoryGroup) set(limit int64) error {
	return os.WriteFile(g.file(g.limit), strconv.AppendInt(nil, limit, 10), 0o600)
}

// An image server is in the runtime's cgroup, with memory of its own, and starts while
// the guest may be as large as it may be. So its memory is beside the guest's as long as
// it loads. In cgroup v2 the one group counts tasks as well, and an image server or an
// image taker is a Go program, which dies if it can make no thread: a guest that has all
// the tasks that it may could not be paused, or woken, any more. So that limit too is
// higher meanwhile. A guest that runs while it is loaded can have some of these tasks
// for that time.
const (
	imageMemory = 64 << 20 // well above GOMEMLIMIT of imageServer
	imageTasks  = 32       // a Go program with two processors has about 12
)

// limitTasks sets how many tasks a group of v2 may have: those of the guest, where that
// is known, and more.
func (g group) limitTasks(guests, more int64) error {
	if g.path == "" || guests == 0 {
		return nil // v1: they do not join the group that counts
	}
	return os.WriteFile(g.tree.Dir(filepath.Join(g.path, "pids.max")), strconv.AppendInt(nil, guests+more, 10), 0o600)
}

// makeRoom lets an image server join the group of a runtime that is restored, until the
// limits are lowered. Where no guest runs until all is loaded, nobody else can use the
// room. A restore without it may go well all the same.
func (g group) makeRoom(is about, allFirst bool) {
	if m, ok := memoryGroupOf(g); ok {
		room := is.memoryLimit + imageMemory
		if allFirst {
			room = 2 * is.memoryLimit
		}
		_ = m.set(room)
	}
	_ = g.limitTasks(is.tasks, imageTasks)
}

// limitMargin is what a limit leaves above what cannot be given up.
const limitMargin = 4 << 20

// lower puts the limit back, or as near to that as it goes without ending the
// runtime: gVisor may have taken memory itself, and files that are not on the
// disk yet cannot be given up. Then it is false, and never more than it was.
func (g memoryGroup) lower(limit int64) (done bool, err error) {
	was, err := g.read(g.limit)
	if err != nil || was <= limit {
		return err == nil, err
	}
	used, err := g.read(g.usage)
	if err != nil {
		return false, err
	}
	stat, err := os.ReadFile(g.file("memory.stat"))
	if err != nil {
		return false, err
	}
	to := min(was, max(limit, used-parseMemoryStat(string(stat)).clean()+limitMargin))
	return to == limit, g.set(to)
}

// liftLimit makes room for an image. A capture without it is only slower.
func (i *instance) liftLimit() {
	if g, ok := memoryGroupOf(i.group); ok {
		_ = g.set(2 * i.memoryLimit())
	}
	_ = i.group.limitTasks(i.c.about().tasks, imageTasks)
}

// memoryLimit is where the kernel ends the runtime while it runs. Callers hold mu.
func (i *instance) memoryLimit() int64 {
	return i.c.about().memoryLimit + i.reserve + i.loadingMemory()
}

// loadingMemory is what the image server of a runtime may take in its cgroup.
func (i *instance) loadingMemory() int64 {
	select {
	case <-i.loaded:
		return 0
	default:
		return imageMemory
	}
}

// limitRetry is how long to wait before another try to lower a limit.
const limitRetry = time.Second

// lowerLimit puts the limit back before the guest runs again; what cannot be
// given up yet, later.
func (i *instance) lowerLimit() {
	if i.tryLowerLimit() {
		return
	}
	go func() {
		for done := false; !done; {
			select {
			case <-i.exited:
				return
			case <-time.After(limitRetry):
			}
			i.mu.Lock()
			done = i.frozen || i.tryLowerLimit() // it is lowered when it is thawed
			i.mu.Unlock()
		}
	}()
}

func (i *instance) tryLowerLimit() bool {
	select {
	case <-i.loaded:
		_ = i.group.limitTasks(i.c.about().tasks, 0) // those that there are go on
	default:
	}
	g, ok := memoryGroupOf(i.group)
	if !ok {
		return true
	}
	done, err := g.lower(i.memoryLimit())
	return done && err == nil || errors.Is(err, os.ErrNotExist)
}
