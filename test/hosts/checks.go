package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// Why sandboxes end that take more than they may: gVisor ends where it can start
// no thread.
const (
	outOfMemory    client.Reason = "OutOfMemory"
	outOfProcesses client.Reason = "OutOfProcesses"
)

// A check is something that must hold on every machine.
type check struct {
	name   string
	about  string
	served bool // the service must be running, and is started
	make   func(*guest, context.Context) error
}

// checks are made in this order. A failed one does not keep the next from being
// made.
var checks = []check{
	{"doctor", "finds nothing wrong, and leaves nothing", false, (*guest).doctor},
	{"demo", "with a server started by hand, and leaves nothing", false, (*guest).demo},
	{"service", "starts under systemd", false, (*guest).service},
	{"pause and wake", "five times, with nothing left on the host while asleep", true, (*guest).cycles},
	{"limits", "are in the kernel: memory (twice while frozen), swap, CPUs, processes", true, (*guest).limits},
	{"memory limit", "ends the greediest process, or the sandbox if that does not help, and why says so", true, (*guest).memoryLimit},
	{"process limit", "bounds a sandbox, and its neighbour goes on", true, (*guest).processLimit},
	{"disk limit", "pauses a sandbox, and why says so", true, (*guest).diskLimit},
	{"disk rates", "hold what a sandbox reads and writes; a pause does not wait for that", true, (*guest).diskRates},
	{"firewall", "of the host drops what comes in or is forwarded; sandboxes reach the outside", true, (*guest).firewall},
	{"clock", "of the host is set three hours on, and back", true, (*guest).clock},
	{"killed server", "kill -9; systemd starts it again, sandboxes go on", true, (*guest).killedServer},
	{"restart", "systemctl restart; sandboxes go on", true, (*guest).restart},
	{"stop pauses", "systemctl stop with --on-shutdown=pause", true, (*guest).stopPauses},
	{"reboot", "with a sandbox asleep and one that runs", true, (*guest).goDown},
	{"wake after reboot", "both go on where they were", true, (*guest).afterReboot},
	{"package upgrade", "under a sleeper: refused, or booted afresh where allowed", true, (*guest).upgrade},
	{"nothing left", "processes, mounts, namespaces, interfaces, cgroups, files", true, (*guest).nothingLeft},
}

// refusal is the only check of a machine that drowse cannot run on.
var refusal = check{"refused", "doctor and the service say why and what to do, and leave nothing", false, (*guest).refused}

// refused must say what the machine lacks, before and instead of starting.
func (g *guest) refused(ctx context.Context) error {
	why, err := os.ReadFile(media + "/refused")
	if err != nil {
		return err
	}
	const remedy = "systemd.unified_cgroup_hierarchy=1"
	out, err := output(binary, "doctor", "--state-dir", g.StateDir)
	if err == nil || !strings.Contains(out, string(why)) || !strings.Contains(out, remedy) {
		return fmt.Errorf("doctor ended with %v, and does not say %q and %q: %s", err, why, remedy, out)
	}
	err = g.service(ctx)
	if err == nil || !strings.Contains(err.Error(), string(why)) || !strings.Contains(err.Error(), remedy) {
		return fmt.Errorf("the service does not say %q and %q: %w", why, remedy, err)
	}
	if _, err := output("systemctl", "disable", "--now", "drowse"); err != nil {
		return err
	}
	return g.asBefore(ctx)
}

// doctor must find nothing wrong, and the machine is as it was. What it tries
// leaves no complaint about options in the kernel's log.
func (g *guest) doctor(ctx context.Context) error {
	if _, err := output(binary, "doctor", "--state-dir", g.StateDir); err != nil {
		return err
	}
	log, err := output("dmesg")
	if err != nil {
		return err
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "unrecognized mount option") {
			return fmt.Errorf("the kernel's log says: %s", strings.TrimSpace(line))
		}
	}
	return g.asBefore(ctx)
}

// demo starts a server of its own by hand, beside the service's.
func (g *guest) demo(ctx context.Context) error {
	if _, err := output(binary, "demo", "--state-dir", g.StateDir); err != nil {
		return err
	}
	return g.asBefore(ctx)
}

// service installs drowse as the unit's first lines say.
func (g *guest) service(ctx context.Context) error {
	if _, err := output("cp", media+"/drowse.service", unit); err != nil {
		return err
	}
	if err := g.configure("keep"); err != nil {
		return err
	}
	if _, err := output("systemctl", "enable", "--now", "drowse"); err != nil {
		return g.withJournal(err)
	}
	return g.serves(ctx)
}

// configure writes the service's settings, with more lines of them.
func (g *guest) configure(onShutdown string, more ...string) error {
	text := "DROWSE_ON_SHUTDOWN=" + onShutdown + "\n" + strings.Join(more, "")
	if g.StateDir != "/var/lib/drowse" {
		text += "DROWSE_STATE_DIR=" + g.StateDir + "\n"
	}
	return os.WriteFile(settings, []byte(text), 0o644)
}

// cycles pauses and wakes a sandbox five times.
func (g *guest) cycles(ctx context.Context) error {
	c, err := g.counter(ctx, client.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err := g.exec(ctx, c.ID, "sh", "-c", "echo kept >note"); err != nil {
		return err
	}
	for range 5 {
		if err := g.client.Pause(ctx, c.ID); err != nil {
			return g.withJournal(err)
		}
		if err := g.asleep(ctx, c.ID); err != nil {
			return err
		}
		if c, err = g.goesOn(ctx, c, 1); err != nil {
			return g.withJournal(err)
		}
	}
	if note, err := g.exec(ctx, c.ID, "cat", "note"); err != nil || note != "kept" {
		return fmt.Errorf("the file has %q, %w", note, err)
	}
	return g.kill(ctx, c.ID)
}

// memoryLimit lets a process of a sandbox take more memory than the sandbox may:
// it is ended, and all else goes on. Files in memory stay when processes are
// ended, so they end the sandbox.
func (g *guest) memoryLimit(ctx context.Context) error {
	c, err := g.counter(ctx, client.CreateOptions{MemoryMiB: 192})
	if err != nil {
		return err
	}
	sb, _, err := g.client.Open(ctx, c.ID)
	if err != nil {
		return err
	}
	exit, err := sb.Run(ctx, client.Command{Args: []string{"python3", "-c", "b'x' * (600 << 20)"}})
	if err != nil {
		return g.withJournal(err)
	}
	if !strings.HasPrefix(exit.Reason, "out of memory: process ") {
		return g.withJournal(fmt.Errorf("it took 600 MiB where 192 are allowed, and ended with %+v", exit))
	}
	if _, err := g.goesOn(ctx, c, 0); err != nil {
		return g.withJournal(err)
	}
	// The sandbox may end under the command, and then the command cannot say how.
	_, _ = sb.As("root").Run(ctx, client.Command{Args: []string{"sh", "-c", "for dir in /dev/shm /run /tmp; do dd if=/dev/zero of=$dir/hog bs=1M count=600; done"}})
	err = poll(ctx, func() error {
		info, err := g.client.Find(ctx, sb.ID)
		if err == nil && info.Tombstone == nil {
			err = errors.New("its files take 600 MiB of memory where 192 are allowed, and it goes on")
		}
		if err == nil && info.Tombstone.Reason != outOfMemory {
			err = fmt.Errorf("it ended by %s (%s), want %s", info.Tombstone.Reason, info.Tombstone.Detail, outOfMemory)
		}
		return err
	})
	if err != nil {
		return g.withJournal(err)
	}
	why, err := output(binary, "why", "--state-dir", g.StateDir, sb.ID)
	if err == nil && !strings.Contains(why, string(outOfMemory)) {
		err = fmt.Errorf("drowse why does not tell: %s", why)
	}
	return err
}

// processLimit lets a sandbox start more processes than it may. It is refused
// the rest or ends, and its neighbour goes on.
func (g *guest) processLimit(ctx context.Context) error {
	neighbour, err := g.counter(ctx, client.CreateOptions{})
	if err != nil {
		return err
	}
	const tasks, bomb = 256, 200 // a process takes two tasks
	sb, err := g.create(ctx, client.CreateOptions{PIDs: tasks})
	if err != nil {
		return err
	}
	// Each process adds a byte when it runs.
	_, _ = g.exec(ctx, sb.ID, "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do (printf x >>started; exec sleep 600) & i=$((i+1)); done; sleep 5", bomb))
	info, err := g.client.Find(ctx, sb.ID)
	if err != nil {
		return err
	}
	if info.Tombstone == nil {
		out, err := g.exec(ctx, sb.ID, "sh", "-c", "wc -c <started")
		if err != nil {
			return err
		}
		if n, err := strconv.Atoi(out); err != nil || n >= bomb {
			return fmt.Errorf("%s of %d processes ran where %d tasks are allowed (%v)", out, bomb, tasks, err)
		}
		if err := g.kill(ctx, sb.ID); err != nil {
			return err
		}
	} else if info.Tombstone.Reason != outOfProcesses {
		return fmt.Errorf("it ended by %s (%s), want %s", info.Tombstone.Reason, info.Tombstone.Detail, outOfProcesses)
	}
	if _, err := g.goesOn(ctx, neighbour, 0); err != nil {
		return fmt.Errorf("its neighbour: %w", err)
	}
	return g.kill(ctx, neighbour.ID)
}

// diskLimit lets a sandbox write more than it may. It is paused and says why.
func (g *guest) diskLimit(ctx context.Context) error {
	sb, err := g.create(ctx, client.CreateOptions{DiskMiB: 64})
	if err != nil {
		return err
	}
	_, _ = g.exec(ctx, sb.ID, "sh", "-c", "head -c 100M /dev/zero >big; sleep 600")
	if err := poll(ctx, func() error { return g.is(ctx, sb.ID, client.Paused) }); err != nil {
		return err
	}
	why, err := output(binary, "why", "--state-dir", g.StateDir, sb.ID)
	if err == nil && !strings.Contains(why, "its files take") {
		err = fmt.Errorf("drowse why does not tell: %s", why)
	}
	return errors.Join(err, g.kill(ctx, sb.ID))
}

// killedServer kills the server. systemd starts it again, and its sandbox has
// not noticed.
func (g *guest) killedServer(ctx context.Context) error {
	return g.sandboxLives(ctx, func() error {
		was, err := mainPID()
		if err != nil {
			return err
		}
		if _, err := output("kill", "-9", was); err != nil {
			return err
		}
		return poll(ctx, func() error {
			now, err := mainPID()
			if err == nil && (now == was || now == "0") {
				err = errors.New("systemd has not started the server again")
			}
			return err
		})
	})
}

func mainPID() (string, error) {
	return output("systemctl", "show", "drowse", "--property=MainPID", "--value")
}

// restart restarts the service while a sandbox runs.
func (g *guest) restart(ctx context.Context) error {
	return g.sandboxLives(ctx, func() error {
		_, err := output("systemctl", "restart", "drowse")
		return err
	})
}

// sandboxLives does something to the server while a sandbox counts.
func (g *guest) sandboxLives(ctx context.Context, do func() error) error {
	c, err := g.counter(ctx, client.CreateOptions{})
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return g.withJournal(err)
	}
	if err := g.serves(ctx); err != nil {
		return err
	}
	if _, err := g.goesOn(ctx, c, 0); err != nil {
		return g.withJournal(err)
	}
	return g.kill(ctx, c.ID)
}

// stopPauses stops a service that pauses its sandboxes, and starts it again.
func (g *guest) stopPauses(ctx context.Context) error {
	c, err := g.counter(ctx, client.CreateOptions{})
	if err != nil {
		return err
	}
	if err := g.configure("pause"); err != nil {
		return err
	}
	if _, err := output("systemctl", "restart", "drowse"); err != nil { // keeps it: the old settings
		return g.withJournal(err)
	}
	if err := g.serves(ctx); err != nil {
		return err
	}
	if _, err := output("systemctl", "stop", "drowse"); err != nil {
		return g.withJournal(err)
	}
	if left := processes(); len(left) > 0 {
		return g.withJournal(fmt.Errorf("processes after the stop: %s", strings.Join(left, ", ")))
	}
	if err := g.serves(ctx); err != nil {
		return err
	}
	if err := g.is(ctx, c.ID, client.Paused); err != nil {
		return g.withJournal(err)
	}
	if _, err := g.goesOn(ctx, c, 1); err != nil {
		return g.withJournal(err)
	}
	return g.kill(ctx, c.ID)
}

// goDown reboots the machine with a sandbox that sleeps and one that runs, which
// the service pauses.
func (g *guest) goDown(ctx context.Context) error {
	if err := g.configure("pause"); err != nil {
		return err
	}
	if _, err := output("systemctl", "restart", "drowse"); err != nil {
		return g.withJournal(err)
	}
	if err := g.serves(ctx); err != nil {
		return err
	}
	for _, name := range []string{"sleeper", "runner"} {
		c, err := g.counter(ctx, client.CreateOptions{})
		if err != nil {
			return err
		}
		g.Sleepers[name] = c
	}
	if err := g.client.Pause(ctx, g.Sleepers["sleeper"].ID); err != nil {
		return err
	}
	return errReboot
}

func (g *guest) afterReboot(ctx context.Context) error {
	if len(g.Sleepers) != 2 {
		return errors.New("there were no sandboxes at the reboot")
	}
	for name, c := range g.Sleepers {
		if err := g.is(ctx, c.ID, client.Paused); err != nil {
			return g.withJournal(fmt.Errorf("%s: %w", name, err))
		}
		if _, err := g.goesOn(ctx, c, 1); err != nil {
			return g.withJournal(fmt.Errorf("%s: %w", name, err))
		}
		if err := g.kill(ctx, c.ID); err != nil {
			return err
		}
	}
	return nil
}

// upgrade replaces a package of the host, which sandboxes see in /usr, under two
// sleepers. Two have a file of it open: one is refused and stays as it is, the
// other boots afresh, as it was told to. The third uses nothing of it and goes on.
func (g *guest) upgrade(ctx context.Context) error {
	if err := installPackage("1"); err != nil {
		return err
	}
	refused, err := g.counter(ctx, client.CreateOptions{})
	if err != nil {
		return err
	}
	fresh, err := g.counter(ctx, client.CreateOptions{FilesystemFallback: new(true)})
	if err != nil {
		return err
	}
	unconcerned, err := g.counter(ctx, client.CreateOptions{})
	if err != nil {
		return err
	}
	for _, c := range []counter{refused, fresh} {
		if _, err := g.exec(ctx, c.ID, "sh", "-c", "sleep 1d < /usr/share/hosts-probe >/dev/null 2>&1 &"); err != nil {
			return err
		}
	}
	for _, c := range []counter{refused, fresh, unconcerned} {
		if err := g.client.Pause(ctx, c.ID); err != nil {
			return g.withJournal(err)
		}
	}
	if err := installPackage("2"); err != nil {
		return err
	}
	var e *client.Error
	if _, err := g.client.Resume(ctx, refused.ID, time.Hour); !errors.As(err, &e) || e.Code != "checkpoint_unreadable" {
		return fmt.Errorf("resume after the upgrade: %w, want checkpoint_unreadable", err)
	}
	if err := g.is(ctx, refused.ID, client.Paused); err != nil {
		return err
	}
	if _, err := g.client.Resume(ctx, fresh.ID, time.Hour); err != nil {
		return fmt.Errorf("resume with filesystemFallback: %w", err)
	}
	if out, err := g.exec(ctx, fresh.ID, "sh", "-c", "cat /usr/share/hosts-probe count"); err != nil || !strings.HasPrefix(out, "version 2") {
		return fmt.Errorf("after it booted afresh it sees %q, %w", out, err)
	}
	if now, err := g.look(ctx, unconcerned.ID); err != nil || now.PID != unconcerned.PID || now.Count < unconcerned.Count {
		return fmt.Errorf("a sandbox that uses nothing of the package is %+v, was %+v: %w", now, unconcerned, err)
	}
	return errors.Join(g.kill(ctx, refused.ID), g.kill(ctx, fresh.ID), g.kill(ctx, unconcerned.ID))
}

// installPackage builds and installs a version of a package with one file.
func installPackage(version string) error {
	dir, err := os.MkdirTemp("", "probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	control := "Package: hosts-probe\nVersion: " + version + "\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: a file that changes\n"
	for name, text := range map[string]string{"DEBIAN/control": control, "usr/share/hosts-probe": "version " + version + "\n"} {
		if err := os.MkdirAll(dir+"/p/"+name[:strings.LastIndexByte(name, '/')], 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(dir+"/p/"+name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if _, err := output("dpkg-deb", "--build", dir+"/p", dir+"/probe.deb"); err != nil {
		return err
	}
	_, err = output("dpkg", "--install", dir+"/probe.deb")
	return err
}

// nothingLeft ends every sandbox, stops the service, and compares the machine
// with what it was.
func (g *guest) nothingLeft(ctx context.Context) error {
	all, err := g.client.List(ctx, client.ListOptions{})
	if err != nil {
		return err
	}
	for _, info := range all { // of checks that failed
		if err := g.kill(ctx, info.ID); err != nil {
			return err
		}
	}
	if err := poll(ctx, g.noFiles); err != nil {
		return err
	}
	if _, err := output("systemctl", "disable", "--now", "drowse"); err != nil {
		return g.withJournal(err)
	}
	return g.asBefore(ctx)
}
