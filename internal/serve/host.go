package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/cgroup"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// host returns what the doctor finds about the host's limits and habits. What a
// sandbox cannot do without is required; the trial tells of the rest.
func host(ctx context.Context) []Finding {
	root := os.DirFS("/")
	return []Finding{controlGroups(ctx), descriptors(), namespaces(root), memory(), security(root, policyAllows)}
}

// controlGroups says where sandboxes are limited.
func controlGroups(ctx context.Context) Finding {
	f := Finding{Name: "cgroups", Required: true}
	tree, v2, err := cgroup.Open()
	if err != nil {
		return f.lacks(err)
	}
	if !v2 {
		f.OK, f.Detail = true, "cgroup v1, in "+path.Join(cgroup.Mount, "*", "drowse")
		return f
	}
	place, err := cgroup.Prepare(ctx, tree)
	if err != nil {
		return f.lacks(err)
	}
	f.OK = true
	f.Detail = fmt.Sprintf("cgroup v2, in %s, with %s", place.Path, strings.Join(place.Controllers, " "))
	group, most := place.LeastPIDs()
	return f.allowing(most, group, place.Dir(group))
}

// allowing adds to a finding that a cgroup, which has a directory, lets all sandboxes
// together have so many tasks; 0 for as many as they like.
func (f Finding) allowing(tasks int64, group, dir string) Finding {
	if tasks == 0 || tasks >= wantedTasks {
		return f
	}
	f.OK, f.Required = false, false
	f.Detail = fmt.Sprintf("cgroup %s lets all sandboxes together have %d tasks", group, tasks)
	f.Remedy = fmt.Sprintf("raise it: TasksMax of its unit, or --pids-limit of the container, or echo max > %s/pids.max", dir)
	return f
}

// lacks is the finding of an error.
func (f Finding) lacks(err error) Finding {
	f.OK, f.Detail = false, err.Error()
	if e, ok := errors.AsType[*errdef.Error](err); ok {
		f.Detail, f.Remedy = e.Message, e.Remedy
	}
	return f
}

// wantedTasks is how many tasks a host should allow: a sandbox takes some 100
// with nothing in it, and may ask for 32,768.
const wantedTasks = 8192

// descriptors says how many files the server can open, which it raises first.
func descriptors() Finding {
	if err := raiseDescriptors(); err != nil {
		return Finding{Name: fileLimit, Required: true}.lacks(err)
	}
	return openFiles()
}

const fileLimit = "file limit"

// openFiles says how many files this process can open.
func openFiles() Finding {
	f := Finding{Name: fileLimit, OK: true}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return f.lacks(err)
	}
	return f.opening(now.Cur)
}

// opening is the finding of a number of file descriptors.
func (f Finding) opening(descriptors uint64) Finding {
	f.OK = descriptors >= 1<<16
	f.Detail = fmt.Sprintf("%d file descriptors; a program in a sandbox may have %d", descriptors, descriptors/4)
	f.Remedy = "raise the limit (LimitNOFILE of the service, ulimit -n): each connection to a sandbox takes two, and each open file in it"
	return f
}

// namespaces says whether the host's limits of namespaces forbid sandboxes.
func namespaces(root fs.FS) Finding {
	f := Finding{Name: "namespaces", OK: true, Detail: "their limits leave room"}
	for _, kind := range []string{"user", "net", "mnt", "pid", "ipc", "uts"} {
		data, err := fs.ReadFile(root, "proc/sys/user/max_"+kind+"_namespaces")
		n, err2 := strconv.Atoi(strings.TrimSpace(string(data)))
		if err == nil && err2 == nil && n < leastNamespaces {
			f.OK, f.Required = false, n == 0
			f.Detail = fmt.Sprintf("the host allows %d %s namespaces, and a sandbox needs one or more", n, kind)
			f.Remedy = fmt.Sprintf("sysctl user.max_%s_namespaces=65536", kind)
			return f
		}
	}
	return f
}

const leastNamespaces = 256

// wantedMemory is what a host should have, in MiB: a sandbox may take 1,024
// unless it asks for another limit.
const wantedMemory = 1800

// memory says how much there is for sandboxes.
func memory() Finding {
	f := Finding{Name: "memory", OK: true}
	most, err := mostLimits()
	if err != nil {
		return f.lacks(err)
	}
	return f.giving(most)
}

// giving is the finding of the most that one sandbox may have of the host.
func (f Finding) giving(most store.Limits) Finding {
	f.OK = most.MemoryMiB >= wantedMemory
	f.Detail = fmt.Sprintf("%d MiB; a sandbox that asks for none may take %d", most.MemoryMiB, defaultLimits(most).MemoryMiB)
	f.Remedy = "create sandboxes with a smaller limit (--memory 256) and let them sleep: one that sleeps takes none"
	return f
}

// policyAllows says which of what gVisor needs SELinux forbids this process: memory
// that can be both written and executed, and to look at an io_uring. Without the
// second one a sandbox does not wake with its memory.
func policyAllows() error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("memory that can be both written and executed (execmem): %w", err)
	}
	_ = unix.Munmap(page)
	var params [120]byte // struct io_uring_params
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return nil // gVisor does without
	}
	defer unix.Close(int(ring))
	var st unix.Stat_t
	if err := unix.Fstat(int(ring), &st); err != nil {
		return fmt.Errorf("looking at its own io_uring (anon_inode getattr): %w", err)
	}
	return nil
}

// security says which policy besides the usual permissions is in force, and what
// SELinux forbids of what gVisor needs, as allows tells. The trial shows what else is
// forbidden.
func security(root fs.FS, allows func() error) Finding {
	f := Finding{Name: "security", OK: true, Detail: "no SELinux in force"}
	if data, err := fs.ReadFile(root, "sys/module/apparmor/parameters/enabled"); err == nil && strings.TrimSpace(string(data)) == "Y" {
		f.Detail += ", and no AppArmor profile confines drowse"
	}
	if data, err := fs.ReadFile(root, "sys/fs/selinux/enforce"); err == nil && strings.TrimSpace(string(data)) == "1" {
		f.Detail = "SELinux is enforcing; a denial is in the audit log: ausearch -m avc -ts recent. The binary wants the label of /usr/local/bin: restorecon -v /usr/local/bin/drowse"
		if err := allows(); err != nil {
			f.OK, f.Detail = false, "SELinux forbids what gVisor needs: "+err.Error()
			f.Remedy = "with Debian's policy: semodule -i drowse.cil, which is in packaging/ and in /usr/share/drowse; with another: allow the same to the domain of the service"
		}
	}
	if data, err := fs.ReadFile(root, "proc/self/attr/current"); err == nil {
		if label := strings.TrimRight(string(data), "\x00\n"); strings.HasSuffix(label, "(enforce)") {
			f.OK, f.Detail = false, "AppArmor confines this process: "+label
			f.Remedy = "run it unconfined, in a container with --security-opt apparmor=unconfined, if the trial fails"
		}
	}
	return f
}
