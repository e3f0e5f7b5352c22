package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
	"github.com/drowse-dev/drowse/internal/runtime/netns"
)

// A server speaks with a runtime of another build by running the program of that
// build, under the name peerName, with a question on its standard input. What it
// answers on its standard output comes from the gVisor that it is linked with. So
// only this protocol has to stay what it is when gVisor changes: the types below
// are a published form. Another build may be older or newer; it ignores a field
// that it does not know, and refuses a question that it does not know. The files
// in testdata hold both.
const (
	peerName     = "runsc-peer" // that it begins with runsc tells Handover
	peerProtocol = 1
)

// question is what a build is asked.
type question struct {
	Protocol int    `json:"protocol"`
	Ask      ask    `json:"ask"`
	Dir      string `json:"dir,omitempty"`    // of the driver's state
	ID       string `json:"id,omitempty"`     // by which gVisor knows the runtime
	Bundle   string `json:"bundle,omitempty"` // its directory
	Image    string `json:"image,omitempty"`  // the directory of a memory image
	Hostname string `json:"hostname,omitempty"`
	// For "create", which describes the runtime as that build always does: a
	// restored runtime must be like the captured one.
	Spec    *peerSpec `json:"spec,omitempty"`
	Netns   string    `json:"netns,omitempty"`
	Cgroups string    `json:"cgroups,omitempty"`
}

type ask string

const (
	askBuild      ask = "build"  // what it is; answered with Version and Edits
	askCreate     ask = "create" // make the processes of a runtime; has no answer but the exit code
	askFind       ask = "find"   // answered with the processes and what they are like
	askRestore    ask = "restore"
	askFreeze     ask = "freeze"
	askThaw       ask = "thaw"
	askStopped    ask = "stopped" // whether every task is; answered with Stopped
	askCheckpoint ask = "checkpoint"
	askHostname   ask = "hostname" // set it; builds from before this one do not know the question
)

// peerSpec is what of a runtime.Spec describes a runtime to gVisor.
type peerSpec struct {
	Rootfs    string      `json:"rootfs"`
	Args      []string    `json:"args"`
	Env       []string    `json:"env"`
	Hostname  string      `json:"hostname"`
	CPUs      float64     `json:"cpus"`
	MemoryMiB int         `json:"memoryMiB"`
	PIDs      int         `json:"pids"`
	Mounts    []peerMount `json:"mounts,omitempty"`
}

type peerMount struct {
	Source string `json:"source"`
	Path   string `json:"path"`
}

// answer is what a build says.
type answer struct {
	Protocol    int    `json:"protocol"`
	Error       string `json:"error,omitempty"`
	Missing     bool   `json:"missing,omitempty"` // there is no such runtime
	Version     string `json:"version,omitempty"` // of the memory images that it writes and reads
	Edits       string `json:"edits,omitempty"`   // what was changed in its gVisor
	Running     bool   `json:"running,omitempty"` // it has been started, and has not ended
	Sentry      int    `json:"sentry,omitempty"`
	Gofer       int    `json:"gofer,omitempty"`
	MemoryLimit int64  `json:"memoryLimit,omitempty"`
	LateRoot    bool   `json:"lateRoot,omitempty"`
	Stopped     bool   `json:"stopped,omitempty"`
}

func peerSpecOf(s runtime.Spec) *peerSpec {
	p := &peerSpec{
		Rootfs: s.Rootfs, Args: s.Args, Env: s.Env, Hostname: s.Hostname,
		CPUs: s.Limits.CPUs, MemoryMiB: s.Limits.MemoryMiB, PIDs: s.Limits.PIDs,
	}
	for _, m := range s.Mounts {
		p.Mounts = append(p.Mounts, peerMount(m))
	}
	return p
}

func (p peerSpec) spec(id string) runtime.Spec {
	s := runtime.Spec{
		ID: id, Rootfs: p.Rootfs, Args: p.Args, Env: p.Env, Hostname: p.Hostname,
		Limits: runtime.Limits{CPUs: p.CPUs, MemoryMiB: p.MemoryMiB, PIDs: p.PIDs},
	}
	for _, m := range p.Mounts {
		s.Mounts = append(s.Mounts, runtime.Mount(m))
	}
	return s
}

// bePeer answers the question on the standard input, or becomes gVisor's tool
// that makes a runtime. It returns the exit code.
func bePeer() int {
	var q question
	if err := json.NewDecoder(os.Stdin).Decode(&q); err != nil {
		fmt.Fprintln(os.Stderr, "question:", err)
		return 2
	}
	if q.Ask == askCreate {
		fmt.Fprintln(os.Stderr, beCreator(q))
		return 1
	}
	a := q.answer()
	a.Protocol = peerProtocol
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// beCreator writes the description of a runtime and goes on as gVisor's tool. It
// returns if that was not possible.
func beCreator(q question) error {
	d, err := at(q.Dir)
	if err != nil {
		return err
	}
	if q.Protocol != peerProtocol || q.Spec == nil {
		return fmt.Errorf("question of protocol %d: this build knows %d", q.Protocol, peerProtocol)
	}
	oci, err := json.Marshal(ociSpec(q.Spec.spec(q.ID), q.Netns, q.Cgroups))
	if err != nil {
		return err
	}
	if err := os.WriteFile(configFile(q.Bundle), oci, 0o600); err != nil {
		return err
	}
	// What is made here inherits the standard streams.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return err
	}
	null.Close()
	os.Args = append([]string{"runsc"}, d.createArgs(q.Bundle, q.ID)...)
	runTool()
	return errors.New("internal error: gVisor's tool did not exit")
}

// answer asks the gVisor of this process.
func (q question) answer() (a answer) {
	if q.Ask == askBuild {
		return answer{Version: imageVersion(), Edits: edits}
	}
	if q.Protocol != peerProtocol {
		return answer{Error: fmt.Sprintf("question of protocol %d: this build knows %d", q.Protocol, peerProtocol)}
	}
	d, err := at(q.Dir)
	var c *container.Container
	if err == nil {
		c, err = d.load(q.Bundle, q.ID)
	}
	if err == nil {
		err = q.put(d, local{d, c}, &a)
	}
	if err != nil {
		a.Error, a.Missing = err.Error(), errdef.Is(err, errdef.NotFound)
	}
	return a
}

func (q question) put(d *Driver, l local, a *answer) (err error) {
	switch q.Ask {
	case askFind:
		is := l.about()
		a.Running, a.Sentry, a.Gofer, a.MemoryLimit, a.LateRoot = is.running, is.sentry, is.gofer, is.memoryLimit, is.lateRoot
	case askRestore:
		return l.restore(q.Image)
	case askFreeze:
		return l.freeze()
	case askThaw:
		return l.thaw()
	case askStopped:
		a.Stopped, err = l.stopped()
		return err
	case askCheckpoint:
		return l.checkpoint(q.Image)
	case askHostname:
		return l.setHostname(q.Hostname)
	default:
		return fmt.Errorf("question %q: this build does not know it", q.Ask)
	}
	return nil
}

// consult puts a question to the program of a build.
func (x *peers) consult(p *builds.Program, q question) (a answer, err error) {
	q.Protocol, q.Dir = peerProtocol, x.dir
	data, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	cmd := x.command(p)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(data)), &out, &errs
	if err := cmd.Run(); err != nil {
		return a, fmt.Errorf("ask build %s to %s: %w: %s", brand(p.Digest), q.Ask, err, strings.TrimSpace(errs.String()))
	}
	if err := json.Unmarshal([]byte(out.String()), &a); err != nil {
		return a, fmt.Errorf("ask build %s to %s: %w", brand(p.Digest), q.Ask, err)
	}
	switch {
	case a.Missing:
		return a, notRunning(q.ID)
	case a.Error != "":
		return a, fmt.Errorf("build %s: %w", brand(p.Digest), errors.New(a.Error))
	}
	return a, nil
}

// command runs the program of a build as one that is asked.
func (x *peers) command(p *builds.Program) *exec.Cmd {
	cmd := exec.Command(p.Path())
	cmd.Args = []string{peerName}
	cmd.Env = x.env
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	return cmd
}

// brand is as much of a digest as a person needs.
func brand(digest string) string { return digest[:min(12, len(digest))] }

func configFile(bundle string) string { return filepath.Join(bundle, "config.json") }

// remote is a control by the program of another build.
type remote struct {
	peers   *peers
	program *builds.Program
	bundle  string
	cid     string
	found   answer
}

// reach finds a runtime of another build.
func (x *peers) reach(p *builds.Program, bundle, cid string) (*remote, error) {
	r := &remote{peers: x, program: p, bundle: bundle, cid: cid}
	var err error
	r.found, err = r.ask(askFind, "")
	return r, err
}

func (r *remote) ask(what ask, image string) (answer, error) {
	return r.peers.consult(r.program, question{Ask: what, ID: r.cid, Bundle: r.bundle, Image: image})
}

func (r *remote) order(what ask, image string) error {
	_, err := r.ask(what, image)
	return err
}

func (r *remote) about() about {
	return about{
		id: r.cid, running: r.found.Running, sentry: r.found.Sentry, gofer: r.found.Gofer,
		memoryLimit: r.found.MemoryLimit, lateRoot: r.found.LateRoot,
	}
}

func (r *remote) start() error {
	return errors.New("internal error: another build starts nothing afresh")
}

func (r *remote) restore(image string) error  { return r.order(askRestore, image) }
func (r *remote) freeze() error               { return r.order(askFreeze, "") }
func (r *remote) thaw() error                 { return r.order(askThaw, "") }
func (r *remote) checkpoint(dir string) error { return r.order(askCheckpoint, dir) }

func (r *remote) stopped() (bool, error) {
	a, err := r.ask(askStopped, "")
	return a.Stopped, err
}

// createBy makes the processes of a runtime with the program of another build.
func (d *Driver) createBy(ctx context.Context, p *builds.Program, bundle string, spec runtime.Spec, ns *netns.Namespace) error {
	oci := ociSpec(spec, ns.Path, d.cgroupsPath(spec.ID))
	if err := d.makeGroup(bundle, spec.ID, oci.Linux.Resources); err != nil {
		return err
	}
	data, err := json.Marshal(question{
		Protocol: peerProtocol, Ask: askCreate, Dir: d.dir, ID: spec.ID, Bundle: bundle,
		Spec: peerSpecOf(spec), Netns: ns.Path, Cgroups: d.cgroupsPath(spec.ID),
	})
	if err != nil {
		return err
	}
	cmd := d.command(p)
	cmd.Stdin = strings.NewReader(string(data))
	return d.runCreate(ctx, cmd, bundle)
}
