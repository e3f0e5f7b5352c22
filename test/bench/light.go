package main

import (
	"context"
	"errors"
	"fmt"
)

// light measures pauses to a light sleep, and wakes from it. The guest is idle, and has
// been paused and woken before: what a pause writes is what has changed.
func (b *bench) light(ctx context.Context) (err error) {
	sizes := b.sizes(size{memory: 0}, size{memory: 64}, size{memory: 1024})
	largest := sizes[len(sizes)-1].memory
	if err := b.serveLight(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.serveDeep(ctx)) }()
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
	return nil
}

// serveLight starts the server anew, with light sleep.
func (b *bench) serveLight(ctx context.Context, args ...string) error {
	err := b.restart(ctx, append([]string{"--light-sleep=1h", "--light-sleep-memory=8g"}, args...)...)
	if err == nil {
		b.server.light = true
	}
	return err
}

// serveDeep starts the server anew, without.
func (b *bench) serveDeep(ctx context.Context) error { return b.restart(ctx) }

func (b *bench) restart(ctx context.Context, args ...string) (err error) {
	if b.server != nil {
		if err := b.server.stop(); err != nil {
			return err
		}
	}
	b.server, err = startServer(ctx, b.o.drowse, b.stateDir(), b.serverLog(), args...)
	return err
}
