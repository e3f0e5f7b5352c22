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
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	gvlog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// Handover becomes gVisor's own tool if this process was started as such, and
// does not return then.
func Handover() {
	if os.Args[0] == "/proc/self/exe" || strings.HasPrefix(filepath.Base(os.Args[0]), "runsc") {
		maincli.Main()
		os.Exit(0)
	}
}

// Driver implements runtime.Driver.
type Driver struct {
	dir  string // of this driver's state
	root string // of gVisor's own state
	conf *config.Config
}

// New returns a driver that keeps its state below dir. Paths of sockets must
// be short, so dir should be, too.
func New(dir string) (*Driver, error) {
	d := &Driver{dir: dir, root: filepath.Join(dir, "runsc")}
	for _, p := range []string{d.root, d.bundles(), d.namespaces()} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			return nil, fmt.Errorf("gvisor driver: %w", err)
		}
	}
	conf, err := newConfig(d.root)
	if err != nil {
		return nil, fmt.Errorf("gvisor driver: %w", err)
	}
	d.conf = conf
	gvlog.SetTarget(discard{})
	return d, nil
}

func (d *Driver) bundles() string         { return filepath.Join(d.dir, "bundles") }
func (d *Driver) bundle(id string) string { return filepath.Join(d.bundles(), id) }
func (d *Driver) namespaces() string      { return filepath.Join(d.dir, "netns") }
func (d *Driver) netns(id string) *netns  { return &netns{path: filepath.Join(d.namespaces(), id)} }

// discard drops gVisor's log: what matters comes back as errors.
type discard struct{}

// Emit implements gvlog.Emitter.
func (discard) Emit(int, gvlog.Level, time.Time, string, ...any) {}

// newConfig sets what differs from gVisor's defaults.
func newConfig(root string) (*config.Config, error) {
	flags := flag.NewFlagSet("runsc", flag.ContinueOnError)
	config.RegisterFlags(flags)
	for name, value := range map[string]string{
		"root":          root,
		"platform":      "systrap",
		"network":       "sandbox",
		"overlay2":      "none",      // the writable layer is ours, outside the memory image
		"file-access":   "exclusive", // nobody else changes the files of a running sandbox
		"allow-suid":    "true",      // sudo
		"host-settings": "ignore",
	} {
		if err := flags.Set(name, value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	return config.NewFromFlags(flags)
}

// Capabilities implements runtime.Driver.
func (d *Driver) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Isolation: "gvisor", MemoryPause: true, Version: "gvisor " + Version()}
}

// Version returns the version of the gVisor module linked in.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			return m.Version
		}
	}
	return "unknown"
}

// Start implements runtime.Driver.
func (d *Driver) Start(ctx context.Context, spec runtime.Spec) (runtime.Instance, error) {
	return d.launch(ctx, spec, func(c *container.Container) error { return c.Start(d.conf) })
}

// Restore implements runtime.Driver.
func (d *Driver) Restore(ctx context.Context, spec runtime.Spec, image string) (runtime.Instance, error) {
	return d.launch(ctx, spec, func(c *container.Container) error {
		return c.Restore(d.conf, image, false, false, nil)
	})
}

// launch makes a runtime and sets it going. On error nothing of it is left.
func (d *Driver) launch(ctx context.Context, spec runtime.Spec, run func(*container.Container) error) (_ runtime.Instance, err error) {
	defer func() {
		if err != nil {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
			defer cancel()
			err = errors.Join(err, d.Remove(clean, spec.ID))
		}
	}()
	ns := d.netns(spec.ID)
	if err := ns.create(); err != nil {
		return nil, fmt.Errorf("make network of %s: %w", spec.ID, err)
	}
	if err := d.create(ctx, spec, ns); err != nil {
		return nil, fmt.Errorf("create %s: %w", spec.ID, err)
	}
	c, err := d.load(spec.ID)
	if err != nil {
		return nil, err
	}
	if err := run(c); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	if err := ns.attachHost(); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", spec.ID, err)
	}
	if err := d.keepState(spec.ID); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	return newInstance(d, c, ns)
}

// create makes the processes of a runtime by running gVisor's tool in a
// process of its own: inside the server it would move the whole server into
// the sandbox's cgroup for a moment (cgroup v1), and give the server's
// standard streams to the guest.
func (d *Driver) create(ctx context.Context, spec runtime.Spec, ns *netns) error {
	if err := d.writeBundle(spec, ns.path); err != nil {
		return err
	}
	args := append(d.conf.ToFlags(), "create", "--bundle", d.bundle(spec.ID), spec.ID)
	if err := ctx.Err(); err != nil {
		return err
	}
	// Not ended with ctx: half way through it would leave processes that it has
	// not written down yet. It is short.
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "runsc"
	// It ends with the server, whose successor would otherwise sweep away what
	// it is still making. The signal is sent when this thread ends.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	// A file, not a pipe: the processes it leaves behind inherit it, and
	// waiting for a pipe would wait for them.
	stderr, err := os.OpenFile(filepath.Join(d.bundle(spec.ID), "create.log"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(stderr.Name())
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
	}
	return nil
}

func (d *Driver) writeBundle(spec runtime.Spec, netns string) error {
	dir := d.bundle(spec.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(ociSpec(spec, netns))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

func (d *Driver) load(id string) (*container.Container, error) {
	full := container.FullID{SandboxID: id, ContainerID: id}
	// Looked at first, because loading what is not there leaves a lock file.
	if _, err := os.Stat(d.stateFile(id, "state")); errors.Is(err, fs.ErrNotExist) {
		return nil, errdef.New(errdef.NotFound, "runtime_not_found", "runtime %s does not exist", id)
	}
	c, err := container.Load(d.root, full, container.LoadOpts{Exact: true, SkipCheck: true})
	if err != nil && d.mendState(id) {
		c, err = container.Load(d.root, full, container.LoadOpts{Exact: true, SkipCheck: true})
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdef.New(errdef.NotFound, "runtime_not_found", "runtime %s does not exist", id)
	}
	if err != nil {
		return nil, fmt.Errorf("load runtime %s: %w", id, err)
	}
	return c, nil
}

// stateFile names what gVisor keeps of a runtime: "state" or "lock".
func (d *Driver) stateFile(id, kind string) string {
	return filepath.Join(d.root, id+"_sandbox:"+id+"."+kind)
}

// keepState copies what gVisor has written down of a running runtime. It
// writes in place, so that a process killed meanwhile leaves a torn file.
func (d *Driver) keepState(id string) error {
	data, err := os.ReadFile(d.stateFile(id, "state"))
	if err != nil {
		return err
	}
	copied := d.keptState(id)
	if err := os.WriteFile(copied+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(copied+".new", copied)
}

func (d *Driver) keptState(id string) string { return filepath.Join(d.bundle(id), "state.json") }

// mendState puts the copy in the place of a file that cannot be read.
func (d *Driver) mendState(id string) bool {
	data, err := os.ReadFile(d.keptState(id))
	return err == nil && os.WriteFile(d.stateFile(id, "state"), data, 0o600) == nil
}

// Adopt implements runtime.Driver.
func (d *Driver) Adopt(_ context.Context, id string) (runtime.Instance, error) {
	c, err := d.load(id)
	if err != nil {
		return nil, err
	}
	if !c.IsSandboxRunning() || (c.Status != container.Running && c.Status != container.Paused) {
		return nil, errdef.New(errdef.NotFound, "runtime_not_found", "runtime %s is not running", id)
	}
	return newInstance(d, c, d.netns(id))
}

// List implements runtime.Driver.
func (d *Driver) List(context.Context) ([]string, error) {
	seen := map[string]bool{}
	var ids []string
	for _, dir := range []string{d.bundles(), d.namespaces()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("list runtimes: %w", err)
		}
		for _, e := range entries {
			if !seen[e.Name()] {
				seen[e.Name()] = true
				ids = append(ids, e.Name())
			}
		}
	}
	return ids, nil
}

// removeTimeout bounds the clean-up after a failed start.
const removeTimeout = 20 * time.Second

// Remove implements runtime.Driver.
func (d *Driver) Remove(_ context.Context, id string) error {
	var errs []error
	c, err := d.load(id)
	if err == nil {
		if err := c.Destroy(); err != nil {
			errs = append(errs, fmt.Errorf("destroy: %w", err))
		}
	} // else it is gone, or half written by a process that was killed
	// What gVisor has not written down, because whoever made it was killed, is
	// still in the runtime's cgroup.
	errs = append(errs, removeCgroups(id), d.netns(id).remove())
	for _, path := range []string{d.stateFile(id, "state"), d.stateFile(id, "lock"), filepath.Join(d.root, "runsc-"+id+".sock")} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove runtime %s: %w", id, err)
	}
	// Last: while the bundle is there, List names the runtime.
	if err := os.RemoveAll(d.bundle(id)); err != nil {
		return fmt.Errorf("remove runtime %s: %w", id, err)
	}
	return nil
}

// Close implements runtime.Driver. The network namespace that gVisor pins for
// its file servers is let go when no runtime is left that could use it.
func (d *Driver) Close() error {
	ids, err := d.List(context.Background())
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
