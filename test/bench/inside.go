package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
)

// inside measures what clients do in a sandbox that runs: files in and out, many
// commands, and news of files.
func (b *bench) inside(ctx context.Context) (err error) {
	c, err := b.raw.prepare("/bin/sleep", "infinity")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove(ctx)) }()
	if err := errors.Join(c.create(ctx), c.start(ctx)); err != nil {
		return err
	}
	box, err := b.server.client.Create(ctx, client.CreateOptions{Timeout: guestTimeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.client.Kill(ctx, box.ID)) }()
	for _, f := range []struct {
		name string
		size int64
		n    int
	}{{"1 KiB", 1 << 10, 150}, {"1 MiB", 1 << 20, 100}, {"1 GiB", 1 << 30, 10}} {
		if err := b.transfer(ctx, box, c, f.name, f.size, b.runs(f.n)); err != nil {
			return fmt.Errorf("file of %s: %w", f.name, err)
		}
	}
	if err := b.crowd(ctx, box, c); err != nil {
		return err
	}
	return b.news(ctx)
}

// transfer measures a file on its way in and out again.
func (b *bench) transfer(ctx context.Context, box *client.Sandbox, c *container, name string, size int64, n int) error {
	const path = "/var/tmp/file"
	in, err := b.compare(ctx, n,
		func() (time.Duration, error) {
			start := time.Now()
			err := box.WriteFile(ctx, path, io.LimitReader(zeros{}, size))
			return time.Since(start), err
		},
		func() (time.Duration, error) {
			start := time.Now()
			err := c.pipe(ctx, io.LimitReader(zeros{}, size), io.Discard, "/bin/sh", "-c", "cat >"+path)
			return time.Since(start), err
		})
	if err != nil {
		return err
	}
	b.report.compared("–", "write a file of "+name, "`runsc exec` of `cat >file`", in, 0, 0)
	out, err := b.compare(ctx, n,
		func() (time.Duration, error) {
			start := time.Now()
			r, err := box.ReadFile(ctx, path)
			if err != nil {
				return 0, err
			}
			defer r.Close()
			err = whole(r, size)
			return time.Since(start), err
		},
		func() (time.Duration, error) {
			got, w := io.Pipe()
			var read errgroup.Group
			read.Go(func() error { return whole(got, size) })
			start := time.Now()
			err := c.pipe(ctx, nil, w, "/bin/cat", path)
			w.Close()
			return time.Since(start), errors.Join(err, read.Wait())
		})
	if err != nil {
		return err
	}
	b.report.compared("–", "read a file of "+name, "`runsc exec` of `cat file`", out, 0, 0)
	return nil
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// whole reads to the end, which must be that of so many bytes.
func whole(r io.Reader, size int64) error {
	n, err := io.Copy(io.Discard, r)
	if err == nil && n != size {
		err = fmt.Errorf("got %d bytes of %d", n, size)
	}
	return err
}

// atOnce is how many clients there are that run one command after the other.
const atOnce = 16

// crowd measures how many commands a sandbox runs if many are asked for.
func (b *bench) crowd(ctx context.Context, box *client.Sandbox, c *container) error {
	each := max(5, b.runs(50))
	compared, err := b.compare(ctx, b.runs(20),
		func() (time.Duration, error) {
			return together(ctx, each, func(ctx context.Context) error {
				exit, err := box.Run(ctx, client.Command{Args: []string{"/bin/true"}})
				if err == nil && exit.Code != 0 {
					err = errors.New(exit.Status)
				}
				return err
			})
		},
		func() (time.Duration, error) {
			return together(ctx, each, func(ctx context.Context) error { return c.pipe(ctx, nil, io.Discard, "/bin/true") })
		})
	if err != nil {
		return err
	}
	b.report.compared("–", fmt.Sprintf("`/bin/true`, %d at a time: for each", atOnce), "`runsc exec` of the same", compared, 0, 0)
	return nil
}

// together has each of atOnce clients do something n times, and returns how
// much time passed for one of all.
func together(ctx context.Context, n int, do func(context.Context) error) (time.Duration, error) {
	start := time.Now()
	clients, ctx := errgroup.WithContext(ctx)
	for range atOnce {
		clients.Go(func() error {
			for range n {
				if err := do(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := clients.Wait()
	return time.Since(start) / time.Duration(n*atOnce), err
}

// news measures how soon the SDK tells that a file has been written.
func (b *bench) news(ctx context.Context) (err error) {
	s, err := startSDK(ctx, b.o.sdk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if _, err := s.do("watch"); err != nil {
		return err
	}
	defer func() {
		_, closeErr := s.do("close")
		err = errors.Join(err, closeErr)
	}()
	var told, written []float64
	for range b.runs(150) {
		a, err := s.do("touch")
		if err != nil {
			return err
		}
		told, written = append(told, a.First), append(written, a.Done)
	}
	b.report.plain("–", "a file is written through the SDK → its watcher is told", "ms", told, 0)
	b.report.note("The write of that file itself takes %.1f ms (p50).", median(written))
	return nil
}
