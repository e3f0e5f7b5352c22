package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// Unlinked implements runtime.DiskMeter. gVisor holds open on the host what is
// open inside.
func (i *instance) Unlinked() (int64, error) {
	pids, err := processesOf(i.group)
	if err != nil {
		return 0, fmt.Errorf("open files of runtime %s: %w", i.id, err)
	}
	var bytes int64
	seen := map[uint64]bool{}
	for _, pid := range pids {
		for _, st := range unlinkedBy(pid) {
			if !seen[st.Ino] {
				seen[st.Ino] = true
				bytes += st.Blocks * 512
			}
		}
	}
	return bytes, nil
}

// processesOf returns the processes in a runtime's cgroup.
func processesOf(g group) ([]int, error) {
	for _, procs := range g.files("memory", "cgroup.procs", "cgroup.procs") {
		var pids []int
		for line := range strings.Lines(procs) {
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
		return pids, nil
	}
	return nil, errors.New("no cgroup lists its processes")
}

// unlinkedBy returns the files without a name, of a sandbox's root, that a
// process holds open; none if it has ended.
func unlinkedBy(pid int) (files []unix.Stat_t) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil
	}
	defer dir.Close()
	fds, _ := dir.Readdirnames(-1)
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), fd, &st, 0) != nil || st.Nlink > 0 {
			continue // nearly all have a name, and cost no more than this
		}
		if st, ok := regularInRoot(filepath.Join(dir.Name(), fd)); ok && st.Nlink == 0 {
			files = append(files, st)
		}
	}
	return files
}

// TellDisk implements runtime.DiskTeller. A runtime of another build is not told: df
// shows the host's disk there.
func (i *instance) TellDisk(ctx context.Context, before runtime.Disk, asked func(context.Context) runtime.Disk) error {
	i.mu.Lock()
	l, ok := i.c.(local)
	i.mu.Unlock()
	if !ok || edits == "" {
		return nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	questions := os.NewFile(uintptr(fd), "eventfd")
	defer questions.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-i.exited:
		case <-ctx.Done():
		}
		cancel()
		_ = questions.Close()
	}()
	err = l.tellDisk(ctx, before, questions)
	for err == nil {
		if _, closed := questions.Read(make([]byte, 8)); closed != nil {
			break
		}
		err = l.tellDisk(ctx, asked(ctx))
	}
	if err != nil {
		// A runtime that ends breaks the call off a moment before it is known to have ended.
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("tell runtime %s of its disk: %w", i.id, brief(err))
	}
	return nil
}

// tellDisk has statfs inside say what there is, and ask where it says so again. There
// is nothing to say without a limit, nor without gVisor's edits.
func (l local) tellDisk(ctx context.Context, d runtime.Disk, ask ...*os.File) error {
	if d == (runtime.Disk{}) || edits == "" {
		return nil
	}
	conn, err := l.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	return conn.Call("Usage.TellDisk", &diskOpts{urpc.FilePayload{Files: ask}, told{
		Path: "/", Bytes: d.Limit.Bytes, Files: d.Limit.Files, TakenBytes: max(d.Taken.Bytes, 0), TakenFiles: max(d.Taken.Files, 0),
	}}, nil)
}

// diskOpts are control.DiskOpts of the edited gVisor.
type diskOpts struct {
	urpc.FilePayload
	Disk told
}

type told struct {
	Path                                 string
	Bytes, Files, TakenBytes, TakenFiles int64
}
