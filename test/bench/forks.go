package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// forks measures how long it takes until many sandboxes go on from one that runs, and
// what each takes. The raw tool's part is reckoned: one checkpoint, and as many times a
// container that is restored, one after the other.
func (b *bench) forks(ctx context.Context) error {
	for _, m := range []struct {
		children int
		holds    size
	}{
		{8, size{memory: 200}},
		{32, size{memory: 200}},
		{100, size{memory: 64}}, // of 200 they would take all memory of such a machine
	} {
		if err := b.measureForks(ctx, m.children, m.holds, b.runs(5)); err != nil {
			return fmt.Errorf("%d forks of %s: %w", m.children, m.holds, err)
		}
	}
	return nil
}

func (b *bench) measureForks(ctx context.Context, children int, holds size, n int) (err error) {
	source, err := newSandboxSleeper(ctx, b.server, b.o.guest, b.memory, holds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.close(ctx)) }()
	raw, err := newRawSleeper(ctx, b.raw, b.o.guest, holds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.close(ctx)) }()
	needs := smallOperation + int64(2*holds.memory)<<20
	var c comparison
	var memory, disk []float64
	for range n {
		var each share
		ours, err := b.timed(ctx, needs, func() (took time.Duration, err error) {
			took, each, err = b.forkOnce(ctx, source, children)
			return took, err
		})
		if err != nil {
			return err
		}
		_, r, err := b.sleepOnce(ctx, raw, b.raw.images(), needs, false)
		if err != nil {
			return err
		}
		many := time.Duration(children)
		c.add(turn{ours: ours, raw: sample{latency: r.pause.latency + many*r.wake.latency, cpu: r.pause.cpu + many*r.wake.cpu}})
		memory, disk = append(memory, mebibytes(each.memory)), append(disk, mebibytes(each.disk))
	}
	b.report.compared("–", fmt.Sprintf("%d forks of %s, until the last one answers", children, holds),
		fmt.Sprintf("`runsc checkpoint`, then %d × `create` + `restore` → HTTP", children), c, 1, 0)
	b.report.plain("–", fmt.Sprintf("memory of the guest of each of %d forks of %s", children, holds), "MiB", memory, 0)
	b.report.plain("–", fmt.Sprintf("disk for each of %d forks of %s", children, holds), "MiB", disk, 0)
	return nil
}

// share is what each of many takes, in bytes.
type share struct{ memory, disk int64 }

// forkOnce has a sandbox fork, and returns the time until every child has answered as
// one that goes on from the source does.
func (b *bench) forkOnce(ctx context.Context, source *sandboxSleeper, children int) (took time.Duration, each share, err error) {
	before, err := diskOf(b.stateDir())
	if err != nil {
		return 0, each, err
	}
	start := time.Now()
	list, err := client.NewSnapshots(b.server.client).Fork(ctx, source.box.ID, client.ForkOptions{Count: children})
	if err != nil {
		return 0, each, err
	}
	defer func() {
		for _, c := range list {
			if c.Sandbox != nil {
				err = errors.Join(err, b.server.client.Kill(ctx, c.Sandbox.ID), awaitGone(ctx, c.Sandbox.ID))
			}
		}
	}()
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for i, c := range list {
		all.Go(func() { errs[i] = askFork(ctx, c, source) })
	}
	all.Wait()
	took = time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return 0, each, err
	}
	for _, c := range list {
		// Not the PSS: it leaves out what the runtime has read and not mapped yet.
		memory, err := memoryFile(c.Sandbox.ID)
		if err != nil {
			return 0, each, err
		}
		each.memory += memory / int64(children)
	}
	after, err := diskOf(b.stateDir())
	each.disk = (after - before) / int64(children)
	return took, each, err
}

// askFork checks that a child answers next what its source would.
func askFork(ctx context.Context, c client.Child, source *sandboxSleeper) error {
	if c.Err != nil {
		return c.Err
	}
	req, err := c.Sandbox.Request(ctx, http.MethodGet, guestPort, source.query, nil)
	if err != nil {
		return err
	}
	beat := source.beat
	_, err = get(req, &beat)
	return err
}

// diskOf returns how many bytes of the disk the files and the memory of a server's
// sandboxes take; a file with several names counts once.
func diskOf(stateDir string) (total int64, err error) {
	seen := map[uint64]bool{}
	count := func(_ string, e fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = e.Info()
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
			return nil
		case err != nil:
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); !seen[st.Ino] {
			seen[st.Ino] = true
			total += st.Blocks * 512
		}
		return nil
	}
	for _, dir := range []string{"layers", "images"} {
		err = errors.Join(err, filepath.WalkDir(filepath.Join(stateDir, dir), count))
	}
	return total, err
}

// busyEvery is how long a busy guest rests before it changes a part of its memory again.
const busyEvery = 5 * time.Millisecond

// snapshots measures how long a sandbox stands still for a snapshot that changes a
// tenth of its memory all the time.
func (b *bench) snapshots(ctx context.Context) error {
	for _, holds := range []size{{memory: 64}, {memory: 512}} {
		frozen, err := b.snapshotBusy(ctx, holds, b.runs(20))
		if err != nil {
			return fmt.Errorf("snapshots of %s: %w", holds, err)
		}
		b.report.plain("–", fmt.Sprintf("a snapshot of %s in use: for how long it stands still", holds), "ms", frozen, 0)
	}
	return nil
}

func (b *bench) snapshotBusy(ctx context.Context, holds size, n int) (frozen []float64, err error) {
	holds.dirtied = 10
	source, err := newSandboxSleeper(ctx, b.server, b.o.guest, b.memory, holds)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, source.close(ctx)) }()
	work, stop := context.WithCancel(ctx)
	worked := make(chan error, 1)
	go func() {
		for work.Err() == nil {
			if _, err := source.wake(ctx); err != nil {
				worked <- err
				return
			}
			_ = sleep(work, busyEvery)
		}
		worked <- nil
	}()
	defer func() {
		stop()
		err = errors.Join(err, <-worked)
	}()
	snapshots := client.NewSnapshots(b.server.client)
	for range n {
		if err := warmMemory(smallOperation + int64(holds.memory)<<20); err != nil {
			return nil, err
		}
		s, err := snapshots.Create(ctx, source.box.ID, client.SnapshotOptions{})
		if err != nil {
			return nil, err
		}
		frozen = append(frozen, s.FrozenMs)
		if err := snapshots.Delete(ctx, s.ID); err != nil {
			return nil, err
		}
	}
	return frozen, nil
}

// The server that a template has running, and how to know that it does.
const (
	pythonPort  = 8000
	pythonServe = "exec python3 -m http.server 8000"
	pythonReady = `python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8000/")'`
)

// started measures a create of a template that is kept running, beside one that starts
// the same server.
func (b *bench) started(ctx context.Context) error {
	const name = "bench-started"
	if err := b.server.build(ctx, name, pythonServe, pythonReady); err != nil {
		return err
	}
	c, err := b.compare(ctx, b.runs(30),
		func() (time.Duration, error) { return b.createServing(ctx, client.CreateOptions{Template: name}, "") },
		func() (time.Duration, error) { return b.createServing(ctx, client.CreateOptions{}, pythonServe) })
	if err != nil {
		return err
	}
	b.report.compared("–", "create → HTTP answer, of a template kept with a Python server", "create, and start the server", c, 0, 0)
	return client.NewTemplates(b.server.client).Remove(ctx, name)
}

// createServing returns how long it takes from a create to an answer of its server,
// which a command starts, if there is one.
func (b *bench) createServing(ctx context.Context, o client.CreateOptions, command string) (took time.Duration, err error) {
	o.Timeout = guestTimeout
	start := time.Now()
	box, err := b.server.client.Create(ctx, o)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.server.client.Kill(ctx, box.ID), awaitGone(ctx, box.ID)) }()
	if command != "" {
		p, err := box.Start(ctx, client.Command{Args: []string{"/bin/sh", "-c", command}})
		if err != nil {
			return 0, err
		}
		p.Detach()
	}
	booting, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for {
		req, err := box.Request(booting, http.MethodGet, pythonPort, "/", nil)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		took = time.Since(start)
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return took, nil
		}
		if err := sleep(booting, time.Millisecond); err != nil {
			return 0, fmt.Errorf("its server does not answer: %s: %w", resp.Status, err)
		}
	}
}
