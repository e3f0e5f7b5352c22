package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// fromMilliseconds turns what JavaScript measured into a duration.
func fromMilliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// create measures the way from nothing to the first output of a command.
func (b *bench) create(ctx context.Context) (err error) {
	s, err := startSDK(ctx, b.o.sdk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var created []float64
	c, err := b.compare(ctx, b.runs(50),
		func() (time.Duration, error) {
			a, err := s.do("create")
			created = append(created, a.Created)
			return fromMilliseconds(a.First), err
		},
		func() (time.Duration, error) {
			// What the SDK's echo becomes in the sandbox.
			c, err := b.raw.prepare("/bin/bash", "-l", "-c", "echo ok")
			if err != nil {
				return 0, err
			}
			first, err := c.run(ctx)
			return first, errors.Join(err, c.remove(ctx))
		})
	if err != nil {
		return err
	}
	b.report.compared("B1", "create → first output of a command, JS SDK", "`runsc run` of the same command", c, 1.0, 0.6)
	b.report.note("Of the create to first output, the call to create takes %.1f ms (p50), the command the rest.", median(created[warmup:]))
	return nil
}

// exec measures a command in a sandbox that runs.
func (b *bench) exec(ctx context.Context) (err error) {
	s, err := startSDK(ctx, b.o.sdk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if _, err := s.do("open"); err != nil {
		return err
	}
	defer func() {
		_, closeErr := s.do("close")
		err = errors.Join(err, closeErr)
	}()
	c, err := b.raw.prepare("/bin/sleep", "infinity")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove(ctx)) }()
	if err := errors.Join(c.create(ctx), c.start(ctx)); err != nil {
		return err
	}
	for _, against := range []struct {
		text string
		args []string
	}{
		{"`runsc exec` of the same command (`bash -l -c true`)", []string{"/bin/bash", "-l", "-c", "true"}},
		{"`runsc exec` of `/bin/true`, without a shell", []string{"/bin/true"}},
	} {
		compared, err := b.compare(ctx, b.runs(150),
			func() (time.Duration, error) {
				a, err := s.do("exec")
				return fromMilliseconds(a.Done), err
			},
			func() (time.Duration, error) {
				start := time.Now()
				err := c.exec(ctx, against.args...)
				return time.Since(start), err
			})
		if err != nil {
			return err
		}
		b.report.compared("B10", "`true` through the JS SDK, warm", against.text, compared, 0, 0.5)
	}
	return nil
}

// The agent may take so much beside what gVisor takes for an idle process.
const agentAllowance = 8 << 20

// idleWindow is how long an idle sandbox's CPU time is watched.
const idleWindow = 5 * time.Second

// idle measures what an idle sandbox holds.
func (b *bench) idle(ctx context.Context) error {
	n := b.runs(10)
	var memory, bare pairs
	var busy []float64
	for range n {
		ours, theirs, cpu, err := b.idleOnce(ctx)
		if err != nil {
			return err
		}
		memory = append(memory, pair{ours: mebibytes(ours), raw: mebibytes(theirs + agentAllowance)})
		bare = append(bare, pair{ours: mebibytes(ours), raw: mebibytes(theirs)})
		busy = append(busy, 100*float64(cpu)/float64(idleWindow))
	}
	b.report.measured("B17", "idle sandbox, PSS of all its processes", "MiB", "`runsc run sleep` + 8 MiB for the agent", memory, 1.3, 1)
	b.report.note("An idle sandbox's processes hold %.1f MiB (p50), `sleep` in a bare container %.1f MiB; it uses %.2f %% of a core (p50 over windows of %s; goal 0.1 %%).",
		median(bare.ours()), median(bare.raw()), median(busy), idleWindow)
	return nil
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }

func (b *bench) idleOnce(ctx context.Context) (ours, theirs int64, cpu time.Duration, err error) {
	box, err := b.server.client.Create(ctx, client.CreateOptions{Timeout: guestTimeout})
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, b.server.client.Kill(ctx, box.ID), awaitGone(ctx, box.ID)) }()
	c, err := b.raw.prepare("/bin/sleep", "infinity")
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, c.remove(ctx)) }()
	if err := errors.Join(c.create(ctx), c.start(ctx), sleep(ctx, time.Second)); err != nil {
		return 0, 0, 0, err
	}
	list, err := processes(box.ID)
	if err != nil {
		return 0, 0, 0, err
	}
	before, err := cpuOf(list)
	if err != nil {
		return 0, 0, 0, err
	}
	if err := sleep(ctx, idleWindow); err != nil {
		return 0, 0, 0, err
	}
	after, err := cpuOf(list)
	if err != nil {
		return 0, 0, 0, err
	}
	if ours, err = pss(list); err != nil {
		return 0, 0, 0, err
	}
	if list, err = processes(c.id); err != nil {
		return 0, 0, 0, err
	}
	theirs, err = pss(list)
	return ours, theirs, after - before, err
}

// sleep measures pauses and wakes of guests of several sizes.
func (b *bench) sleep(ctx context.Context) error {
	for _, m := range []struct {
		row                             string
		holds                           size
		n                               int
		wakeBudget, wakeGoal, pauseGoal float64
	}{
		{row: "B3", holds: size{memory: 0}, n: 50, wakeBudget: 0.8, wakeGoal: 0.6, pauseGoal: 1.15},
		{row: "B3", holds: size{memory: 64}, n: 50, wakeBudget: 0.8, wakeGoal: 0.6, pauseGoal: 1.15},
		{row: "B4", holds: size{memory: 512}, n: 30, wakeBudget: 1.1, pauseGoal: 1.15},
		{row: "B4", holds: size{memory: 768}, n: 30, wakeBudget: 1.1, pauseGoal: 1.15},
		{row: "–", holds: size{file: 256}, n: 20},
	} {
		res, err := b.measureSleep(ctx, m.holds, b.runs(m.n))
		if err != nil {
			return fmt.Errorf("%s: %w", m.holds, err)
		}
		pauseBudget := 0.0
		if m.pauseGoal > 0 {
			pauseBudget = 1.3
		}
		b.report.compared(m.row, fmt.Sprintf("wake → first byte of an HTTP answer, %s", m.holds),
			"`runsc create` + `restore` → HTTP", res.wake, m.wakeBudget, m.wakeGoal)
		b.report.compared("B6", fmt.Sprintf("pause until committed, %s", m.holds),
			"`runsc checkpoint` + fsync", res.pause, pauseBudget, m.pauseGoal)
		b.report.wrote(m.holds.String(), res.written)
	}
	return nil
}

// files measures what a pause writes for a guest that has written files.
func (b *bench) files(ctx context.Context) error {
	list, err := b.measureFiles(ctx, size{memory: 64}, 64, b.runs(10))
	if err != nil {
		return err
	}
	b.report.wrote("64 MiB, and 64 MiB of new files", list)
	return nil
}

// starts measures the server's own start, with the binary in the page cache.
func (b *bench) starts(ctx context.Context) error {
	info, err := os.Stat(b.o.drowse)
	if err != nil {
		return err
	}
	b.report.plain("B20", "size of the binary", "MB", []float64{float64(info.Size()) / 1e6}, 70)
	if err := b.server.stop(); err != nil {
		return err
	}
	var fresh, again []float64
	for i := range b.runs(20) {
		dir := filepath.Join(b.o.work, fmt.Sprintf("start%d", i))
		for _, times := range []*[]float64{&fresh, &again} {
			s, err := startServer(ctx, b.o.drowse, dir, filepath.Join(b.o.work, "start.log"))
			if err != nil {
				return err
			}
			*times = append(*times, milliseconds(s.ready))
			if err := s.stop(); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	b.report.plain("B20", "server start → first answer, new state directory", "ms", fresh, 0)
	b.report.plain("B20", "server start → first answer, later starts", "ms", again, 150)
	b.server, err = startServer(ctx, b.o.drowse, b.stateDir(), b.serverLog())
	return err
}
