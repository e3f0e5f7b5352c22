package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agentbin"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/drivers"
	"github.com/drowse-dev/drowse/internal/runtime/trial"
	"github.com/drowse-dev/drowse/internal/tree"
)

// Finding is one thing that the doctor looked at.
type Finding struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Required bool   `json:"required"` // without it no sandbox runs
	Detail   string `json:"detail"`
	Remedy   string `json:"remedy,omitempty"`
}

// Doctor writes what this machine can run and why not, and reports whether a
// server would work. It starts and removes a sandbox to know.
func Doctor(ctx context.Context, w io.Writer, asJSON bool, stateDir string) (bool, error) {
	findings := []Finding{root(), kernel(), space(stateDir)}
	if findings[0].OK {
		findings = append(findings, keptBuilds(ctx, stateDir), calls(), overlays(stateDir))
		findings = append(findings, host(ctx)...)
		findings = append(findings, diskRates(ctx, drivers.Default(), stateDir))
		for _, kind := range drivers.All() {
			findings = append(findings, trialOf(ctx, kind, stateDir))
		}
	}
	findings = append(findings, guestTools())
	ok := true
	for _, f := range findings {
		ok = ok && (f.OK || !f.Required)
	}
	if asJSON {
		return ok, json.NewEncoder(w).Encode(map[string]any{"ok": ok, "findings": findings})
	}
	return ok, printFindings(w, findings)
}

// log tells the log what was found, and how to mend it where that is amiss.
func (f Finding) log(log *slog.Logger) {
	if f.OK {
		log.Info(f.Name, "found", f.Detail)
		return
	}
	log.Warn(f.Name, "found", f.Detail, "remedy", f.Remedy)
}

func printFindings(w io.Writer, findings []Finding) error {
	for _, f := range findings {
		mark := "ok"
		switch {
		case !f.OK && f.Required:
			mark = "FAIL"
		case !f.OK:
			mark = "note"
		}
		if _, err := fmt.Fprintf(w, "%-5s %-16s %s\n", mark, f.Name, f.Detail); err != nil {
			return err
		}
		if f.Remedy != "" && !f.OK {
			if _, err := fmt.Fprintf(w, "%-5s %-16s %s\n", "", "", "→ "+f.Remedy); err != nil {
				return err
			}
		}
	}
	return nil
}

func root() Finding {
	f := Finding{Name: "root", Required: true, OK: os.Geteuid() == 0, Detail: "running as root"}
	if !f.OK {
		f.Detail = fmt.Sprintf("running as uid %d; namespaces, mounts and cgroups need root", os.Geteuid())
		f.Remedy = "run it with sudo"
	}
	return f
}

func kernel() Finding {
	f := Finding{Name: "kernel", OK: true}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.OK, f.Detail = false, err.Error()
		return f
	}
	f.Detail = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	return f
}

// wantedSpace is what a server should have for images and layers, in GiB.
const wantedSpace = 2

func space(dir string) Finding {
	f := Finding{Name: "disk", OK: true}
	for existing := dir; ; existing = filepath.Dir(existing) {
		var st unix.Statfs_t
		err := unix.Statfs(existing, &st)
		if errors.Is(err, unix.ENOENT) && existing != "/" {
			continue
		}
		if err != nil {
			f.OK, f.Detail = false, fmt.Sprintf("%s: %v", dir, err)
			return f
		}
		free := st.Bavail * uint64(st.Bsize) >> 30
		f.OK = free >= wantedSpace
		f.Detail = fmt.Sprintf("%d GiB free for %s", free, dir)
		f.Remedy = "make room, or choose another place with --state-dir: paused sandboxes keep their memory there"
		return f
	}
}

// keptBuilds says what the builds take that memory images need.
func keptBuilds(ctx context.Context, dir string) Finding {
	f := Finding{Name: "builds", OK: true}
	kept := buildsAt(dir)
	names, err := kept.Names()
	if err != nil {
		return f.lacks(err)
	}
	var bytes int64
	for _, name := range names {
		bytes += tree.DiskUsage(ctx, kept.Path(name))
	}
	size := human.Bytes(bytes)
	if ctx.Err() != nil {
		size = "more than " + size
	}
	f.Detail = fmt.Sprintf("kept for memory images: %d, %s in %s", len(names), size, kept.Path(""))
	return f
}

// diskRates says whether sandboxes' use of the disk can be limited.
func diskRates(ctx context.Context, kind drivers.Kind, dir string) Finding {
	f := Finding{Name: "disk rates", OK: true}
	for !isDir(dir) {
		dir = filepath.Dir(dir)
	}
	disks, by, err := kind.TryDiskRates(ctx, dir)
	if err != nil {
		f.OK = false
		f.Detail = fmt.Sprintf("--disk-read-rate and --disk-write-rate cannot be used: %v", err)
		f.Remedy = "leave them out, or put the state directory on ext4, xfs or btrfs on a disk of this machine, with a kernel that limits block I/O"
		return f
	}
	f.Detail = fmt.Sprintf("--disk-read-rate and --disk-write-rate work for %s, by %s", strings.Join(disks, " "), by)
	return f
}

// trialOf starts a sandbox of a kind, as nothing else tells whether that works. Its
// files are where the server's would be, or as near to that as there is a
// directory.
func trialOf(ctx context.Context, kind drivers.Kind, stateDir string) Finding {
	f := Finding{Name: "runtime " + kind.Name, Required: true, OK: true}
	began := time.Now()
	can, err := tryRuntime(ctx, kind, stateDir)
	if err != nil {
		f.OK, f.Detail = false, "not usable: "+err.Error()
		f.Remedy = "report it with the output of drowse doctor; in a container, try it with --privileged first"
		if e, ok := errors.AsType[*errdef.Error](err); ok && e.Remedy != "" {
			f.Detail, f.Remedy = "not usable: "+e.Message, e.Remedy
		}
		return f
	}
	f.Detail = fmt.Sprintf("usable: a trial sandbox answered after %s (%s)", time.Since(began).Round(time.Millisecond), aboutRuntime(can))
	return f
}

// aboutRuntime says what a runtime can do.
func aboutRuntime(can runtime.Capabilities) string {
	pause := "no"
	if can.MemoryPause {
		pause = "yes"
	}
	edits := "built without the edits of make build: pauses write whole images, and wakes read all first"
	if can.Edits != "" {
		edits = "edited for " + can.Edits
	}
	return fmt.Sprintf("%s; %s; memory pause %s", can.Version, edits, pause)
}

// tryRuntime makes a trial with files of its own, and returns what the driver can
// do.
func tryRuntime(ctx context.Context, kind drivers.Kind, stateDir string) (can runtime.Capabilities, err error) {
	for !isDir(stateDir) {
		stateDir = filepath.Dir(stateDir)
	}
	dir, err := os.MkdirTemp(stateDir, "drowse-doctor-")
	if err != nil {
		return can, err
	}
	var undo cleanups
	undo.add(func() error { return os.RemoveAll(dir) })
	defer func() { err = errors.Join(err, undo.run()) }()
	agent, err := agentbin.Program()
	if err != nil {
		return can, err
	}
	lower := filepath.Join(dir, "lower")
	if err := os.MkdirAll(lower, 0o755); err != nil {
		return can, err
	}
	if err := os.WriteFile(filepath.Join(lower, "agent"), agent, 0o755); err != nil {
		return can, err
	}
	layers, err := layer.Open(dir)
	if err != nil {
		return can, err
	}
	driver, err := kind.Open(ctx, filepath.Join(dir, kind.Dir), buildsAt(dir), drivers.Options{})
	if err != nil {
		return can, err
	}
	undo.add(driver.Close)
	trees := []layer.Tree{{Name: "root", Path: "/", Lowers: []string{lower}}}
	return driver.Capabilities(), trial.Run(ctx, driver, layers, trees, runtime.Spec{
		ID: filepath.Base(dir), Rootfs: filepath.Join(dir, "rootfs"), Args: []string{"/agent"}, Hostname: "doctor",
		Limits: runtime.Limits{CPUs: 1, MemoryMiB: 128, PIDs: 256},
	})
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir() || path == "/" || path == "."
}

// guestTools says what the template base has of what agents often want.
func guestTools() Finding {
	var have, lack []string
	for _, name := range []string{"bash", "python3", "node", "git", "curl"} {
		if inBase(name) {
			have = append(have, name)
			continue
		}
		lack = append(lack, name)
	}
	f := Finding{Name: "template base", OK: len(lack) == 0, Detail: "has " + strings.Join(have, " ")}
	if len(lack) > 0 {
		f.Detail += "; lacks " + strings.Join(lack, " ")
		f.Remedy = "install them on this machine under /usr, and sandboxes have them"
	}
	return f
}

func inBase(name string) bool {
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}
