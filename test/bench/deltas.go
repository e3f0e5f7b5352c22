package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// deltasAddr is where the second server listens.
const deltasAddr = "127.0.0.1:3001"

// deltas measures pauses that write what changed, in turn with a server that writes
// whole images, and with the raw tool. The guest is idle, and has been paused and
// woken before; then with a part of its memory changed before each pause.
func (b *bench) deltas(ctx context.Context) (err error) {
	if err := b.server.stop(); err != nil {
		return err
	}
	if b.server, err = startServer(ctx, b.o.drowse, b.stateDir(), b.serverLog(), "--delta-pauses=0"); err != nil {
		return err
	}
	dir := filepath.Join(b.o.work, "c")
	changes, err := startServerAt(ctx, deltasAddr, b.o.drowse, dir, filepath.Join(b.o.work, "deltas.log"), "--delta-pauses=1")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, changes.stop()) }()
	sizes := b.sizes(size{memory: 64}, size{memory: 256}, size{memory: 512}, size{memory: 1024}, size{memory: 1024, dirtied: 10}, size{memory: 2048})
	most := sizes[len(sizes)-1].memory
	b.memory, b.raw.memory = 2*most, int64(2*most+64)<<20
	defer func() { b.memory, b.raw.memory = 0, memoryLimit }()
	for _, holds := range sizes {
		if err := b.measureDeltas(ctx, changes, dir, holds, b.runs(20)); err != nil {
			return fmt.Errorf("%s: %w", holds, err)
		}
	}
	if err := b.server.stop(); err != nil {
		return err
	}
	b.server, err = startServer(ctx, b.o.drowse, b.stateDir(), b.serverLog())
	return err
}

// measureDeltas pauses and wakes three guests of one size in turn: that of the server
// changes, whose state is in dir, that of the other server, and the raw tool's.
func (b *bench) measureDeltas(ctx context.Context, changes *server, dir string, holds size, n int) (err error) {
	delta, err := newSandboxSleeper(ctx, changes, b.o.guest, b.memory, holds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, delta.close(ctx)) }()
	whole, err := newSandboxSleeper(ctx, b.server, b.o.guest, b.memory, holds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, whole.close(ctx)) }()
	raw, err := newRawSleeper(ctx, b.raw, b.o.guest, holds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.close(ctx)) }()
	needs := smallOperation + int64(2*holds.memory)<<20
	var pause, wake, pauseWhole, wakeWhole comparison
	var first []comparison // the first pause of all
	var files, device []float64
	for i := -warmup; i < n; i++ {
		w, d, err := b.sleepOnce(ctx, delta, imagesIn(dir), needs, false)
		if err != nil {
			return err
		}
		own, err := ownBytes(imagesIn(dir))
		if err != nil {
			return err
		}
		_, p, err := b.sleepOnce(ctx, whole, imagesIn(b.stateDir()), needs, false)
		if err != nil {
			return err
		}
		_, r, err := b.sleepOnce(ctx, raw, b.raw.images(), needs, false)
		if err != nil {
			return err
		}
		if i == -warmup {
			var c comparison
			c.add(turn{ours: d.pause, raw: r.pause})
			first = append(first, c)
		}
		if i < 0 {
			continue
		}
		pause.add(turn{ours: d.pause, raw: r.pause})
		wake.add(turn{ours: d.wake, raw: r.wake})
		pauseWhole.add(turn{ours: d.pause, raw: p.pause})
		wakeWhole.add(turn{ours: d.wake, raw: p.wake})
		files, device = append(files, mebibytes(own)), append(device, mebibytes(w.device))
	}
	goal, most := 0.0, 0.0
	switch {
	case holds.dirtied > 0:
		most = float64(holds.memory*holds.dirtied)/100 + 8
	case holds.memory >= 512:
		goal, most = 0.4, 8
	}
	b.report.compared("B6", fmt.Sprintf("first delta pause, %s", holds), "`runsc checkpoint` + fsync", first[0], 0, 1.15)
	b.report.compared("B6", fmt.Sprintf("delta pause, %s", holds), "`runsc checkpoint` + fsync", pause, 0, goal)
	b.report.compared("B6", fmt.Sprintf("delta pause, %s", holds), "a pause that writes all", pauseWhole, 0, 0)
	b.report.compared("B4", fmt.Sprintf("wake after it → HTTP, %s", holds), "`runsc create` + `restore` → HTTP", wake, 0, 1.1)
	b.report.compared("B4", fmt.Sprintf("wake after it → HTTP, %s", holds), "wake after a pause that wrote all", wakeWhole, 0, 1.0)
	b.report.plain("B8", fmt.Sprintf("files written for it, %s", holds), "MiB", files, most)
	b.report.plain("B8", fmt.Sprintf("written by the device in it, %s", holds), "MiB", device, most)
	return nil
}

// ownBytes returns what the newest image has in files that were written for it: all but
// the packs of other images.
func ownBytes(images string) (own int64, err error) {
	entries, err := os.ReadDir(images)
	if err != nil {
		return 0, err
	}
	var newest string
	var at time.Time
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && e.IsDir() && info.ModTime().After(at) {
			newest, at = e.Name(), info.ModTime()
		}
	}
	files, err := os.ReadDir(filepath.Join(images, newest))
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "pack-") && f.Name() != "pack-"+strings.ToLower(newest) {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return 0, err
		}
		own += info.Size()
	}
	return own, err
}
