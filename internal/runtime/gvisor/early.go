package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for linkname

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/gvisor/imageserver"
)

// A runtime can run before its memory has been read. Then a process of its own, the
// image server, gives the sentry what it asks for: first what a task waits for, then
// the rest. It is the program of this server, run as nobody, without capabilities,
// with open files in the place of a directory. It is in the runtime's cgroup of
// memory, because what it fills are pages of the guest, and the kernel counts a page
// for the process that touches it first. It outlives this server, as the runtime
// does.
//
// What becomes of it is in a file of the bundle, which a server that finds the
// runtime again reads as well.

// imageServerName tells Handover what to become.
const imageServerName = "runsc-image"

// nobody is who an image server is.
const nobody = 65534

// loadingFile is in the bundle of a runtime whose memory may not be there yet. The
// image server holds a lock on it as long as it lives, and leaves a report in it.
const loadingFile = "loading"

// report is what an image server leaves. Without one it has died.
type report struct {
	Done   bool                `json:"done,omitempty"` // the sentry wanted nothing more
	Damage *imageserver.Damage `json:"damage,omitempty"`
}

// codeDamaged is the code of a restore from an image that is not what was written.
const codeDamaged = "checkpoint_damaged"

// RestoresEarly implements runtime.EarlyRestorer. Without the edits a guest can wait
// longer for its memory, in parts, than if all had been loaded first.
func (d *Driver) RestoresEarly(build string) bool {
	by, err := d.named(build)
	return edits != "" && by == nil && err == nil && forAll()
}

// forAll reports whether nobody may run this program.
var forAll = sync.OnceValue(func() bool {
	info, err := os.Stat("/proc/self/exe")
	return err == nil && info.Mode()&1 != 0
})

// startRoot is what gVisor does around the start and the restore of a container: it
// holds the container's lock, and writes down that it runs.
//
//go:linkname startRoot gvisor.dev/gvisor/runsc/container.(*Container).startImpl
func startRoot(c *container.Container, conf *config.Config, action string,
	root func(*config.Config, *specs.Spec) error,
	sub func(*specs.Spec, *config.Config, string, []*os.File, []*os.File, []*os.File, *os.File, []specutils.GoferMountConf) error) error

// setupNetwork tells a sentry its addresses and routes.
//
//go:linkname setupNetwork gvisor.dev/gvisor/runsc/sandbox.setupNetwork
func setupNetwork(conn *urpc.Client, pid int, conf *config.Config, disableIPv6, isRestore bool) error

// restoreServed is restore with an image server. It returns when the guest runs: when
// the kernel's state has been read, or with AllFirst, when its memory has been too. The
// bundle is that of the runtime now: one that has waited was made in another place.
func (l local) restoreServed(bundle, image string, what serving, late runtime.Late) error {
	sock, err := l.serveImage(bundle, image, what, late)
	if err != nil {
		return fmt.Errorf("start image server: %w", err)
	}
	stop := make(chan struct{})
	followed := make(chan error, 1)
	go func() { followed <- follow(bundle, l.endSentry, stop) }()
	err = errors.Join(startRoot(l.c, l.d.conf, "restore", func(conf *config.Config, _ *specs.Spec) error {
		conn, err := l.dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := setupNetwork(conn, l.c.SandboxPid(), conf, false, true); err != nil {
			return fmt.Errorf("set up network: %w", err)
		}
		if !what.AllFirst {
			if err := tellFirstUse(conn, image, what.Files); err != nil {
				return err
			}
		}
		opts := boot.RestoreOpts{Background: !what.AllFirst, UseCheckpointGofer: true}
		opts.FilePayload.Files = []*os.File{sock}
		if err := conn.Call(boot.ContMgrRestore, &opts, nil); err != nil {
			return fmt.Errorf("restore %s: %w", l.c.ID, err)
		}
		l.c.Sandbox.Restored = true
		return nil
	}, l.c.Sandbox.RestoreSubcontainer), sock.Close())
	close(stop)
	<-followed
	if err == nil {
		err = l.carryOn()
	}
	return damageBehind(bundle, err)
}

// damageBehind returns the damage that has made a restore fail with err, where it was
// that; else err.
func damageBehind(bundle string, err error) error {
	if err == nil || errdef.CodeOf(err) == codeDamaged {
		return err
	}
	if r, _, bad := reportIn(bundle); bad == nil && r.Damage != nil {
		return errdef.New(errdef.Unavailable, codeDamaged, "its memory image is damaged: %w", r.Damage)
	}
	return err
}

// endSentry kills the sentry.
func (l local) endSentry() {
	fd, err := unix.PidfdOpen(l.c.SandboxPid(), 0)
	if err != nil {
		return // it has exited
	}
	defer unix.Close(fd)
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// serveImage gives an image to an image server, and returns the sentry's end of its
// socket.
func (l local) serveImage(bundle, image string, what serving, late runtime.Late) (_ *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	sentrys := os.NewFile(uintptr(pair[0]), "sentry")
	files := []*os.File{os.NewFile(uintptr(pair[1]), "image server")}
	defer func() {
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			sentrys.Close()
		}
	}()
	loading, err := os.OpenFile(filepath.Join(bundle, loadingFile), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	files = append(files, loading)
	if err := unix.Flock(int(loading.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", loading.Name(), err)
	}
	for _, f := range what.Files {
		file, err := openLate(image, f.Name, late)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if late != nil {
		asks, err := bring(late)
		if err != nil {
			return nil, err
		}
		what.Late, files = true, append(files, asks)
	}
	server, err := l.d.takeImageServer()
	if err != nil {
		return nil, err
	}
	g := groupOf(bundle, l.c.ID)
	g.makeRoom(l.about(), what.AllFirst) // until it is loaded: see followLoading
	if err = g.join(server.pid()); err == nil {
		err = server.serve(what, files)
	}
	if err != nil {
		server.end()
		return nil, err
	}
	return sentrys, nil
}

// join moves a process to where the kernel counts the memory of a runtime. In
// cgroup v1 it stays out of the other hierarchies: it takes none of the tasks that
// the guest may have, and reads at the speed of the disk.
func (g group) join(pid int) error {
	for file := range g.files("memory", "memory.limit_in_bytes", "cgroup.procs") {
		return os.WriteFile(filepath.Join(filepath.Dir(file), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
	return errors.New("no cgroup counts the runtime's memory")
}

// endImageServers ends the image server and the image taker of a runtime that is about
// to be removed. They would end by themselves when the sentry does; but gVisor waits a
// while only for the cgroup to be empty.
func endImageServers(g group) {
	for _, procs := range g.files("memory", "cgroup.procs", "cgroup.procs") {
		for _, text := range strings.Fields(procs) {
			pid, err := strconv.Atoi(text)
			if err != nil {
				continue
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue // it has exited
			}
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if name := strings.TrimRight(string(line), "\x00"); name == imageServerName || name == imageTakerName {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
			unix.Close(fd)
		}
	}
}

// errImageServerDied is the end of an image server that left no report.
var errImageServerDied = errors.New("what loads its memory has died")

// reportEvery is how often follow looks for one.
const reportEvery = 20 * time.Millisecond

// follow waits until a runtime's memory has been loaded, or stop is closed. If it
// cannot be, it ends the sentry, and the error says why; if that is damage, it is an
// *imageserver.Damage.
func follow(bundle string, end func(), stop <-chan struct{}) error {
	t := time.NewTicker(reportEvery)
	defer t.Stop()
	for stopped := false; ; {
		r, over, err := reportIn(bundle)
		switch {
		case err == nil && r.Damage != nil:
			end()
			return r.Damage
		case err != nil || over && !r.Done:
			end()
			return errors.Join(errImageServerDied, err)
		case over || stopped:
			return nil
		}
		select {
		case <-stop:
			stopped = true // looks once more
		case <-t.C:
		}
	}
}

// reportIn returns what the image server of a runtime has left so far; over if there
// will be nothing more.
func reportIn(bundle string) (r report, over bool, err error) {
	f, err := os.Open(filepath.Join(bundle, loadingFile))
	if errors.Is(err, fs.ErrNotExist) {
		return report{Done: true}, true, nil
	}
	if err != nil {
		return r, false, err
	}
	defer f.Close()
	// First, because a report is written before the lock is let go.
	over = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
	data := make([]byte, 4096)
	n, _ := f.ReadAt(data, 0)
	line, _, whole := strings.Cut(string(data[:n]), "\n")
	if whole {
		err = json.Unmarshal([]byte(line), &r)
	}
	return r, over, err
}

// followLoading waits, in the background, until the memory of a runtime is there.
func (i *instance) followLoading(pid int) {
	_, err := os.Stat(filepath.Join(i.d.bundle(i.id), loadingFile))
	var sentry *os.File
	if err == nil {
		sentry, err = openProcess(pid)
	}
	if err != nil { // it was all read before, or the runtime has ended
		close(i.loaded)
		return
	}
	go func() {
		defer sentry.Close()
		err := follow(i.d.bundle(i.id), func() { killProcess(sentry) }, i.exited)
		if damage, ok := errors.AsType[*imageserver.Damage](err); ok {
			i.damage.Store(damage)
		}
		if err == nil {
			if err := i.d.bound(i.group); err != nil && i.d.log != nil {
				i.d.log.Warn("the disk rates of a runtime could not be limited", "runtime", i.id, "err", err)
			}
		}
		close(i.loaded)
		i.settleLimit()
	}()
}

// Damage implements runtime.DamageWitness.
func (i *instance) Damage() error {
	<-i.exited
	<-i.loaded
	if d := i.damage.Load(); d != nil {
		return d
	}
	return nil
}
