package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is a process of this PID namespace, which is the benchmark's own.
type process struct {
	pid     int
	command string // the arguments, separated by blanks
}

// processes returns those that belong to the sandbox or container id: by their
// arguments, or, where gVisor's have none, by their cgroup. Of drowse it takes
// the sandbox's id, of which the runtime's is an extension.
func processes(id string) ([]process, error) {
	pids, err := allPIDs()
	if err != nil {
		return nil, err
	}
	id, err = containerID(pids, id)
	if err != nil {
		return nil, err
	}
	var found []process
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended
		}
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue
		}
		if bytes.Contains(args, []byte(id)) || bytes.Contains(groups, []byte(id)) {
			found = append(found, process{pid: pid, command: strings.ReplaceAll(string(args), "\x00", " ")})
		}
	}
	return found, nil
}

// warmBundle is in the arguments of runtimes that drowse made before it knew
// which sandbox they would be.
var warmBundle = regexp.MustCompile(`/[^\x00=]*/waiting/warm-`)

// containerID returns the id by which gVisor knows the runtime of sandbox id,
// or id itself if that is how.
func containerID(pids []int, id string) (string, error) {
	for _, pid := range pids {
		args, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		at := warmBundle.Find(args)
		if err != nil || at == nil {
			continue
		}
		driver := strings.TrimSuffix(string(at), "/waiting/warm-")
		files, err := filepath.Glob(filepath.Join(driver, "bundles", id+"*", "container-id"))
		if err != nil {
			return id, err
		}
		if len(files) == 0 {
			continue // another server's
		}
		other, err := os.ReadFile(files[len(files)-1])
		if errors.Is(err, fs.ErrNotExist) {
			return id, nil // it was removed just now
		}
		return string(other), err
	}
	return id, nil
}

func allPIDs() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// goneTimeout is how long the processes of a sandbox may take to end.
const goneTimeout = 20 * time.Second

// awaitGone waits until no process of id is left.
func awaitGone(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	for {
		left, err := processes(id)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("processes of %s are left: %v: %w", id, left, err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pss returns the proportional set size of processes in bytes. gVisor runs the
// threads of a guest process as processes with common memory, which is counted
// once.
func pss(list []process) (int64, error) {
	var sum int64
	for i, p := range list {
		counted, err := sharesMemory(p, list[:i])
		if err != nil {
			return 0, err
		}
		if counted {
			continue
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.pid))
		if err != nil {
			return 0, fmt.Errorf("memory of %s: %w", p.command, err)
		}
		for line := range strings.Lines(string(data)) {
			var kib int64
			if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kib); n == 1 {
				sum += kib << 10
			}
		}
	}
	return sum, nil
}

// sharesMemory reports whether p has its address space in common with one of
// others.
func sharesMemory(p process, others []process) (bool, error) {
	const kcmpVM = 1
	for _, o := range others {
		order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(p.pid), uintptr(o.pid), kcmpVM, 0, 0, 0)
		if errno != 0 {
			return false, fmt.Errorf("compare the memory of processes %d and %d: %w", p.pid, o.pid, errno)
		}
		if order == 0 {
			return true, nil
		}
	}
	return false, nil
}

// cpuOf returns the CPU time that live processes have used.
func cpuOf(list []process) (time.Duration, error) {
	var sum time.Duration
	for _, p := range list {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.pid))
		if err != nil {
			return 0, err
		}
		for _, t := range tasks {
			data, err := os.ReadFile(t)
			if err != nil {
				continue // the thread has ended
			}
			var ns int64
			if _, err := fmt.Sscan(string(data), &ns); err != nil {
				return 0, fmt.Errorf("%s: %w", t, err)
			}
			sum += time.Duration(ns)
		}
	}
	return sum, nil
}

// clockTick is the unit of times in /proc, the same on all of Linux's common
// architectures.
const clockTick = 10 * time.Millisecond

// cpuUsed returns the CPU time used so far by everything in the PID namespace
// but this process itself, including processes that have ended and were waited
// for: the first process of the namespace waits for orphans.
func cpuUsed() (time.Duration, error) {
	pids, err := allPIDs()
	if err != nil {
		return 0, err
	}
	var ticks int64
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, rest, ok := bytes.Cut(data, []byte(") ")) // behind the name
		fields := strings.Fields(string(rest))
		if !ok || len(fields) < 15 {
			return 0, fmt.Errorf("/proc/%d/stat is %q", pid, data)
		}
		times := fields[11:15] // own in user and kernel mode, and those of waited-for children
		if pid == os.Getpid() {
			times = times[2:]
		}
		for _, t := range times {
			n, err := strconv.ParseInt(t, 10, 64)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * clockTick, nil
}

// memoryFile returns how much the guest of sandbox id has touched: the blocks
// of the file that gVisor keeps the guest's memory in.
func memoryFile(id string) (int64, error) {
	list, err := processes(id)
	if err != nil {
		return 0, err
	}
	for _, p := range list {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.pid))
		if err != nil {
			return 0, err
		}
		for _, fd := range fds {
			target, err := os.Readlink(fd)
			if err != nil || !strings.Contains(target, "memfd:runsc-memory") {
				continue
			}
			var st unix.Stat_t
			if err := unix.Stat(fd, &st); err != nil {
				return 0, err
			}
			return st.Blocks * 512, nil
		}
	}
	return 0, fmt.Errorf("no process of %s has gVisor's memory file open", id)
}

// disk is the block device that a directory is on.
type disk struct {
	dir  string
	name string // "" if the file system is on none that is known
	key  string // major and minor number, as in /proc/diskstats
}

func findDisk(dir string) (disk, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return disk{}, err
	}
	d := disk{dir: dir, key: fmt.Sprintf("%d %d", unix.Major(st.Dev), unix.Minor(st.Dev))}
	_, err := d.find(func(name string, _ int64) { d.name = name })
	return d, err
}

// written returns the bytes written to the device so far. Everything that is
// still to be written back is written first.
func (d disk) written() (int64, error) {
	f, err := os.Open(d.dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return 0, err
	}
	var sectors int64
	found, err := d.find(func(_ string, n int64) { sectors = n })
	if err == nil && !found {
		err = fmt.Errorf("%s is on no device of /proc/diskstats", d.dir)
	}
	return sectors * 512, err
}

func (d disk) find(with func(name string, sectorsWritten int64)) (bool, error) {
	data, err := os.ReadFile("/proc/diskstats")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[0]+" "+fields[1] != d.key {
			continue
		}
		n, err := strconv.ParseInt(fields[9], 10, 64)
		if err != nil {
			return false, err
		}
		with(fields[2], n)
		return true, nil
	}
	return false, nil
}

// warmMemory takes free memory and gives it back. A virtual machine may hand
// memory that has been free for seconds to its host, and the first touch then
// costs several times as much: whoever comes first would pay for all.
func warmMemory(size int64) error {
	m, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("warm memory: %w", err)
	}
	return unix.Munmap(m)
}

// warmFiles reads every file below dir, so that it is in the page cache. That
// the kernel keeps it there is not certain: the pages are counted against the
// memory limit of whoever wrote them.
func warmFiles(dir string) error {
	return eachFile(dir, func(f *os.File) error {
		_, err := io.CopyBuffer(writerOnly{io.Discard}, f, make([]byte, 1<<20))
		return err
	})
}

// coolFiles has the page cache give up every file below dir, which is on the disk.
func coolFiles(dir string) error {
	return eachFile(dir, func(f *os.File) error {
		return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	})
}

// eachFile calls do with every file below dir.
func eachFile(dir string, do func(*os.File) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an old image, which is being removed
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		return do(f)
	})
}

// writerOnly hides io.Discard's own way to read, in blocks of 8 KiB.
type writerOnly struct{ io.Writer }

// machine describes where the numbers are from.
type machine struct {
	cpu, kernel, fs, cgroups string
	cores                    int
	memory                   uint64
	goVersion, gvisor        string
	node                     string
}

func describe(ctx context.Context, drowse, dir string) (machine, error) {
	m := machine{cores: runtime.NumCPU(), cpu: cpuModel(), cgroups: "v1"}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return m, err
	}
	m.kernel = unix.ByteSliceToString(uts.Release[:])
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, err
	}
	m.memory = info.Totalram * uint64(info.Unit)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return m, err
	}
	m.fs = fileSystem(fs.Type)
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		m.cgroups = "v2"
	}
	out, err := exec.CommandContext(ctx, drowse, "version", "-o", "json").Output()
	if err != nil {
		return m, fmt.Errorf("%s version: %w", drowse, err)
	}
	var v struct{ Go, GVisor string }
	if err := json.Unmarshal(out, &v); err != nil {
		return m, fmt.Errorf("%s version: %w", drowse, err)
	}
	m.goVersion, m.gvisor = v.Go, v.GVisor
	out, err = exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return m, fmt.Errorf("node --version: %w", err)
	}
	m.node = strings.TrimSpace(string(out))
	return m, nil
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func fileSystem(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "XFS"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	}
	return fmt.Sprintf("file system %#x", magic)
}

func (m machine) String() string {
	return fmt.Sprintf("%d cores (%s), %.0f GiB of memory, %s, Linux %s, cgroup %s, %s, gVisor %s, Node %s",
		m.cores, m.cpu, float64(m.memory)/(1<<30), m.fs, m.kernel, m.cgroups, m.goVersion, m.gvisor, m.node)
}
