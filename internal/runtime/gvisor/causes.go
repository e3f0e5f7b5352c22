package gvisor

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// A host can lack something that every runtime needs, and that no retry brings.
// Errors say so where it is known. The text of an error is looked at as well,
// because what gVisor's tool fails of comes as text.

// explainNetwork returns why a network could not be made.
func explainNetwork(err error) error {
	if _, ok := errors.AsType[*errdef.Error](err); ok {
		return err // it says so itself
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "veth") && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV)):
		return errdef.New(errdef.Unfit, "no_veth", "the kernel has no veth interfaces (%w)", err).
			WithRemedy("load the module: modprobe veth (in a container: on its host)")
	case strings.Contains(text, "unshare") && errors.Is(err, unix.ENOSPC):
		return namespacesExhausted("the host's limit of network namespaces is reached", err, "raise it: sysctl user.max_net_namespaces=65536")
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return notPrivileged(err)
	}
	return fmt.Errorf("make network: %w", err)
}

// explainCreate returns why gVisor's tool could not make a runtime.
func explainCreate(err error) error {
	if _, ok := errors.AsType[*errdef.Error](err); ok {
		return err // it says so itself
	}
	text := err.Error()
	starting := strings.Contains(text, "fork/exec")
	has := func(errno unix.Errno) bool { return strings.Contains(text, errno.Error()) }
	switch {
	case starting && has(unix.ENOSPC) && sysctl("user/max_user_namespaces") < fewNamespaces:
		return namespacesExhausted("the host allows no user namespaces", short(err), "allow them: sysctl user.max_user_namespaces=65536")
	case starting && has(unix.ENOSPC):
		return namespacesExhausted("one of the host's limits of namespaces is reached", short(err),
			"raise them: sysctl user.max_user_namespaces, user.max_pid_namespaces, user.max_mnt_namespaces, user.max_ipc_namespaces and user.max_uts_namespaces")
	case starting && has(unix.EAGAIN):
		return errdef.New(errdef.Unfit, "processes_exhausted", "the host starts no more processes (%w)", short(err)).
			WithRemedy("raise the limit that is reached: ulimit -u, TasksMax of the service, sysctl kernel.pid_max or kernel.threads-max")
	case has(unix.EMFILE), has(unix.ENFILE):
		return errdef.New(errdef.Unfit, "descriptors_exhausted", "there are no more file descriptors (%w)", short(err)).
			WithRemedy("raise the limit: LimitNOFILE of the service, ulimit -n, or sysctl fs.file-max")
	case starting && has(unix.EPERM):
		return notPrivileged(short(err))
	case needsLibraries("/proc/self/exe"):
		return errdef.New(errdef.Unfit, "binary_not_static", "this drowse was built to load libraries of the host, and gVisor starts it where there are none (%w)", short(err)).
			WithRemedy("build it with make build, or with CGO_ENABLED=0")
	}
	return fmt.Errorf("create: %w", err)
}

// needsLibraries reports whether a program is linked dynamically.
func needsLibraries(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return f.Section(".interp") != nil
}

// fewNamespaces is a limit that is meant to forbid them.
const fewNamespaces = 64

func namespacesExhausted(what string, err error, remedy string) *errdef.Error {
	return errdef.New(errdef.Unfit, "namespaces_exhausted", "%s (%w)", what, err).WithRemedy("%s", remedy)
}

func notPrivileged(err error) *errdef.Error {
	return errdef.New(errdef.Unfit, "not_privileged", "this process may not make the namespaces of a sandbox (%w)", err).
		WithRemedy("run drowse as root on the host, or in a container with --privileged")
}

// sysctl returns a number below /proc/sys, and a large one if it is not there.
func sysctl(name string) int64 {
	data, err := os.ReadFile("/proc/sys/" + name)
	n, err2 := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if errors.Join(err, err2) != nil {
		return 1 << 32
	}
	return n
}

// short returns err with the end of its text, where the reason is.
func short(err error) error {
	text := err.Error()
	if len(text) <= maxError {
		return err
	}
	return errors.New("… " + strings.ToValidUTF8(text[len(text)-maxError:], ""))
}
