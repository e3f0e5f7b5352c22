// Package gvisor runs sandboxes in gVisor, linked into this binary: a kernel
// in user space between the guest and the host, without KVM, that can capture
// and restore whole process trees.
//
// A program that uses this package must call [Handover] first thing in main:
// gVisor starts its own processes by executing the program again.
package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"
	gvlog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/fsgofer/extension"

	"github.com/drowse-dev/drowse/internal/cgroup"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
	"github.com/drowse-dev/drowse/internal/runtime/netns"
	"github.com/drowse-dev/drowse/internal/trace"
)

// Handover becomes gVisor's own tool if this process was started as such, and
// does not return then.
func Handover() {
	if os.Args[0] == "/proc/self/exe" || strings.HasPrefix(filepath.Base(os.Args[0]), "runsc") {
		goruntime.UnlockOSThread() // main is on the first one for the server's sake
		if os.Args[0] == imageServerName {
			os.Exit(beImageServer(func(f *os.File) io.ReaderAt { return f }))
		}
		if os.Args[0] == imageTakerName {
			os.Exit(beImageTaker())
		}
		extension.Register(&lateRoot{})
		registerFilters()
		usePlace()
		if os.Args[0] == peerName {
			os.Exit(bePeer())
		}
		runTool()
		os.Exit(0)
	}
}

// Driver implements runtime.Driver.
type Driver struct {
	dir   string // of this driver's state
	root  string // of gVisor's own state
	conf  *config.Config
	place *cgroup.Place // of the runtimes' cgroups; nil in cgroup v1
	rates diskRates
	log   *slog.Logger
	pool  *pool
	*peers
}

// Options are what a driver is told.
type Options struct {
	Warm      Warm
	DiskRates DiskRates
	// Log is told of what goes wrong without keeping a runtime from its work:
	// runtimes that could not be made ahead, without which starts merely take
	// longer. It may be nil for a driver that keeps none waiting.
	Log *slog.Logger
}

// New returns a driver that keeps its state below dir, the programs that memory
// images need in kept, and runtimes waiting as o.Warm says until ctx ends or it is
// closed.
func New(ctx context.Context, dir string, kept *builds.Store, o Options) (*Driver, error) {
	d, err := at(dir)
	if err != nil {
		return nil, err
	}
	d.kept = kept
	tree, v2, err := cgroup.Open()
	if err != nil {
		return nil, err
	}
	if v2 {
		if d.place, err = cgroup.Prepare(ctx, tree); err != nil {
			return nil, err
		}
		d.env = append(d.env, placeVariable+"="+d.place.Dir(d.place.Path))
	}
	for _, p := range []string{d.root, d.bundles(), d.waiting()} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			return nil, fmt.Errorf("gvisor driver: %w", err)
		}
	}
	d.log = o.Log
	if err := d.findDisks(o.DiskRates); err != nil {
		return nil, err
	}
	// Those of a server that was killed. Their connections to it are gone.
	if err := d.removeWaiting(); err != nil {
		return nil, fmt.Errorf("gvisor driver: %w", err)
	}
	if old, err := kept.Names(); err == nil && len(old) > 0 {
		go func() { _, _ = builds.Self() }() // the first wake will ask; it ends soon
	}
	d.pool = newPool(ctx, d, o.Warm)
	return d, nil
}

// at returns a driver that has changed nothing yet, and has no pool.
func at(dir string) (*Driver, error) {
	d := &Driver{dir: dir, root: filepath.Join(dir, "runsc"), peers: &peers{
		dir: dir, env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, kept: builds.At(""), known: map[string]peer{},
	}}
	conf, err := newConfig(d.root)
	if err != nil {
		return nil, fmt.Errorf("gvisor driver: %w", err)
	}
	d.conf = conf
	gvlog.SetTarget(discard{})
	return d, nil
}

// A bundle is the directory of everything there is of one runtime: what gVisor
// was told about it, what pins its network namespace, and marks. Those of
// runtimes that wait to become somebody's have a place of their own.
func (d *Driver) bundles() string         { return filepath.Join(d.dir, "bundles") }
func (d *Driver) bundle(id string) string { return filepath.Join(d.bundles(), id) }
func (d *Driver) waiting() string         { return filepath.Join(d.dir, "waiting") }

// Dir returns the directory of a runtime.
func (d *Driver) Dir(id string) string { return d.bundle(id) }

func netnsOf(bundle string) *netns.Namespace {
	return &netns.Namespace{Path: filepath.Join(bundle, "netns")}
}

// containerIDFile is in the bundles of runtimes that gVisor knows by another
// id, because they were made before they got theirs.
const containerIDFile = "container-id"

// containerID returns the id by which gVisor knows a runtime.
func (d *Driver) containerID(id string) (string, error) {
	cid, err := os.ReadFile(filepath.Join(d.bundle(id), containerIDFile))
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil
	}
	return string(cid), err
}

// discard drops gVisor's log: what matters comes back as errors.
type discard struct{}

// Emit implements gvlog.Emitter.
func (discard) Emit(int, gvlog.Level, time.Time, string, ...any) {}

// newConfig sets what differs from gVisor's defaults.
func newConfig(root string) (*config.Config, error) {
	flags := flag.NewFlagSet("runsc", flag.ContinueOnError)
	config.RegisterFlags(flags)
	for name, value := range map[string]string{
		"root":               root,
		"platform":           "systrap",
		"network":            "sandbox",
		"overlay2":           "none",      // the writable layer is ours, outside the memory image
		"file-access":        "exclusive", // nobody else changes the files of a running sandbox
		"file-access-mounts": "shared",    // but for those on volumes
		"allow-suid":         "true",      // sudo
		"host-settings":      "ignore",
	} {
		if err := flags.Set(name, value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	return config.NewFromFlags(flags)
}

// Capabilities implements runtime.Driver.
func (d *Driver) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Isolation: "gvisor", MemoryPause: true, Version: imageVersion(), Edits: edits, CPU: processor()}
}

// processor returns the features of the processor as gVisor compares them when
// it restores.
var processor = sync.OnceValue(func() []string {
	cpuid.Initialize()
	return strings.Fields(cpuid.HostFeatureSet().FlagString())
})

// patched names what a build has changed in gVisor, so that its memory images are
// not taken for those of others. The linker sets it:
// -ldflags="-X github.com/drowse-dev/drowse/internal/runtime/gvisor.patched=name".
var patched string

// imageVersion names what writes and reads the memory images of this build.
func imageVersion() string { return "gvisor " + Version() }

// Version returns the version of the gVisor linked in.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if patched != "" {
		return moduleVersion(info) + "+" + patched
	}
	return moduleVersion(info)
}

// moduleVersion returns the version of gVisor's module in a build.
func moduleVersion(info *debug.BuildInfo) string {
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			return m.Version
		}
	}
	return "unknown"
}

// Start implements runtime.Driver.
func (d *Driver) Start(ctx context.Context, spec runtime.Spec) (runtime.Instance, error) {
	spec.Build = ""
	return d.launch(ctx, spec, func(c control) error {
		if err := d.bound(groupOf(d.bundle(spec.ID), c.about().id)); err != nil {
			return err
		}
		return c.start()
	})
}

// Restore implements runtime.Driver.
func (d *Driver) Restore(ctx context.Context, spec runtime.Spec, image string) (runtime.Instance, error) {
	return d.launch(ctx, spec, func(c control) error {
		if spec.Unread != nil {
			if l, ok := c.(local); ok && forAll() {
				return l.restoreServed(d.bundle(spec.ID), image, serving{Files: spec.Unread, AllFirst: spec.AllFirst}, spec.Late) // and the disks later: see followLoading
			}
			if !spec.AllFirst {
				return errors.New("internal error: another build restores only what has been verified")
			}
			whole, err := d.assemble(spec.ID, image, spec.Unread)
			if err != nil {
				return err
			}
			defer os.RemoveAll(whole)
			image = whole
		}
		if err := c.restore(image); err != nil {
			return err
		}
		// Afterwards, so that the image is read at the speed of the disk.
		return d.bound(groupOf(d.bundle(spec.ID), c.about().id))
	})
}

// launch sets a runtime going that waits, or a new one. On error nothing of it
// is left.
func (d *Driver) launch(ctx context.Context, spec runtime.Spec, run func(control) error) (_ runtime.Instance, err error) {
	by, err := d.named(spec.Build)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	d.pool.begin(spec)
	defer d.pool.end()
	out := netns.NewOutlet(netnsOf(d.bundle(spec.ID)))
	defer func() {
		if err != nil {
			err = errors.Join(damageBehind(d.bundle(spec.ID), err), out.Close())
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
			defer cancel()
			err = errors.Join(err, d.Remove(clean, spec.ID))
		}
	}()
	bundle := d.bundle(spec.ID)
	boot := func(c control) error {
		// Before the guest runs, which may connect at once.
		if err := out.Set(spec.Network); err != nil {
			return fmt.Errorf("open network: %w", err)
		}
		if err := groupOf(bundle, c.about().id).weigh(weight{sharers: spec.Sharers}); err != nil {
			return err
		}
		if l, ok := c.(local); ok {
			if err := l.tellDisk(ctx, spec.Disk); err != nil {
				return fmt.Errorf("tell it of its disk: %w", err)
			}
		}
		defer trace.Start(ctx, "run the guest")()
		return run(c)
	}
	c, err := d.launchWaiting(ctx, spec, by, boot)
	if c == nil && err == nil {
		if err = out.Reset(); err == nil {
			c, err = d.make(ctx, bundle, spec, by)
		}
		if err == nil {
			err = boot(c)
		}
	}
	if err == nil {
		err = failpoint.Fail(failpoint.Started)
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	defer trace.Start(ctx, "connect to it")()
	if err := netnsOf(bundle).Attach(); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", spec.ID, err)
	}
	if err := failpoint.Fail(failpoint.NetworkAttached); err != nil {
		return nil, err
	}
	if l, ok := c.(local); ok {
		if err := d.keepState(bundle, l.c.ID); err != nil {
			return nil, fmt.Errorf("start %s: %w", spec.ID, err)
		}
	}
	if err := failpoint.Fail(failpoint.StateKept); err != nil {
		return nil, err
	}
	i, err := newInstance(d, spec.ID, c, by, out)
	if err != nil {
		return nil, err
	}
	i.weight.sharers = spec.Sharers
	return i, nil
}

// launchWaiting sets a runtime going that waits. It returns nil if there is
// none, as there never is of another build, or if that did not work: a new one
// may, and says why not if not.
func (d *Driver) launchWaiting(ctx context.Context, spec runtime.Spec, by *peer, run func(control) error) (control, error) {
	if by != nil {
		return nil, nil
	}
	taken := trace.Start(ctx, "take a runtime that waits")
	c, err := d.pool.take(spec)
	taken()
	if c == nil || err != nil {
		return nil, err
	}
	if err := run(local{d, c}); err != nil {
		if errdef.CodeOf(err) == codeDamaged {
			return nil, err
		}
		d.pool.log.Warn("a runtime that waited did not start", "runtime", spec.ID, "err", brief(err))
		return nil, d.Remove(ctx, spec.ID)
	}
	return local{d, c}, nil
}

// make makes the network and the processes of a runtime, these by the program of
// another build if there is one to.
func (d *Driver) make(ctx context.Context, bundle string, spec runtime.Spec, by *peer) (control, error) {
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		return nil, err
	}
	ns := netnsOf(bundle)
	if err := failpoint.Fail(failpoint.NetworkMake); err != nil {
		return nil, err
	}
	networked := trace.Start(ctx, "make the network")
	err := ns.Create()
	networked()
	if err != nil {
		return nil, explainNetwork(err)
	}
	if err := failpoint.Fail(failpoint.NetworkMade); err != nil {
		return nil, err
	}
	defer trace.Start(ctx, "make the processes")()
	if by != nil {
		err = d.createBy(ctx, by.program, bundle, spec, ns)
	} else {
		err = d.create(ctx, bundle, spec, ns)
	}
	if err != nil {
		return nil, explainCreate(err)
	}
	if err := failpoint.Fail(failpoint.Created); err != nil {
		return nil, err
	}
	return d.control(bundle, spec.ID, by)
}

// control returns what speaks with a runtime of a build; nil is this one.
func (d *Driver) control(bundle, cid string, by *peer) (control, error) {
	if by != nil && !by.mute && by.version != imageVersion() {
		return d.reach(by.program, bundle, cid)
	}
	c, err := d.load(bundle, cid)
	return local{d, c}, err
}

// create makes the processes of a runtime by running gVisor's tool in a
// process of its own: inside the server it would move the whole server into
// the sandbox's cgroup for a moment (cgroup v1), and give the server's
// standard streams to the guest.
func (d *Driver) create(ctx context.Context, bundle string, spec runtime.Spec, ns *netns.Namespace) error {
	if err := d.describe(bundle, spec, ns); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", d.createArgs(bundle, spec.ID)...)
	cmd.Args[0] = "runsc"
	cmd.Env = d.env
	return d.runCreate(ctx, cmd, bundle)
}

// createArgs is the command line of gVisor's tool that makes a runtime.
func (d *Driver) createArgs(bundle, id string) []string {
	return append(d.conf.ToFlags(), "--panic-log="+filepath.Join(bundle, sentryLog), "create", "--bundle", bundle, id)
}

// runCreate runs a tool that makes a runtime.
func (d *Driver) runCreate(ctx context.Context, cmd *exec.Cmd, bundle string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// Not ended with ctx: half way through it would leave processes that it has
	// not written down yet. It is short. It ends with the server, whose successor would otherwise sweep away what
	// it is still making. The signal is sent when this thread ends.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	// A file, not a pipe: the processes it leaves behind inherit it, and
	// waiting for a pipe would wait for them.
	stderr, err := os.OpenFile(filepath.Join(bundle, createLog), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(stderr.Name())
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
	}
	return nil
}

// describe writes down what a runtime is to be, and makes its cgroup.
func (d *Driver) describe(bundle string, spec runtime.Spec, ns *netns.Namespace) error {
	oci := ociSpec(spec, ns.Path, d.cgroupsPath(spec.ID))
	if err := d.makeGroup(bundle, spec.ID, oci.Linux.Resources); err != nil {
		return err
	}
	data, err := json.Marshal(oci)
	if err != nil {
		return err
	}
	return os.WriteFile(configFile(bundle), data, 0o600)
}

// load returns what gVisor knows as cid.
func (d *Driver) load(bundle, cid string) (*container.Container, error) {
	full := container.FullID{SandboxID: cid, ContainerID: cid}
	// Looked at first, because loading what is not there leaves a lock file.
	if _, err := os.Stat(d.stateFile(cid, "state")); errors.Is(err, fs.ErrNotExist) {
		return nil, errdef.New(errdef.NotFound, "runtime_not_found", "runtime %s does not exist", cid)
	}
	c, err := container.Load(d.root, full, container.LoadOpts{Exact: true, SkipCheck: true})
	if err != nil && d.mendState(bundle, cid) {
		c, err = container.Load(d.root, full, container.LoadOpts{Exact: true, SkipCheck: true})
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdef.New(errdef.NotFound, "runtime_not_found", "runtime %s does not exist", cid)
	}
	if err != nil {
		return nil, fmt.Errorf("load runtime %s: %w", cid, err)
	}
	return c, nil
}

// stateFile names what gVisor keeps of a runtime: "state" or "lock".
func (d *Driver) stateFile(cid, kind string) string {
	return filepath.Join(d.root, cid+"_sandbox:"+cid+"."+kind)
}

// keepState copies what gVisor has written down of a running runtime. It
// writes in place, so that a process killed meanwhile leaves a torn file.
func (d *Driver) keepState(bundle, cid string) error {
	data, err := os.ReadFile(d.stateFile(cid, "state"))
	if err != nil {
		return err
	}
	copied := keptState(bundle)
	if err := os.WriteFile(copied+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(copied+".new", copied)
}

func keptState(bundle string) string { return filepath.Join(bundle, "state.json") }

// mendState puts the copy in the place of a file that cannot be read.
func (d *Driver) mendState(bundle, cid string) bool {
	data, err := os.ReadFile(keptState(bundle))
	return err == nil && os.WriteFile(d.stateFile(cid, "state"), data, 0o600) == nil
}

// Adopt implements runtime.Driver.
func (d *Driver) Adopt(_ context.Context, id string) (runtime.Instance, error) {
	if err := failpoint.Fail(failpoint.Adopt); err != nil {
		return nil, err
	}
	// Of thousands of sandboxes that sleep, none has a bundle: a start looks no further.
	if _, err := os.Lstat(d.bundle(id)); errors.Is(err, fs.ErrNotExist) {
		return nil, notRunning(id)
	}
	cid, err := d.containerID(id)
	if err != nil {
		return nil, fmt.Errorf("adopt runtime %s: %w", id, err)
	}
	by, err := d.running(groupOf(d.bundle(id), cid))
	if err != nil {
		return nil, fmt.Errorf("adopt runtime %s: %w", id, err)
	}
	c, err := d.control(d.bundle(id), cid, by)
	if err != nil {
		return nil, err
	}
	if !c.about().running {
		return nil, notRunning(id)
	}
	i, err := newInstance(d, id, c, by, netns.NewOutlet(netnsOf(d.bundle(id))))
	if err != nil {
		return nil, err
	}
	i.adoptRates()
	return i, nil
}

func notRunning(id string) error {
	return errdef.New(errdef.NotFound, "runtime_not_found", "runtime %s is not running", id)
}

// List implements runtime.Driver. Runtimes that wait are not among them.
func (d *Driver) List(context.Context) ([]string, error) {
	ids, err := names(d.bundles())
	if err != nil {
		return nil, fmt.Errorf("list runtimes: %w", err)
	}
	return ids, nil
}

func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	list := make([]string, len(entries))
	for i, e := range entries {
		list[i] = e.Name()
	}
	return list, nil
}

// removeTimeout bounds the clean-up after a failed start.
const removeTimeout = 20 * time.Second

// Remove implements runtime.Driver.
func (d *Driver) Remove(_ context.Context, id string) error {
	cid, err := d.containerID(id)
	if err == nil {
		err = d.remove(d.bundle(id), cid)
	}
	if err != nil {
		return fmt.Errorf("remove runtime %s: %w", id, err)
	}
	return nil
}

// remove destroys what gVisor knows as cid, and its bundle.
func (d *Driver) remove(bundle, cid string) error {
	if err := failpoint.Fail(failpoint.Destroy); err != nil {
		return err
	}
	// No process can be killed while it waits for a write that is held back.
	_ = groupOf(bundle, cid).liftDisks()
	endImageServers(groupOf(bundle, cid))
	destroy := func() error {
		c, err := d.load(bundle, cid)
		if err != nil {
			return nil // it is gone, or half written by a process that was killed
		}
		if err := c.Destroy(); err != nil {
			return fmt.Errorf("destroy: %w", err)
		}
		return nil
	}
	err := destroy()
	if err := failpoint.Fail(failpoint.Destroyed); err != nil {
		return err
	}
	// What gVisor has not written down, because whoever made it was killed, is
	// still in the runtime's cgroup.
	left := groupOf(bundle, cid).remove()
	if err != nil && left == nil { // gVisor does not wait for who ends slowly, and we have
		err = destroy()
	}
	errs := []error{err, left, netnsOf(bundle).Remove()}
	// Whatever another gVisor calls them: no id is part of another's.
	files, err := filepath.Glob(filepath.Join(d.root, "*"+cid+"*"))
	errs = append(errs, err)
	for _, path := range files {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := failpoint.Fail(failpoint.Unpinned); err != nil {
		return err
	}
	// Last: while the bundle is there, the runtime is known.
	return os.RemoveAll(bundle)
}

// Close implements runtime.Driver. Runtimes that wait end. The network
// namespace that gVisor pins for its file servers is let go when no runtime is
// left that could use it.
func (d *Driver) Close() error {
	if err := d.pool.close(); err != nil {
		return fmt.Errorf("close gvisor driver: %w", err)
	}
	return d.letGo()
}

// letGo releases the network namespace unless there is a runtime.
func (d *Driver) letGo() error {
	ids, err := names(d.bundles())
	if err != nil || len(ids) > 0 {
		return err
	}
	pins, err := filepath.Glob(filepath.Join(d.root, "*netns*"))
	if err != nil {
		return err
	}
	for _, p := range pins {
		// Runtimes that were made at the same time pinned it over each other.
		for err == nil {
			err = unix.Unmount(p, unix.MNT_DETACH)
		}
		if !errors.Is(err, unix.EINVAL) { // no longer a mount
			return fmt.Errorf("release %s: %w", p, err)
		}
		err = nil
		if err := os.Remove(p); err != nil {
			return fmt.Errorf("release %s: %w", p, err)
		}
	}
	return nil
}
