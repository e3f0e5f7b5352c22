package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// diskRate is what a sandbox may read, and write, in the check of disk rates. In
// MiB per second, and so low that emulation alone is never as slow.
const diskRate = 4

// diskRates has the service limit what sandboxes read and write, and a sandbox
// write more: the rate holds, and a pause in the middle of a write does not wait
// for it. A sandbox that was started without a rate gets it with the new settings.
func (g *guest) diskRates(ctx context.Context) (err error) {
	old, err := g.create(ctx, client.CreateOptions{PIDs: 346})
	if err != nil {
		return err
	}
	if rules := rateRules("346"); len(rules) > 0 {
		return fmt.Errorf("a sandbox has disk rates that nobody asked for: %q", rules)
	}
	rates := fmt.Sprintf("DROWSE_DISK_READ_RATE=%d\nDROWSE_DISK_WRITE_RATE=%[1]d\n", diskRate)
	if err := g.restartWith(ctx, rates); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.restartWith(ctx, "")) }()
	if err := wantRates("346"); err != nil {
		return err
	}
	if err := g.kill(ctx, old.ID); err != nil {
		return err
	}
	sb, err := g.create(ctx, client.CreateOptions{PIDs: 347, MemoryMiB: 512, DiskMiB: 1024})
	if err != nil {
		return g.withJournal(err)
	}
	if err := wantRates("347"); err != nil {
		return err
	}
	begin := time.Now()
	if _, err := g.exec(ctx, sb.ID, "dd", "if=/dev/zero", "of=small", "bs=1M", "count=32", "conv=fsync"); err != nil {
		return err
	}
	if took := time.Since(begin); took < 32/diskRate*time.Second*3/4 {
		return fmt.Errorf("it wrote 32 MiB in %v; at %d MiB/s it takes %ds", took, diskRate, 32/diskRate)
	}
	begin = time.Now()
	if _, err := g.exec(ctx, sb.ID, "dd", "if=/dev/zero", "of=lazy", "bs=1M", "count=32"); err != nil {
		return err
	}
	if _, err := output("sync", "--file-system", g.StateDir); err != nil {
		return err
	}
	// With cgroup v1 the kernel does not know whose it is, and it takes no time.
	if took := time.Since(begin); cgroupVersion() == "v2" && took < 32/diskRate*time.Second*3/4 {
		return fmt.Errorf("32 MiB that it did not wait for were on the disk in %v; at %d MiB/s it takes %ds", took, diskRate, 32/diskRate)
	}
	return errors.Join(g.pausedWhileWriting(ctx, sb.ID), g.kill(ctx, sb.ID))
}

// pausedWhileWriting pauses and wakes a sandbox that waits for a write of a minute.
func (g *guest) pausedWhileWriting(ctx context.Context, id string) error {
	writing, cancel := context.WithCancel(ctx)
	defer cancel()
	const seconds = 75
	written := make(chan error, 1)
	go func() {
		_, err := g.exec(writing, id, "dd", "if=/dev/zero", "of=large", "bs=1M", fmt.Sprint("count=", seconds*diskRate), "conv=fsync")
		written <- err
	}()
	select {
	case err := <-written:
		return fmt.Errorf("%d MiB were on the disk at once, %w", seconds*diskRate, err)
	case <-time.After(5 * time.Second):
	}
	begin := time.Now()
	if err := g.client.Pause(ctx, id); err != nil {
		return g.withJournal(err)
	}
	if took := time.Since(begin); took > seconds*2/3*time.Second {
		return fmt.Errorf("the pause took %v: it waited for a write that is held back", took)
	}
	if _, err := g.exec(ctx, id, "true"); err != nil { // which wakes it
		return g.withJournal(err)
	}
	return wantRates("347")
}

// restartWith restarts the service with further settings.
func (g *guest) restartWith(ctx context.Context, more string) error {
	if err := g.configure("keep", more); err != nil {
		return err
	}
	if _, err := output("systemctl", "restart", "drowse"); err != nil {
		return g.withJournal(err)
	}
	return g.serves(ctx)
}

// wantRates compares the rates of the sandbox that may have so many processes.
func wantRates(pids string) error {
	bytes := diskRate << 20
	rules := rateRules(pids)
	want := fmt.Sprintf("rbps=%d wbps=%[1]d riops=max wiops=max", bytes)
	if cgroupVersion() != "v2" {
		want = fmt.Sprint(bytes)
	}
	var wrong []string
	for _, rule := range rules {
		if _, rate, _ := strings.Cut(rule, " "); rate != want {
			wrong = append(wrong, rule)
		}
	}
	if len(rules) == 0 || len(wrong) > 0 {
		return fmt.Errorf("the disk rates of the sandbox are %q, want %q of each", rules, want)
	}
	return nil
}

// rateRules returns the rates of sandboxes. A runtime that waits to be the next with
// the same limits has none yet.
func rateRules(pids string) (rules []string) {
	for _, group := range limitedGroups("pids.max", pids) {
		for _, name := range []string{"io.max", "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"} {
			for _, file := range cgroupFiles(group, name) {
				if text := contents(file); text != "" {
					rules = append(rules, strings.Split(text, "\n")...)
				}
			}
		}
	}
	return rules
}
