package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// boot boots a machine, follows its checks, and switches it off. What goes wrong
// is in the result.
func boot(ctx context.Context, o options, m machine, img image) result {
	ctx, cancel := context.WithTimeoutCause(ctx, o.within, fmt.Errorf("the machine was not done after %s", o.within))
	defer cancel()
	begin := time.Now()
	r := newResult(m)
	if chosen, err := chooseChecks(o.checks); err == nil && m.refused == "" { // run has looked
		r.Wanted = len(chosen)
	}
	dir, err := os.MkdirTemp("", "hosts-"+m.name+"-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = follow(ctx, o, m, img, dir, &r)
	}
	r.Seconds = int(time.Since(begin).Seconds())
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		r.Failure = err.Error()
		fmt.Printf("%s: %v\nthe end of its console:\n%s\n", m.name, err, console(dir))
	}
	fmt.Printf("%s: %s in %d s, with %d s of CPU\n", m.name, r.summary(), r.Seconds, r.CPUSeconds)
	return r
}

func follow(ctx context.Context, o options, m machine, img image, dir string, r *result) error {
	if err := payload(ctx, o, m, dir); err != nil {
		return fmt.Errorf("make the drive with the programs: %w", err)
	}
	cmd := qemu(ctx, m, img, dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	panicked := make(chan bool, 1)
	go func() { panicked <- killAtPanic(cmd.Process, filepath.Join(dir, "console"), over) }()
	done := r.read(m.name, out)
	close(over)
	if done { // there is nothing on its disks that is still wanted
		_ = cmd.Process.Kill()
	}
	err = cmd.Wait()
	r.CPUSeconds = int((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	if <-panicked {
		return errors.New("the machine's kernel panicked")
	}
	if !done {
		return fmt.Errorf("the machine ended before its checks did: %v: %s", err, lastLines(complaints.String(), 5))
	}
	return nil
}

// killAtPanic ends a machine whose kernel has panicked: it would do nothing more
// until its time is over.
func killAtPanic(p *os.Process, console string, over <-chan struct{}) (panicked bool) {
	for {
		select {
		case <-over:
			return false
		case <-time.After(5 * time.Second):
		}
		if text, err := os.ReadFile(console); err == nil && bytes.Contains(text, []byte("Kernel panic - not syncing")) {
			_ = p.Kill()
			return true
		}
	}
}

// qemu is the machine's command line. Writes to the image's disk are lost with
// the machine; they outlive its reboots.
func qemu(ctx context.Context, m machine, img image, dir string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		// Without what is slower under emulation than its substitute, and without
		// cmpxchg16b: QEMU 7.2 can leave wrong flags behind where that one stands
		// in Linux 6.12, which panics of it.
		"-machine", "q35", "-accel", "tcg,tb-size=512", "-cpu", "max,-erms,-la57,-cx16",
		"-m", strconv.Itoa(cmp.Or(m.memoryMiB, usualMemory)),
		// While the machine computes, its clock goes by the instructions that
		// it executes, a nanosecond each. So a timeout inside means the same
		// however busy this machine is.
		"-icount", "shift=0",
		"-kernel", img.kernel, "-initrd", img.initrd,
		"-append", strings.Join(append([]string{"root=/dev/vda", "rw", "console=ttyS0", "mitigations=off"}, m.kernelArgs...), " "),
		"-drive", "if=virtio,format=raw,snapshot=on,cache=unsafe,file="+img.disk,
		"-drive", "if=virtio,format=raw,readonly=on,file="+filepath.Join(dir, "payload"),
		"-drive", "if=virtio,format=raw,cache=unsafe,discard=unmap,file="+filepath.Join(dir, "state"),
		"-nic", "user,restrict=on,model=virtio-net-pci", // an interface with a default route to nowhere
		"-device", "virtio-rng-pci", "-display", "none", "-monitor", "none",
		"-serial", "file:"+filepath.Join(dir, "console"), "-serial", "stdio",
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	return cmd
}

// payload makes the drives that are the machine's own: the programs and their
// settings, and room for the state directory.
func payload(ctx context.Context, o options, m machine, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	for name, from := range map[string]string{"hosts": self, "drowse": o.drowse, "drowse.service": o.unit,
		policyName: filepath.Join(filepath.Dir(o.unit), policyName)} {
		from, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		if err := exec.CommandContext(ctx, "cp", "-L", from, filepath.Join(files, name)).Run(); err != nil {
			return fmt.Errorf("%s is missing: run make build first (%w)", from, err)
		}
	}
	for name, text := range map[string]string{"filesystem": m.filesystem, "checks": o.checks, "refused": m.refused} {
		if err := os.WriteFile(filepath.Join(files, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	image := filepath.Join(dir, "payload")
	if out, err := exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", files, image, "256M").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	state, err := os.Create(filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	defer state.Close()
	return state.Truncate(6 << 30)
}

// read takes in what the checks write to the serial line, until they say that
// they are done.
func (r *result) read(name string, line io.Reader) (done bool) {
	in := bufio.NewScanner(line)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var m message
		// The firmware writes there too, before the kernel starts.
		at := strings.Index(in.Text(), messagePrefix)
		if at < 0 || json.Unmarshal([]byte(in.Text()[at+len(messagePrefix):]), &m) != nil {
			continue
		}
		switch {
		case m.Done:
			return true
		case m.About != nil:
			r.About = *m.About
			fmt.Printf("%s: Linux %s, systemd %s, cgroup %s\n", name, m.About.Kernel, m.About.Systemd, m.About.Cgroup)
		case m.Outcome != nil:
			r.Outcomes = append(r.Outcomes, *m.Outcome)
			fmt.Printf("%s: %s\n", name, m.Outcome)
		}
	}
	return false
}

// console returns the end of what the kernel and systemd wrote.
func console(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, "console"))
	if err != nil {
		return err.Error()
	}
	return lastLines(string(b), 30)
}
