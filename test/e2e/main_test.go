package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// The programs under test. TestMain sets them.
var (
	drowseBinary string
	guestBinary  string
	grpcBinary   string
)

// envPrograms names the directory with the built programs for the second run
// of TestMain, inside the network namespace.
const envPrograms = "DROWSE_E2E_PROGRAMS"

func TestMain(m *testing.M) { os.Exit(runMain(m)) }

// programs is a directory that is removed after the last test.
var programs string

func runMain(m *testing.M) int {
	if todo := os.Getenv(envNeighbour); todo != "" {
		if err := runErrand(todo); err != nil {
			fmt.Fprintln(os.Stderr, "test/e2e: the good neighbour:", err)
			return 1
		}
		return 0
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "test/e2e: these tests run real sandboxes and must be run as root")
		return 1
	}
	dir := os.Getenv(envPrograms)
	if dir == "" {
		var err error
		if dir, err = build(); err != nil {
			fmt.Fprintln(os.Stderr, "test/e2e:", err)
			return 1
		}
	}
	defer os.RemoveAll(dir)
	programs = dir
	if err := leaveNetwork(dir); err != nil {
		fmt.Fprintln(os.Stderr, "test/e2e: move into a network namespace without a way out:", err)
		return 1
	}
	drowseBinary, guestBinary, grpcBinary = filepath.Join(dir, "drowse"), filepath.Join(dir, "guest"), filepath.Join(dir, "grpcguest")
	if preset := os.Getenv("DROWSE_BINARY"); preset != "" {
		drowseBinary = preset
	}
	if err := noteSources(); err != nil {
		fmt.Fprintln(os.Stderr, "test/e2e:", err)
		return 1
	}
	return m.Run()
}

// build makes the programs, before the network is left: modules may have to be
// downloaded.
func build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "dwbin"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	// Others than root must be able to run it, to be told that they may not.
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, err
	}
	for _, program := range []string{"guest", "grpcguest"} {
		if err := goBuild(filepath.Join(dir, program), "./test/e2e/"+program); err != nil {
			return dir, err
		}
	}
	if preset := os.Getenv("DROWSE_BINARY"); preset != "" {
		path, err := filepath.Abs(preset)
		if err != nil {
			return dir, err
		}
		return dir, os.Setenv("DROWSE_BINARY", path)
	}
	if err := buildAgent(dir); err != nil {
		return dir, err
	}
	return dir, buildServer(filepath.Join(dir, "drowse"))
}

// buildServer builds the server as make build does, with gVisor edited.
func buildServer(to string, flags ...string) error {
	edit := exec.Command("go", "run", "./internal/runtime/gvisor/overlay", "bin/overlay")
	edit.Dir = "../.."
	if out, err := edit.CombinedOutput(); err != nil {
		return fmt.Errorf("edit gVisor: %w\n%s", err, out)
	}
	return goBuild(to, "./cmd/drowse", append(flags, "-trimpath", "-modfile=bin/overlay/go.mod", "-overlay=bin/overlay/overlay.json")...)
}

// buildAgent puts the agent where the server's build finds it.
func buildAgent(dir string) error {
	built := filepath.Join(dir, "agent")
	if err := goBuild(built, "./cmd/drowse-agent", "-trimpath"); err != nil {
		return err
	}
	pack := exec.Command("go", "run", "./internal/agentbin/pack", built, "internal/agentbin/bin/drowse-agent.zst")
	pack.Dir = "../.."
	if out, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("compress the agent: %w\n%s", err, out)
	}
	return nil
}

func goBuild(to, pkg string, flags ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-ldflags=-s -w", "-o", to}, append(flags, pkg)...)...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// leaveNetwork returns at once if there is no way out of this network.
// Otherwise it runs this program again in a namespace that has none.
func leaveNetwork(programs string) error {
	out, err := wayOut()
	if err != nil || !out {
		return err
	}
	if os.Getenv(envPrograms) != "" {
		return errors.New("there is still a default route")
	}
	// The thread's namespace is the whole program's after exec.
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, append(os.Environ(), envPrograms+"="+programs))
}

// wayOut reports whether there is a default route.
func wayOut() (bool, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			return true, nil
		}
		if ones, _ := r.Dst.Mask.Size(); ones == 0 {
			return true, nil
		}
	}
	return false, nil
}

// noteSources looks at everything that the binary is made of. The go command
// takes note of what a test looks at, and so does not repeat an old result
// after a change there.
func noteSources() error {
	for _, top := range []string{"../../cmd", "../../internal", "guest", "grpcguest", "rpc", "filetree", "../../go.mod"} {
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			_, err = os.Stat(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // someone is editing
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("look at the sources: %w", err)
		}
	}
	return nil
}
