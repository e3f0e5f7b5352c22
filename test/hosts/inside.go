package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

const (
	media    = "/media/hosts"            // where the programs are
	progress = "/var/lib/hosts/progress" // how far the checks are
	outLine  = "/dev/ttyS1"              // where the outcome goes
	settings = "/etc/default/drowse"     // of the service
	unit     = "/etc/systemd/system/drowse.service"
	binary   = "/usr/local/bin/drowse"
	within   = 6 * time.Minute // one check; emulation is slow

	policyName = "drowse.cil" // what SELinux has to allow, beside the unit
)

// A guest is the machine that is checked, from within. Its exported fields
// outlive a reboot.
type guest struct {
	Next     int    // the check that comes next
	StateDir string // of the server
	Before   []string
	Sleepers map[string]counter // by what they sleep for
	Made     []string           // the ids of all sandboxes

	line   io.Writer
	client *client.Client
}

// errReboot is what a check returns once the machine is going down.
var errReboot = errors.New("the machine reboots")

// inside makes the checks, or those after the reboot.
func inside() error {
	line, err := openLine()
	if err != nil {
		return err
	}
	g := &guest{line: line, Sleepers: map[string]counter{}}
	if err := g.load(); errors.Is(err, os.ErrNotExist) {
		err = g.first()
		if err != nil {
			g.say(message{Outcome: &outcome{Check: "prepare", Failure: err.Error()}})
			g.say(message{Done: true})
			return err
		}
	} else if err != nil {
		return err
	}
	only, err := os.ReadFile(filepath.Join(media, "checks"))
	if err != nil {
		return err
	}
	chosen, err := chooseChecks(string(only))
	if err != nil {
		return err
	}
	if why, err := os.ReadFile(filepath.Join(media, "refused")); err != nil {
		return err
	} else if len(why) > 0 {
		chosen = []check{refusal}
	}
	for g.Next < len(chosen) {
		c := chosen[g.Next]
		// Told before, so that a machine that crashes in a check does not begin
		// it again.
		g.Next++
		if err := g.save(); err != nil {
			return err
		}
		begin := time.Now()
		err := g.try(c)
		o := outcome{Check: c.name, Seconds: time.Since(begin).Seconds()}
		if err != nil && !errors.Is(err, errReboot) {
			o.Failure = err.Error()
		}
		g.say(message{Outcome: &o})
		if errors.Is(err, errReboot) {
			return g.reboot()
		}
	}
	g.say(message{Done: true})
	return nil
}

func (g *guest) try(c check) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), within, fmt.Errorf("the check took longer than %s", within))
	defer cancel()
	if c.served {
		if err := g.serves(ctx); err != nil {
			return err
		}
	}
	err := c.make(g, ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// openLine opens the serial line as it is, without a terminal's conversions.
func openLine() (io.Writer, error) {
	if out, err := exec.Command("stty", "-F", outLine, "raw", "-echo", "115200").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("set up %s: %w: %s", outLine, err, out)
	}
	return os.OpenFile(outLine, os.O_WRONLY, 0)
}

func (g *guest) say(m message) {
	b, err := json.Marshal(m)
	if err == nil {
		_, err = fmt.Fprintf(g.line, "%s%s\n", messagePrefix, b)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err) // for the journal: the line itself is gone
	}
}

func (g *guest) load() error {
	b, err := os.ReadFile(progress)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, g)
}

func (g *guest) save() error {
	b, err := json.Marshal(g)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(progress), 0o755); err != nil {
		return err
	}
	return os.WriteFile(progress, b, 0o644)
}

func (g *guest) reboot() error {
	if err := g.save(); err != nil {
		return err
	}
	return exec.Command("systemctl", "reboot").Run()
}

// first prepares the machine as its user would: the binary, and a disk for the
// state directory if that is to be on another file system than the root.
func (g *guest) first() error {
	filesystem, err := os.ReadFile(filepath.Join(media, "filesystem"))
	if err != nil {
		return err
	}
	g.StateDir = "/var/lib/drowse"
	if fs := string(filesystem); fs != "ext4" {
		g.StateDir = "/srv/drowse"
		if err := mountDisk(fs, "/dev/vdc", "/srv"); err != nil {
			return err
		}
	}
	if _, err := output("cp", filepath.Join(media, "drowse"), binary); err != nil {
		return err
	}
	// Without SELinux nothing has to be loaded.
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		if _, err := output("semodule", "-i", filepath.Join(media, policyName)); err != nil {
			return err
		}
	}
	// An interface gets its name while the machine starts.
	if _, err := output("udevadm", "settle"); err != nil {
		return err
	}
	g.Before = hostState() // nothing of drowse has run
	return g.introduce()
}

func mountDisk(filesystem, device, at string) error {
	if _, err := output("mkfs."+filesystem, device); err != nil {
		return err
	}
	fstab, err := os.OpenFile("/etc/fstab", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer fstab.Close()
	if _, err := fmt.Fprintf(fstab, "%s %s %s defaults 0 2\n", device, at, filesystem); err != nil {
		return err
	}
	_, err = output("mount", at)
	return err
}

// introduce says what machine this is.
func (g *guest) introduce() error {
	kernel, err := output("uname", "-r")
	if err != nil {
		return err
	}
	version, err := output("systemctl", "--version")
	if err != nil {
		return err
	}
	drowse, err := output(binary, "version")
	if err != nil {
		return err
	}
	doctor, _ := output(binary, "doctor", "--state-dir", g.StateDir) // a check says what is wrong
	g.say(message{About: &about{
		Kernel: kernel, Systemd: strings.Fields(version)[1], Cgroup: cgroupVersion(),
		Drowse: strings.SplitN(drowse, "\n", 2)[0], Doctor: doctor,
	}})
	return nil
}

func cgroupVersion() string {
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	switch {
	case exists("/sys/fs/cgroup/cgroup.controllers"):
		return "v2"
	case exists("/sys/fs/cgroup/unified/cgroup.procs"):
		return "hybrid"
	}
	return "v1"
}

// output runs a command and returns what it printed, without the last newline.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, lastLines(text, 10))
	}
	return text, err
}

// serves makes sure that the server answers, so that one failed check does not
// fail those after it, and connects to it.
func (g *guest) serves(ctx context.Context) error {
	if _, err := output("systemctl", "start", "drowse"); err != nil {
		return g.withJournal(err)
	}
	key, err := os.ReadFile(filepath.Join(g.StateDir, "api-key"))
	if err != nil {
		return err
	}
	g.client, err = client.New(client.Options{APIKey: strings.TrimSpace(string(key))})
	if err != nil {
		return err
	}
	return g.withJournal(poll(ctx, func() error { return g.client.Health(ctx) }))
}

// withJournal adds what the service wrote last.
func (g *guest) withJournal(err error) error {
	if err == nil {
		return nil
	}
	journal, _ := output("journalctl", "-u", "drowse", "-n", "20", "-o", "cat", "--no-pager")
	return fmt.Errorf("%w\njournal of the service:\n%s", err, journal)
}

// poll calls f until it returns nil or the context ends.
func poll(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}
