package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/template"
)

// raw is gVisor's own tool, used as a person with a script would: the same
// build of it, the same root file system, the same limits and the same kind of
// network as drowse gives a sandbox. Only the tool's own work is timed; root
// file system and network namespace are ready before the clock starts.
type raw struct {
	drowse string // the binary that gVisor is linked into
	dir    string
	rootfs string
	made   int
	memory int64 // what a container may have, in bytes
}

// newRaw mounts the root file system that all containers share. Mostly they run one
// at a time.
func newRaw(drowse, dir string) (*raw, error) {
	r := &raw{drowse: drowse, dir: dir, memory: memoryLimit, rootfs: filepath.Join(dir, "rootfs")}
	layers, err := layer.Open(dir)
	if err != nil {
		return nil, err
	}
	templates, err := template.Open(filepath.Join(dir, "templates"))
	if err != nil {
		return nil, err
	}
	t, err := templates.BuildBase(template.Agent{Program: func() ([]byte, error) { return nil, nil }}) // of no use without the server, so without agent
	if err != nil {
		return nil, err
	}
	for _, d := range []string{r.root(), r.images(), filepath.Join(dir, "netns"), filepath.Join(dir, "bundles")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	return r, layers.Mount(r.rootfs, t.Trees, nil, "raw")
}

func (r *raw) root() string   { return filepath.Join(r.dir, "runsc") }
func (r *raw) images() string { return filepath.Join(r.dir, "images") }

// close takes away what newRaw mounted.
func (r *raw) close() error { return layer.Unmount(r.rootfs) }

// runsc returns the tool with the options that drowse uses.
func (r *raw) runsc(ctx context.Context, args ...string) *exec.Cmd {
	options := []string{"runsc", "--root", r.root(), "--platform", "systrap", "--network", "sandbox",
		"--overlay2", "none", "--file-access", "exclusive", "--allow-suid", "--host-settings", "ignore"}
	return exec.CommandContext(ctx, r.drowse, append(options, args...)...)
}

// call runs the tool to its end. Its output goes to a file and not through a
// pipe, because processes that it leaves behind hold it open.
func (r *raw) call(ctx context.Context, args ...string) error {
	log, err := os.CreateTemp(r.dir, "runsc-*.log")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(log.Close(), os.Remove(log.Name())) }()
	cmd := r.runsc(ctx, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, bytes.TrimSpace(text))
	}
	return nil
}

// container is one container that is, was or will be.
type container struct {
	r      *raw
	id     string
	bundle string
	netns  string
	slot   int // its place in the network, which it has to itself while it is there
}

// prepare makes all that a container needs before the tool is called, which is the only
// one meanwhile.
func (r *raw) prepare(args ...string) (*container, error) { return r.prepareAt(0, args...) }

// prepareAt is prepare for one of several at once.
func (r *raw) prepareAt(slot int, args ...string) (*container, error) {
	r.made++
	id := fmt.Sprintf("bench%07d", r.made) // no id is the beginning of another
	c := &container{r: r, id: id, bundle: filepath.Join(r.dir, "bundles", id), netns: filepath.Join(r.dir, "netns", id), slot: slot}
	if err := os.Mkdir(c.bundle, 0o700); err != nil {
		return nil, err
	}
	config, err := json.Marshal(c.spec(args))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.bundle, "config.json"), config, 0o600); err != nil {
		return nil, err
	}
	return c, c.connect()
}

// cgroupParent is where the containers' cgroups are.
const cgroupParent = "drowse-bench"

// What drowse grants a sandbox: memory with what gVisor itself needs, tasks.
const (
	memoryLimit = (1024 + 64) << 20
	taskLimit   = 2048
)

// spec describes the container as drowse describes a sandbox to gVisor.
func (c *container) spec(args []string) *specs.Spec {
	memory := c.r.memory
	period := uint64(100_000)
	quota := int64(min(2, goruntime.NumCPU())) * int64(period)
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: c.id,
		Root:     &specs.Root{Path: c.r.rootfs},
		Process: &specs.Process{
			User: specs.User{UID: 1000, GID: 1000},
			Args: args,
			Env:  []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/user", "USER=user"},
			Cwd:  "/home/user",
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}},
			{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + cgroupParent + "/" + c.id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: c.netns},
			},
			Resources: &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: &memory},
				CPU:    &specs.LinuxCPU{Period: &period, Quota: &quota},
				Pids:   &specs.LinuxPids{Limit: taskLimit},
			},
		},
	}
}

// The container's network: one pair, one end here, the other in the
// container's namespace.
const guestLink = "eth0"

func (c *container) hostLink() string  { return fmt.Sprintf("bench%d", c.slot) }
func (c *container) hostCIDR() string  { return fmt.Sprintf("10.99.0.%d/30", 4*c.slot+1) }
func (c *container) guestCIDR() string { return fmt.Sprintf("10.99.0.%d/30", 4*c.slot+2) }
func (c *container) guestURL() string {
	return fmt.Sprintf("http://10.99.0.%d:%d", 4*c.slot+2, guestPort)
}

// connect makes the container's network namespace and the pair into it.
func (c *container) connect() error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // for good: the thread stays in the new namespace and ends with it
		done <- c.makeNamespace()
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("network of %s: %w", c.id, err)
	}
	ns, err := os.Open(c.netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	host, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer host.Close()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: c.hostLink()}, PeerName: guestLink, PeerNamespace: netlink.NsFd(ns.Fd())}
	if err := host.LinkAdd(link); err != nil {
		return fmt.Errorf("add %s: %w", c.hostLink(), err)
	}
	if err := address(host, c.hostLink(), c.hostCIDR()); err != nil {
		return err
	}
	go func() {
		goruntime.LockOSThread()
		done <- inNamespace(ns, func(h *netlink.Handle) error {
			if err := address(h, "lo", ""); err != nil {
				return err
			}
			return address(h, guestLink, c.guestCIDR())
		})
	}()
	return <-done
}

func (c *container) makeNamespace() error {
	if err := os.WriteFile(c.netns, nil, 0o400); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	return unix.Mount("/proc/thread-self/ns/net", c.netns, "", unix.MS_BIND, "")
}

// inNamespace moves the thread for good.
func inNamespace(ns *os.File, f func(*netlink.Handle) error) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	h, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer h.Close()
	return f(h)
}

// address sets an interface up, with an address if there is one.
func address(h *netlink.Handle, name, cidr string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if cidr != "" {
		a, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		if err := h.AddrAdd(link, a); err != nil {
			return fmt.Errorf("address %s: %w", name, err)
		}
	}
	return h.LinkSetUp(link)
}

// run runs the container's command to its end and returns the time to the
// first byte of its output.
func (c *container) run(ctx context.Context) (first time.Duration, err error) {
	cmd := c.r.runsc(ctx, "run", "--bundle", c.bundle, c.id)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_, readErr := io.ReadFull(out, make([]byte, 1))
	first = time.Since(start)
	_, _ = io.Copy(io.Discard, out)
	if err := errors.Join(readErr, cmd.Wait()); err != nil {
		return 0, fmt.Errorf("runsc run: %w: %s", err, stderr.String())
	}
	return first, nil
}

// exec runs a command in the container.
func (c *container) exec(ctx context.Context, args ...string) error {
	return c.r.call(ctx, append([]string{"exec", "--user", "1000:1000", c.id}, args...)...)
}

// pipe runs a command in the container, with what it reads and writes.
func (c *container) pipe(ctx context.Context, in io.Reader, out io.Writer, args ...string) error {
	cmd := c.r.runsc(ctx, append([]string{"exec", "--user", "1000:1000", c.id}, args...)...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("runsc exec %v: %w: %s", args, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

func (c *container) create(ctx context.Context) error {
	return c.r.call(ctx, "create", "--bundle", c.bundle, c.id)
}

func (c *container) start(ctx context.Context) error { return c.r.call(ctx, "start", c.id) }

func (c *container) restore(ctx context.Context, image string) error {
	return c.r.call(ctx, "restore", "--bundle", c.bundle, "--image-path", image, "--detach", c.id)
}

// checkpoint ends the container and leaves its image on disk, synced.
func (c *container) checkpoint(ctx context.Context, image string) error {
	if err := c.r.call(ctx, "checkpoint", "--image-path", image, c.id); err != nil {
		return err
	}
	entries, err := os.ReadDir(image)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := syncPath(filepath.Join(image, e.Name())); err != nil {
			return err
		}
	}
	return syncPath(image)
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// remove takes away the container and its network.
func (c *container) remove(ctx context.Context) error {
	err := c.r.call(ctx, "delete", "--force", c.id)
	if err == nil {
		err = awaitGone(ctx, c.id)
	}
	link, linkErr := netlink.LinkByName(c.hostLink())
	if linkErr == nil {
		linkErr = netlink.LinkDel(link)
	}
	return errors.Join(err, linkErr, unix.Unmount(c.netns, unix.MNT_DETACH), os.Remove(c.netns), os.RemoveAll(c.bundle))
}

// removeCgroups removes what is left of the containers' cgroups, which must be
// empty by now.
func removeCgroups() error {
	dirs, err := filepath.Glob("/sys/fs/cgroup/*/" + cgroupParent)
	if err != nil {
		return err
	}
	dirs = append(dirs, "/sys/fs/cgroup/"+cgroupParent)
	for _, d := range dirs {
		children, err := filepath.Glob(d + "/*/")
		if err != nil {
			return err
		}
		for _, g := range append(children, d) {
			if err := os.Remove(g); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// upLoopback makes the fresh network namespace usable.
func upLoopback() error {
	if routes, err := netlink.RouteList(nil, netlink.FAMILY_V4); err != nil {
		return err
	} else if len(routes) > 0 {
		return errors.New("this is not a network namespace of its own: start with test/bench/run.sh")
	}
	if links, err := net.Interfaces(); err != nil {
		return err
	} else if len(links) == 0 {
		return errors.New("no loopback interface")
	}
	h, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer h.Close()
	return address(h, "lo", "")
}
