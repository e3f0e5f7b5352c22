package main

import (
	"context"
	"fmt"
)

// early measures wakes before memory has been read: a server with --early-wake, and a
// guest that touches a part of its memory before it answers. The raw tool reads all
// of it first.
func (b *bench) early(ctx context.Context) (err error) {
	sizes := b.sizes(size{memory: 64}, size{memory: 512}, size{memory: 1024}, size{memory: 2048})
	largest := sizes[len(sizes)-1].memory
	if err := b.server.stop(); err != nil {
		return err
	}
	if b.server, err = startServer(ctx, b.o.drowse, b.stateDir(), b.serverLog(), "--early-wake", "32"); err != nil {
		return err
	}
	b.memory, b.raw.memory = 2*largest, int64(2*largest+64)<<20
	defer func() { b.memory, b.raw.memory = 0, memoryLimit }()
	for _, holds := range sizes {
		for _, percent := range []int{0, 1, 10, 100} {
			holds.touched = percent
			res, err := b.measureSleep(ctx, holds, b.runs(20))
			if err != nil {
				return fmt.Errorf("%s: %w", holds, err)
			}
			goal := 0.0
			switch {
			case holds.memory == 64:
				goal = 0.5
			case percent <= 1 && holds.memory >= 1024:
				goal = 0.3
			}
			what := fmt.Sprintf("early wake → HTTP answer after %d %% of %d MiB were touched", percent, holds.memory)
			b.report.compared("B4", what, "`runsc create` + `restore` → HTTP", res.wake, 1.1, goal)
		}
	}
	if err := b.server.stop(); err != nil {
		return err
	}
	b.server, err = startServer(ctx, b.o.drowse, b.stateDir(), b.serverLog())
	return err
}
