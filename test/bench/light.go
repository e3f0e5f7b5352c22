package main

import (
	"context"
	"fmt"
)

// light measures pauses to a light sleep, and wakes from it. The guest is idle, and has
// been paused and woken before: what a pause writes is what has changed.
func (b *bench) light(ctx context.Context) (err error) {
	sizes := b.sizes(size{memory: 0}, size{memory: 64}, size{memory: 1024})
	largest := sizes[len(sizes)-1].memory
	if err := b.server.stop(); err != nil {
		return err
	}
	if b.server, err = startServer(ctx, b.o.drowse, b.stateDir(), b.serverLog(), "--light-sleep=1h", "--light-sleep-memory=8g"); err != nil {
		return err
	}
	b.server.light = true
	b.memory, b.raw.memory = 2*largest+512, int64(2*largest+576)<<20
	defer func() { b.memory, b.raw.memory = 0, memoryLimit }()
	for _, holds := range sizes {
		res, err := b.measureSleep(ctx, holds, b.runs(20))
		if err != nil {
			return fmt.Errorf("%s: %w", holds, err)
		}
		b.report.compared("B25", fmt.Sprintf("wake from light sleep → first byte of an HTTP answer, %s", holds), "`runsc create` + `restore` → HTTP", res.wake, 0, 0)
		b.report.compared("B25", fmt.Sprintf("pause to light sleep until committed, again and again, %s", holds), "`runsc checkpoint` + fsync", res.pause, 0, 0)
		b.report.plain("B25", fmt.Sprintf("wake from light sleep → first byte of an HTTP answer, %s", holds), "ms", res.wake.latencies().ours(), 5)
	}
	if err := b.server.stop(); err != nil {
		return err
	}
	b.server, err = startServer(ctx, b.o.drowse, b.stateDir(), b.serverLog())
	return err
}
