package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// sleepersAtOnce is how many guests are woken at the same moment.
const sleepersAtOnce = 32

// atOnce measures deep wakes of many sandboxes, each by a request of its own, all at
// the same moment, until the last one has answered.
func (b *bench) atOnce(ctx context.Context) error {
	for _, holds := range []size{{memory: 0}, {memory: 16}} {
		c, err := b.measureAtOnce(ctx, sleepersAtOnce, holds, b.runs(10))
		if err != nil {
			return fmt.Errorf("%d sandboxes of %s: %w", sleepersAtOnce, holds, err)
		}
		b.report.compared("B27", fmt.Sprintf("%d deep wakes at once → the last HTTP answer, %s each", sleepersAtOnce, holds),
			fmt.Sprintf("%d × `runsc create` + `restore` → HTTP at once", sleepersAtOnce), c, 1.1, 0)
	}
	return nil
}

// measureAtOnce wakes many sandboxes, and restores as many containers, in turn. Each
// goes to sleep while the others of its kind are awake or asleep.
func (b *bench) measureAtOnce(ctx context.Context, many int, holds size, n int) (c comparison, err error) {
	if err := copyProgram(b.o.guest, filepath.Join(b.raw.rootfs, guestPath)); err != nil {
		return c, err
	}
	var ours []*sandboxSleeper
	var theirs []*rawSleeper
	defer func() { err = errors.Join(err, closeAll(ctx, ours), closeAll(ctx, theirs)) }()
	for i := range many {
		p, err := newSandboxSleeper(ctx, b.server, b.o.guest, b.memory, holds)
		if err != nil {
			return c, err
		}
		ours = append(ours, p)
		if err := pauseAll(ctx, ours[i:]); err != nil { // so that few are awake
			return c, err
		}
		q, err := newRawSleeperAt(ctx, b.raw, i, holds)
		if err != nil {
			return c, err
		}
		theirs = append(theirs, q)
		if err := pauseAll(ctx, theirs[i:]); err != nil {
			return c, err
		}
	}
	needs := smallOperation + int64(many*(holds.memory+16))<<20
	for i := -warmup; i < n; i++ {
		var t turn
		if err := warmFiles(imagesIn(b.stateDir())); err != nil {
			return c, err
		}
		if t.ours, err = b.timed(ctx, needs, func() (time.Duration, error) {
			return wakeAll(ours, func(p *sandboxSleeper) (time.Duration, error) { return p.wake(ctx) })
		}); err != nil {
			return c, err
		}
		if err := pauseAll(ctx, ours); err != nil {
			return c, err
		}
		for _, p := range theirs {
			if err := p.prepare(); err != nil {
				return c, err
			}
		}
		if err := warmFiles(b.raw.images()); err != nil {
			return c, err
		}
		if t.raw, err = b.timed(ctx, needs, func() (time.Duration, error) {
			return wakeAll(theirs, func(p *rawSleeper) (time.Duration, error) { return p.restore(ctx) })
		}); err != nil {
			return c, err
		}
		if err := pauseAll(ctx, theirs); err != nil {
			return c, err
		}
		if i >= 0 {
			c.add(t)
		}
	}
	return c, nil
}

// wakeAll calls wake for all at the same moment, and returns how long the slowest took.
func wakeAll[S any](list []S, wake func(S) (time.Duration, error)) (time.Duration, error) {
	took, errs := make([]time.Duration, len(list)), make([]error, len(list))
	begin := make(chan struct{})
	var all sync.WaitGroup
	for i, p := range list {
		all.Go(func() {
			<-begin
			took[i], errs[i] = wake(p)
		})
	}
	close(begin)
	all.Wait()
	return slices.Max(took), errors.Join(errs...)
}

func pauseAll[S sleeper](ctx context.Context, list []S) error {
	for _, p := range list {
		if _, err := p.pause(ctx); err != nil {
			return err
		}
	}
	return nil
}

func closeAll[S sleeper](ctx context.Context, list []S) (err error) {
	for _, p := range list {
		err = errors.Join(err, p.close(ctx))
	}
	return err
}
