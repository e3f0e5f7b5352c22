package serve

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
)

// kernelCall is a system call, or a form of one, that not every kernel in use
// has. docs/kernels.md has them all, with what happens without each.
type kernelCall struct {
	name     string
	since    string // the version of Linux
	required bool   // no sandbox runs without it
	try      func() error
}

// leastKernel is the oldest kernel that has all that is required.
const leastKernel = "5.10"

var kernelCalls = []kernelCall{
	{"open_tree", "5.2", true, func() error {
		return closeFD(unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC))
	}},
	{"openat2", "5.6", true, func() error {
		return closeFD(unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}))
	}},
	{"pidfd_open(PIDFD_NONBLOCK)", leastKernel, true, func() error {
		return closeFD(unix.PidfdOpen(os.Getpid(), unix.PIDFD_NONBLOCK))
	}},
	{"mount_setattr", "5.12", false, func() error {
		// Changes nothing; EBADF is the answer of a kernel that has it.
		if err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); !errors.Is(err, unix.EBADF) {
			return err
		}
		return nil
	}},
}

func closeFD(fd int, err error) error {
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// missingCalls returns the calls that do not work here.
func missingCalls(required bool) (missing []string) {
	for _, c := range kernelCalls {
		if c.required != required {
			continue
		}
		if err := c.try(); err != nil {
			missing = append(missing, fmt.Sprintf("%s (Linux %s: %v)", c.name, c.since, err))
		}
	}
	return missing
}

// needKernel refuses a kernel that lacks what is required.
func needKernel() error {
	missing := missingCalls(true)
	if len(missing) == 0 {
		return nil
	}
	return errdef.New(errdef.Unsupported, "kernel_too_old", "this kernel lacks, or forbids this process, %s", strings.Join(missing, ", ")).
		WithRemedy("use Linux %s or later; in a container, allow it (--privileged)", leastKernel)
}

// calls says which younger system calls the kernel has.
func calls() Finding {
	f := Finding{Name: "system calls", Required: true, OK: true, Detail: "all that are used"}
	if err := needKernel(); err != nil {
		f.OK, f.Detail = false, err.Error()
		if e, ok := errors.AsType[*errdef.Error](err); ok {
			f.Detail, f.Remedy = e.Message, e.Remedy
		}
		return f
	}
	if missing := missingCalls(false); len(missing) > 0 {
		f.Detail = "all that are required; without " + strings.Join(missing, ", ")
	}
	return f
}

// overlays says how overlays are mounted, and whether layers can be kept where
// the state directory is or would be made.
func overlays(stateDir string) Finding {
	f := Finding{Name: "overlayfs", Required: true, OK: true}
	mounting, parted, err := tryOverlays(stateDir)
	if err != nil {
		f.OK, f.Detail = false, err.Error()
		if e, ok := errors.AsType[*errdef.Error](err); ok {
			f.Detail, f.Remedy = e.Message, e.Remedy
		}
		return f
	}
	f.Detail = "mounts layers " + mounting.Way + ", with " + strings.Join(mounting.Options, " ")
	if len(mounting.Missing) > 0 {
		f.Detail += "; the kernel does not know " + strings.Join(mounting.Missing, " ")
	}
	if parted != "" {
		f.Detail += "; after a sleep, a file in " + parted + " that has several names (hard links) is parted when it is written through one of them"
	}
	return f
}

// tryOverlays also returns where the kernel cannot keep together the names of a file.
func tryOverlays(stateDir string) (m layer.Mounting, parted string, err error) {
	dir, err := realDir(stateDir)
	if err != nil {
		return m, "", err
	}
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	trial, err := os.MkdirTemp(dir, ".drowse-doctor-")
	if err != nil {
		return m, "", errdef.New(errdef.Invalid, "state_dir", "cannot write to %s: %w", dir, err).
			WithRemedy("choose another with --state-dir")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(trial)) }()
	if m, err = layer.At(trial).Probe(); err != nil {
		return m, "", err
	}
	joined, err := m.JoinsNames()
	if err == nil && !joined {
		return m, "any directory", nil
	}
	if err == nil {
		joined, err = m.JoinsNames("/usr")
	}
	if err == nil && !joined {
		parted = "/usr"
	}
	return m, parted, err
}
