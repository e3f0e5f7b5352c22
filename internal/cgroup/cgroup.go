// Package cgroup makes the cgroups of version 2 that count and limit what each
// sandbox takes of the host.
//
// A [Tree] is the hierarchy as this process sees it. [Prepare] finds the
// [Place] in it where the sandboxes' cgroups may be, and enables the controllers
// there. It writes only to cgroups that this process may manage: under systemd
// that is a scope of drowse's own, which outlives the server.
//
// A cgroup is named by its path in the tree, such as
// /system.slice/drowse-sandboxes.scope/i0r1, which another process finds as
// well, wherever it sees the tree.
//
// On a host whose controllers belong to cgroup v1 there is no tree for this
// package; gVisor makes the cgroups there.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount is where hosts mount their cgroups.
const Mount = "/sys/fs/cgroup"

// Tree is the hierarchy of cgroup v2.
type Tree struct {
	dir   string // where it is mounted, or a descriptor of a mount without a place
	files files
}

// At returns the tree that is mounted at dir.
func At(dir string) Tree { return Tree{dir: dir, files: host{}} }

// Dir returns the directory of a cgroup. Other processes of root can use it as
// long as this one lives.
func (t Tree) Dir(group string) string { return filepath.Join(t.dir, group) }

// files is what this package does with the files of a tree.
type files interface {
	read(name string) (string, error)
	write(name, text string) error
	mkdir(name string) error
}

// host is the files of the host.
type host struct{}

func (host) read(name string) (string, error) {
	data, err := os.ReadFile(name)
	return string(data), err
}

// write makes no file: those of a cgroup are there or not.
func (host) write(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (host) mkdir(name string) error { return os.Mkdir(name, 0o755) }

func (t Tree) read(group, name string) (string, error) {
	text, err := t.files.read(filepath.Join(t.dir, group, name))
	return strings.TrimSpace(text), err
}

func (t Tree) write(group, name, text string) error {
	return t.files.write(filepath.Join(t.dir, group, name), text)
}

// words returns the words of a file, none if there is no such file.
func (t Tree) words(group, name string) ([]string, error) {
	text, err := t.read(group, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(text), err
}

// Limits is what a cgroup may take. 0 is no limit.
type Limits struct {
	Memory int64 // bytes
	CPUs   float64
	PIDs   int64
}

// cpuPeriod is the time over which the kernel accounts for a limit of CPUs.
const cpuPeriod = 100 * time.Millisecond

// settings returns the files of a cgroup that set limits.
//
// There is no memory.high below the limit: it would slow a guest down, for as
// long as it likes, instead of ending it. There is no swap: a limit of memory
// would not be one, and the host's swap would be every tenant's. When the limit
// is reached, all of the cgroup ends at once, because gVisor lets none of its
// processes outlive another.
func (l Limits) settings() [][2]string {
	var s [][2]string
	if l.Memory > 0 {
		s = append(s, [2]string{"memory.oom.group", "1"},
			[2]string{"memory.swap.max", "0"}, // not there where the kernel has no swap
			[2]string{"memory.max", strconv.FormatInt(l.Memory, 10)})
	}
	if l.CPUs > 0 {
		period := cpuPeriod.Microseconds()
		s = append(s, [2]string{"cpu.max", fmt.Sprintf("%d %d", int64(math.Round(l.CPUs*float64(period))), period)})
	}
	if l.PIDs > 0 {
		s = append(s, [2]string{"pids.max", strconv.FormatInt(l.PIDs, 10)})
	}
	return s
}

// optional are files that a kernel can lack without a limit being lost.
var optional = map[string]bool{"memory.oom.group": true, "memory.swap.max": true}

// limit sets the limits of a cgroup.
func (t Tree) limit(group string, l Limits) error {
	for _, s := range l.settings() {
		err := t.write(group, s[0], s[1])
		if err != nil && !(optional[s[0]] && errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("set %s of cgroup %s: %w", s[0], group, err)
		}
	}
	return nil
}

// patience is how long killed processes may take to go.
const patience = 5 * time.Second

// Remove kills what is left in a cgroup and removes it.
func (t Tree) Remove(group string) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err := t.kill(group); err != nil {
			return fmt.Errorf("kill cgroup %s: %w", group, err)
		}
		err := unix.Rmdir(t.Dir(group))
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("remove cgroup %s: %w", group, err)
		}
	}
}

// kill kills all of a cgroup. A process that forks meanwhile is not missed,
// unless the kernel is older than 5.14.
func (t Tree) kill(group string) error {
	err := t.write(group, "cgroup.kill", "1")
	if err == nil || gone(t.Dir(group)) {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return KillEach(t.Dir(group))
}

func gone(dir string) bool {
	_, err := os.Lstat(dir)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// KillEach kills the processes in the cgroup in a directory one by one, of v1
// as well.
func KillEach(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || pid <= 0 {
			continue // 0 is a process of another namespace
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// own returns the cgroup of v2 that a /proc/PID/cgroup names.
func own(text string) string {
	for line := range strings.Lines(text) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			// One outside of what the tree shows begins with "/..".
			return path.Clean(strings.TrimSuffix(group, " (deleted)"))
		}
	}
	return "/"
}
