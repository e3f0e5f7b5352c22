package gvisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/runsc/fsgofer"
	"gvisor.dev/gvisor/runsc/fsgofer/extension"
)

// A runtime that waits has an empty root. What it is to become is not known
// when its processes are made, and what is mounted later on the host does not
// show in them. So its file server (gVisor's gofer) keeps a connection to this
// server, on which it is sent the root as a file descriptor. It waits for that,
// and makes it its own root, before it answers the sentry.
//
// The root is sent as a mount of its own that is attached nowhere: walking up
// from it leads nowhere, neither for the file server nor for the sentry, which
// gets a descriptor in turn.

// rootSocket is the name of the socket in the root of a runtime that waits.
const rootSocket = "root.sock"

// lateRootDir is where a runtime's root is before it has one.
func lateRootDir(bundle string) string { return filepath.Join(bundle, "root") }

// rootSender is the server's side.
type rootSender struct{ conn *net.UnixConn }

// readyTimeout bounds the wait for a file server whose runtime has been made.
const readyTimeout = 5 * time.Second

// listenForRoot makes dir, the empty root of a runtime that is to be made. What
// it returns waits, once that is made, for its file server.
func listenForRoot(dir string) (accept func() (*rootSender, error), cancel func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	l, err := listenIn(dir, rootSocket)
	if err != nil {
		return nil, nil, err
	}
	cancel = func() {
		l.Close()
		os.Remove(filepath.Join(dir, rootSocket)) // or it goes with the bundle
	}
	return func() (*rootSender, error) { return acceptSender(l) }, cancel, nil
}

// listenIn makes a socket in a directory whose path may have any length. The
// kernel takes 107 bytes of a socket's path, so the directory is named by its
// descriptor. The socket stays when the listener is closed: by then that number
// may mean another directory.
func listenIn(dir, name string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

func acceptSender(l *net.UnixListener) (*rootSender, error) {
	deadline := time.Now().Add(readyTimeout)
	if err := l.SetDeadline(deadline); err != nil {
		return nil, err
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	err = conn.SetReadDeadline(deadline)
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("wait for file server: %w", err)
	}
	return &rootSender{conn: conn}, nil
}

// send hands over what is mounted at rootfs, with all that is mounted below.
func (s *rootSender) send(rootfs string) error {
	tree, err := detachedCopy(rootfs)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	_, _, err = s.conn.WriteMsgUnix([]byte{0}, unix.UnixRights(tree), nil)
	return err
}

func (s *rootSender) close() { s.conn.Close() }

// detachedCopy returns the mount at path as one of its own, which ends with
// the last descriptor of it.
func detachedCopy(path string) (int, error) {
	fd, err := cloneTree(path)
	if err != nil {
		return -1, err
	}
	// What happens to the mounts it was copied from must not happen to it.
	private := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &private)
	if err == nil {
		return fd, nil
	}
	unix.Close(fd)
	if errors.Is(err, unix.ENOSYS) {
		return privateCopy(path)
	}
	return -1, fmt.Errorf("make mount %s private: %w", path, err)
}

// privateCopy is detachedCopy for kernels before 5.12, which cannot change a
// mount that is attached nowhere. A copy of private mounts is private, so the
// mounts at path become private as well. Then other mount namespaces that have
// copies of them keep these until they unmount them.
func privateCopy(path string) (int, error) {
	if err := unix.Mount("", path, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return -1, fmt.Errorf("make mount %s private: %w", path, err)
	}
	return cloneTree(path)
}

func cloneTree(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("copy mount %s: %w", path, err)
	}
	return fd, nil
}

// lateRoot is the file server's side. It implements extension.Extension, and
// is in its process only.
type lateRoot struct {
	conn   *unet.Socket // nil unless the runtime's root comes late
	config *fsgofer.Config
	lock   []bpf.Instruction // of the filter that forbids what was needed to take it
}

// Name implements extension.Extension.
func (*lateRoot) Name() string { return "late root" }

// PrepareGofer is called while the file server is set up: its mounts are in
// place, it has not entered its root yet, and it may still call what it likes.
func (r *lateRoot) PrepareGofer(ctx extension.GoferPrepareContext) (res extension.GoferPrepareResult, err error) {
	if ctx.Spec.Root.Path != lateRootDir(ctx.BundleDir) {
		return res, nil
	}
	if r.config, err = fileServerConfig(); err != nil {
		return res, err
	}
	program := seccomp.Program{
		RuleSets: []seccomp.RuleSet{{
			Rules: seccomp.MakeSyscallRules(map[uintptr]seccomp.SyscallRule{
				unix.SYS_CHROOT: seccomp.MatchAll{}, unix.SYS_FCHDIR: seccomp.MatchAll{}, unix.SYS_SECCOMP: seccomp.MatchAll{},
			}),
			Action: seccomp.KillProcess,
		}},
		Options: seccomp.ProgramOptions{DefaultAction: seccomp.Allow, BadArchAction: seccomp.KillProcess},
	}
	if r.lock, _, err = program.Build(); err != nil {
		return res, err
	}
	r.conn, err = unet.Connect("/root/"+rootSocket, false)
	return res, err
}

// fileServerConfig returns what gVisor would give its own file server.
func fileServerConfig() (*fsgofer.Config, error) {
	conf, err := newConfig("")
	if err != nil {
		return nil, err
	}
	return &fsgofer.Config{
		HostUDS: conf.GetHostUDS(), HostFifo: conf.HostFifo, CharDevicePolicy: conf.CharacterDevicePolicy,
		DonateMountPointFD: conf.DirectFS,
		RUID:               unix.Getuid(), EUID: unix.Geteuid(), RGID: unix.Getgid(), EGID: unix.Getegid(),
	}, nil
}

// SeccompRules implements extension.Extension: what it takes to enter the
// root, and then to forbid just that.
func (r *lateRoot) SeccompRules() seccomp.SyscallRules {
	if r.conn == nil {
		return seccomp.NewSyscallRules()
	}
	return seccomp.MakeSyscallRules(map[uintptr]seccomp.SyscallRule{
		unix.SYS_CHROOT: seccomp.MatchAll{},
		unix.SYS_FCHDIR: seccomp.MatchAll{},
		// Asked for before every filter.
		unix.SYS_PRCTL: seccomp.PerArg{seccomp.EqualTo(unix.PR_SET_NO_NEW_PRIVS), seccomp.EqualTo(1)},
		unix.SYS_SECCOMP: seccomp.PerArg{
			seccomp.EqualTo(unix.SECCOMP_SET_MODE_FILTER), seccomp.EqualTo(unix.SECCOMP_FILTER_FLAG_TSYNC),
		},
	})
}

// TryHandleMount implements extension.Extension. The file server is ready, and
// serves nothing until it has its root. It serves that with gVisor's own
// connection: one around it, which could wait for the sentry to ask, is not
// what gVisor takes it for when a directory or a socket is opened.
func (r *lateRoot) TryHandleMount(_ *specs.Spec, mount *specs.Mount, _ string, readonly bool) (lisafs.ConnectionImpl, lisafs.ConnectionOpts, error) {
	if r.conn == nil || mount != nil {
		return nil, lisafs.ConnectionOpts{}, nil
	}
	if _, err := r.conn.Write([]byte{0}); err != nil {
		return nil, lisafs.ConnectionOpts{}, err
	}
	if err := r.enter(); err != nil {
		return nil, lisafs.ConnectionOpts{}, err
	}
	return fsgofer.NewConnectionImpl(r.config), fsgofer.ConnectionOpts(readonly), nil
}

// enter waits for the root, makes it the root of this process, and gives up
// the ability to do so again.
func (r *lateRoot) enter() error {
	tree, err := receiveRoot(r.conn)
	r.conn.Close()
	if err != nil {
		return err
	}
	// The descriptor stays open: the mount, attached nowhere, ends with it.
	if err := unix.Fchdir(tree); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return seccomp.SetFilter(r.lock)
}

func receiveRoot(conn *unet.Socket) (int, error) {
	r := conn.Reader(true)
	r.EnableFDs(1)
	if _, err := r.ReadVec([][]byte{make([]byte, 1)}); err != nil {
		return -1, err
	}
	fds, err := r.ExtractFDs()
	if err != nil {
		return -1, err
	}
	if len(fds) != 1 {
		return -1, unix.EBADMSG
	}
	return fds[0], nil
}
