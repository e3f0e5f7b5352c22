package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// packages are on every machine: a small server with systemd. Python, curl and
// git are there for the sandboxes, which see the host's /usr.
var packages = []string{
	"systemd-sysv", "dbus", "udev", "kmod", "procps", "iproute2", "nftables", "python3", "curl", "git", "ca-certificates",
	"e2fsprogs", "xfsprogs", "btrfs-progs",
}

//go:embed image.sh
var imageScript string

// An image is what a machine boots from. Machines do not change it.
type image struct {
	disk, kernel, initrd string
}

// image returns the system's image, and makes it if the cache has none that
// was made of the same. Packages that Debian has updated since make no
// difference.
func (s system) image(ctx context.Context, cache string) (image, error) {
	sources, err := s.sources(ctx)
	if err != nil {
		return image{}, err
	}
	kernel := s.kernel
	if s.backports {
		kernel += "/" + s.suite + "-backports"
	}
	include := strings.Join(append([]string{kernel}, packages...), ",")
	if s.packages != "" {
		include += "," + s.packages
	}
	key := fmt.Sprintf("%x", sha256.Sum256([]byte(imageScript+s.suite+include+sources)))[:12]
	dir := filepath.Join(cache, s.suite+"-"+key)
	made := image{disk: filepath.Join(dir, "disk"), kernel: filepath.Join(dir, "vmlinuz"), initrd: filepath.Join(dir, "initrd")}
	if _, err := os.Stat(dir); err == nil {
		return made, nil
	}

	// It gets its name when it is whole, so an interrupted one is made again.
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return image{}, err
	}
	defer os.RemoveAll(work)
	fmt.Printf("making %s of packages: some minutes\n", dir)
	// Its mounts end with it, and none of them is there when work is removed.
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--", "bash", "-c", imageScript, "image.sh", s.suite, include, work)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stdin = strings.NewReader(sources)
	if out, err := cmd.CombinedOutput(); err != nil {
		return image{}, fmt.Errorf("%w: %s", err, lastLines(string(out), 20))
	}
	return made, os.Rename(work, dir)
}

// sources returns lines for apt's sources.list. The release comes from where
// this machine has its own Debian from.
func (s system) sources(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)").Output()
	if err != nil {
		return "", fmt.Errorf("list this machine's apt sources: %w", err)
	}
	var main, security string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] != "Packages" || f[2] != "main" {
			continue
		}
		switch suite := f[1]; {
		case strings.HasSuffix(suite, "-security"):
			security = f[3]
		case !strings.Contains(suite, "-") && strings.HasSuffix(strings.TrimRight(f[3], "/"), "/debian"):
			main = f[3]
		}
	}
	if main == "" {
		return "", errors.New("apt on this machine has no source of Debian's packages: see /etc/apt/sources.list")
	}
	lines := []string{debLine(main, s.suite)}
	if security != "" {
		lines = append(lines, debLine(security, s.suite+"-security"))
	}
	if s.backports {
		lines = append(lines, debLine(main, s.suite+"-backports"))
	}
	return strings.Join(lines, "\n") + "\n", nil
}

func debLine(uri, suite string) string {
	return "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + uri + " " + suite + " main"
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
