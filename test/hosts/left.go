package main

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// settles is how long what is left may take to go away.
const settles = 30 * time.Second

// asBefore checks that the machine is as it was before drowse ran.
func (g *guest) asBefore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	return poll(ctx, func() error {
		var left []string
		for _, thing := range hostState() {
			if !slices.Contains(g.Before, thing) {
				left = append(left, thing)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
		}
		return nil
	})
}

// asleep checks that nothing of a sandbox runs or is mounted. Its record knows
// its processes; others are those of the server and of runtimes that wait.
func (g *guest) asleep(ctx context.Context, id string) error {
	if err := g.is(ctx, id, "paused"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	return poll(ctx, func() error {
		for _, thing := range hostState() {
			if strings.Contains(thing, id) {
				return fmt.Errorf("it sleeps, and there is still: %s", thing)
			}
		}
		return nil
	})
}

// noFiles checks that the state directory has no file of a sandbox that ended.
func (g *guest) noFiles() error {
	return filepath.WalkDir(g.StateDir, func(path string, _ fs.DirEntry, err error) error {
		for _, id := range g.Made {
			if err == nil && strings.Contains(filepath.Base(path), id) {
				return fmt.Errorf("left behind: file %s", path)
			}
		}
		return nil // what is gone by now is no error
	})
}

// hostState lists what drowse could leave: processes, mounts, control groups,
// interfaces, network namespaces, packet filters and temporary files.
func hostState() []string {
	return slices.Concat(processes(), mounts(), cgroups(), interfaces(), files(), filters())
}

// processes lists those that run drowse's program, or a copy of it.
func processes() []string {
	var found []string
	for _, dir := range glob("/proc/[0-9]*") {
		exe, err := os.Readlink(dir + "/exe")
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		text := strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " "))
		if err == nil && (strings.Contains(exe, "drowse") || strings.Contains(exe, "memfd:") || strings.Contains(text, "drowse")) {
			found = append(found, fmt.Sprintf("process %s %.200s", filepath.Base(dir), text))
		}
	}
	return found
}

// mounts lists mount points, and the network namespaces that are mounted. What
// systemd mounts for its own services comes and goes.
func mounts() []string {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		at := f[4]
		if !strings.HasPrefix(at, "/run/credentials/") && !strings.HasPrefix(at, "/run/user/") && at != "/proc/sys/fs/binfmt_misc" {
			found = append(found, "mount "+at)
		}
	}
	return found
}

// home matches the cgroup in which those of the sandboxes are, and that of the
// process that keeps it alive. It is made once and stays until the next boot.
var home = regexp.MustCompile(`/(drowse-sandboxes\.scope(/keeper)?|drowse)$`)

// cgroups lists the control groups with drowse in their path.
func cgroups() []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, "drowse") && !home.MatchString(path) {
			found = append(found, "cgroup "+path)
		}
		return nil // what is gone by now is no error
	})
	return found
}

func interfaces() []string {
	all, err := net.Interfaces()
	if err != nil {
		return []string{err.Error()}
	}
	found := make([]string, len(all))
	for i, l := range all {
		found[i] = "interface " + l.Name
	}
	return found
}

// files lists what lies in directories for temporary files.
func files() []string {
	var found []string
	for _, pattern := range []string{"/tmp/*", "/var/tmp/*", "/dev/shm/*", "/run/*", "/run/netns/*", "/var/lib/*", "/srv/*"} {
		for _, path := range glob(pattern) {
			name := filepath.Base(path)
			if strings.HasPrefix(name, "drowse") && !usual(path) || strings.Contains(name, "runsc") || strings.Contains(name, "gvisor") || strings.HasPrefix(path, "/run/netns/") {
				found = append(found, "file "+path)
			}
		}
	}
	return found
}

// usual are the server's own directories, which outlive it.
func usual(path string) bool { return path == "/var/lib/drowse" || path == "/srv/drowse" }

func filters() []string {
	rules, err := output("nft", "list", "ruleset")
	if err != nil {
		return []string{err.Error()}
	}
	return []string{"packet filter " + rules}
}

func glob(pattern string) []string {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		panic(err)
	}
	return paths
}
