package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// clock sets the machine's clock three hours on under a sandbox whose time is an
// hour, and back again: the deadline is met at once, nothing else ends, and the
// sandbox's clock is the machine's after each wake.
func (g *guest) clock(ctx context.Context) (err error) {
	const step = 3 * time.Hour
	c, err := g.counter(ctx, client.CreateOptions{})
	if err != nil {
		return err
	}
	if err := stepClock(step); err != nil {
		return err
	}
	forward := true
	defer func() {
		if forward {
			err = errors.Join(err, stepClock(-step))
		}
	}()
	if err := poll(ctx, func() error { return g.is(ctx, c.ID, client.Paused) }); err != nil {
		return g.withJournal(fmt.Errorf("its hour was over when the clock was set: %w", err))
	}
	if c, err = g.goesOn(ctx, c, 1); err != nil {
		return g.withJournal(err)
	}
	if err := g.clockInside(ctx, c.ID); err != nil {
		return err
	}
	forward = false
	if err := stepClock(-step); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // for what a clock set back could end
	if c, err = g.goesOn(ctx, c, 0); err != nil {
		return g.withJournal(err)
	}
	if err := g.client.Pause(ctx, c.ID); err != nil {
		return g.withJournal(err)
	}
	if c, err = g.goesOn(ctx, c, 1); err != nil {
		return g.withJournal(err)
	}
	return errors.Join(g.clockInside(ctx, c.ID), g.kill(ctx, c.ID))
}

// stepClock sets the clock by so much.
func stepClock(by time.Duration) error {
	_, err := output("date", "--set", time.Now().Add(by).UTC().Format(time.RFC3339Nano))
	return err
}

// clockInside checks that a sandbox has the time of the machine. A command takes
// seconds under emulation.
func (g *guest) clockInside(ctx context.Context, id string) error {
	before := time.Now().Truncate(time.Second)
	out, err := g.exec(ctx, id, "date", "+%s")
	if err != nil {
		return err
	}
	var inside int64
	if _, err := fmt.Sscan(out, &inside); err != nil {
		return fmt.Errorf("the date inside is %q: %w", out, err)
	}
	if at := time.Unix(inside, 0); at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
		return fmt.Errorf("inside it was %s between %s and %s", at.UTC(), before.UTC(), time.Now().UTC())
	}
	return nil
}
