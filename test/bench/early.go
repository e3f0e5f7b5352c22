package main

import (
	"context"
	"fmt"
)

// early measures deep wakes: a guest touches a part of its memory before it answers, and
// its image is in the page cache or on the disk alone. The raw tool reads all of the
// image first.
func (b *bench) early(ctx context.Context) (err error) {
	sizes := b.sizes(size{memory: 64}, size{memory: 1024}, size{memory: 2048})
	largest := sizes[len(sizes)-1].memory
	b.memory, b.raw.memory = 2*largest, int64(2*largest+64)<<20
	defer func() { b.memory, b.raw.memory = 0, memoryLimit }()
	for _, holds := range sizes {
		for _, holds.cold = range []bool{false, true} {
			for _, holds.touched = range []int{0, 1, 10, 100} {
				res, err := b.measureSleep(ctx, holds, b.runs(10))
				if err != nil {
					return fmt.Errorf("%s: %w", holds, err)
				}
				what := fmt.Sprintf("deep wake → HTTP answer after %d %% of %d MiB were touched", holds.touched, holds.memory)
				if holds.cold {
					what += ", image not in the page cache"
				}
				b.report.compared("B4", what, "`runsc create` + `restore` → HTTP", res.wake, 1.1, holds.goal())
			}
		}
	}
	return nil
}

// goal is that of a deep wake; 0 for none.
func (s size) goal() float64 {
	switch {
	case s.memory == 64:
		return 0.5
	case s.memory >= 1024 && s.touched <= 1:
		return 0.3
	case s.memory >= 1024 && s.touched == 100:
		return 1.05
	}
	return 0
}
