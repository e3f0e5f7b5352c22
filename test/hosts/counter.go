package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// A counter is a sandbox with a process that counts in its memory, and what was
// last read of it.
type counter struct {
	ID         string
	PID, Count int
	Generation int64
}

// counts writes the shell's process id and count into a file: the count is
// the shell's own, so it goes on only if its memory does.
const counts = `n=0; while :; do n=$((n+1)); echo $$ $n >count.new; mv count.new count; sleep 0.2; done`

// create makes a sandbox that is remembered for the leftovers.
func (g *guest) create(ctx context.Context, o client.CreateOptions) (*client.Sandbox, error) {
	o.Timeout, o.OnTimeout, o.AutoResume = time.Hour, client.Pause, new(true)
	sb, err := g.client.Create(ctx, o)
	if err != nil {
		return nil, g.withJournal(err)
	}
	g.Made = append(g.Made, sb.ID)
	return sb, nil
}

func (g *guest) counter(ctx context.Context, o client.CreateOptions) (counter, error) {
	sb, err := g.create(ctx, o)
	if err != nil {
		return counter{}, err
	}
	p, err := sb.Start(ctx, client.Command{Args: []string{"sh", "-c", counts}})
	if err != nil {
		return counter{}, err
	}
	p.Detach()
	c := counter{ID: sb.ID}
	err = poll(ctx, func() (err error) { c, err = g.look(ctx, sb.ID); return err })
	return c, err
}

// look reads a counter, which wakes it if it sleeps.
func (g *guest) look(ctx context.Context, id string) (counter, error) {
	c := counter{ID: id}
	out, err := g.exec(ctx, id, "cat", "count")
	if err != nil {
		return c, err
	}
	if _, err := fmt.Sscan(out, &c.PID, &c.Count); err != nil {
		return c, fmt.Errorf("the count is %q: %w", out, err)
	}
	info, err := g.client.Get(ctx, id)
	c.Generation = info.Generation
	return c, err
}

// goesOn checks that a counter counts on, in the same process, in so many
// generations more.
func (g *guest) goesOn(ctx context.Context, was counter, generations int64) (counter, error) {
	now := was
	err := poll(ctx, func() (err error) {
		if now, err = g.look(ctx, was.ID); err == nil && now.PID == was.PID && now.Count <= was.Count {
			err = fmt.Errorf("it was at %d, now it is at %d", was.Count, now.Count)
		}
		return err
	})
	if err == nil && now.PID != was.PID {
		err = fmt.Errorf("process %d counts, it was %d", now.PID, was.PID)
	}
	if err == nil && now.Generation != was.Generation+generations {
		err = fmt.Errorf("it was in generation %d and is in %d, want %d more", was.Generation, now.Generation, generations)
	}
	return now, err
}

// exec runs a command in a sandbox and returns what it printed.
func (g *guest) exec(ctx context.Context, id string, args ...string) (string, error) {
	sb, _, err := g.client.Open(ctx, id)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	exit, err := sb.Run(ctx, client.Command{Args: args, Stdout: &out, Stderr: &out})
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("%s: %s: %s", strings.Join(args, " "), exit.Status, out.String())
	}
	return strings.TrimSpace(out.String()), err
}

// is checks the state of a sandbox.
func (g *guest) is(ctx context.Context, id string, want client.State) error {
	info, err := g.client.Find(ctx, id)
	if err == nil && info.State != want {
		err = fmt.Errorf("sandbox %s is %s, want %s (%s)", id, info.State, want, info.LastError)
	}
	return err
}

func (g *guest) kill(ctx context.Context, id string) error {
	if err := g.client.Kill(ctx, id); err != nil {
		return fmt.Errorf("kill sandbox %s: %w", id, err)
	}
	return nil
}
