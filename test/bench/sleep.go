package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// sleeper is a guest that can be put to sleep and woken again and again: a
// sandbox of drowse, or a container that the raw tool checkpoints and
// restores.
type sleeper interface {
	// id is in the arguments or the cgroup of all its processes.
	id() string
	// pause puts the guest to sleep and returns when its image is durable.
	pause(ctx context.Context) (time.Duration, error)
	// wake sends a request to the sleeping guest, or starts it first, and
	// returns the time to the first byte of the answer.
	wake(ctx context.Context) (time.Duration, error)
	close(ctx context.Context) error
}

const (
	guestPort    = 8080
	guestPath    = "/home/user/guest"
	guestTimeout = time.Hour // longer than any run
	bootTimeout  = 60 * time.Second
)

// size is what a guest holds, in MiB.
type size struct {
	memory int
	file   int // held open for writing
	// touched is what part of the memory it reads before it answers, in percent.
	touched int
	// cold has its image read from the disk.
	cold bool
	// dirtied is what part of it it changes before it answers, in percent.
	dirtied int
}

// query asks the guest to do so.
func (s size) query() string { return fmt.Sprintf("/?touch=%d&dirty=%d", s.touched, s.dirtied) }

func (s size) args() []string { return []string{guestPath, fmt.Sprint(s.memory), fmt.Sprint(s.file)} }

func (s size) String() string {
	if s.file > 0 {
		return fmt.Sprintf("%d MiB and an open file of %d MiB", s.memory, s.file)
	}
	if s.dirtied > 0 {
		return fmt.Sprintf("%d MiB of which each wake changes %d %%", s.memory, s.dirtied)
	}
	return fmt.Sprintf("%d MiB", s.memory)
}

// heartbeat checks that a guest's answers count on, and come from the same
// process.
type heartbeat struct {
	id    string
	count int64
}

func (h *heartbeat) check(body io.Reader) error {
	var id string
	var count int64
	var sample byte
	if _, err := fmt.Fscan(body, &id, &count, &sample); err != nil {
		return fmt.Errorf("the guest's answer: %w", err)
	}
	if h.id != "" && (id != h.id || count != h.count+1) {
		return fmt.Errorf("the guest lost its memory: it answers %s %d after %s %d", id, count, h.id, h.count)
	}
	h.id, h.count = id, count
	return nil
}

// sandboxSleeper is a sandbox of drowse.
type sandboxSleeper struct {
	server *server
	box    *client.Sandbox
	query  string
	beat   heartbeat
}

// newSandboxSleeper makes a sandbox with a guest that holds so much.
func newSandboxSleeper(ctx context.Context, s *server, guest string, memoryMiB int, holds size) (_ *sandboxSleeper, err error) {
	box, err := s.client.Create(ctx, client.CreateOptions{Timeout: guestTimeout, OnTimeout: client.Pause, AutoResume: new(true), MemoryMiB: memoryMiB})
	if err != nil {
		return nil, err
	}
	p := &sandboxSleeper{server: s, box: box, query: holds.query()}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(ctx))
		}
	}()
	if err := p.install(ctx, guest); err != nil {
		return nil, err
	}
	// Files that were open for writing and are still in use when the sandbox
	// is paused count as open for writing ever after. The program is not to be
	// one of them.
	if _, err := p.pause(ctx); err != nil {
		return nil, err
	}
	if _, err := s.client.Connect(ctx, box.ID, guestTimeout); err != nil {
		return nil, err
	}
	return p, p.start(ctx, holds)
}

// install puts the guest's program into the sandbox.
func (p *sandboxSleeper) install(ctx context.Context, guest string) error {
	program, err := os.Open(guest)
	if err != nil {
		return err
	}
	defer program.Close()
	if err := p.box.WriteFile(ctx, guestPath, program); err != nil {
		return err
	}
	return p.run(ctx, "chmod", "+x", guestPath)
}

// start starts the guest, and returns when it answers.
func (p *sandboxSleeper) start(ctx context.Context, holds size) error {
	process, err := p.box.Start(ctx, client.Command{Args: holds.args()})
	if err != nil {
		return err
	}
	process.Detach()
	booting, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for {
		_, err := p.wake(booting)
		if err == nil {
			return nil
		}
		if sleep(booting, 20*time.Millisecond) != nil {
			return fmt.Errorf("the guest does not come up: %w", err)
		}
	}
}

func (p *sandboxSleeper) id() string { return p.box.ID }

// run runs a command in the sandbox that must succeed.
func (p *sandboxSleeper) run(ctx context.Context, args ...string) error {
	exit, err := p.box.Run(ctx, client.Command{Args: args})
	if err == nil && exit.Code != 0 {
		err = errors.New(exit.Status)
	}
	if err != nil {
		return fmt.Errorf("%v in sandbox %s: %w", args, p.box.ID, err)
	}
	return nil
}

func (p *sandboxSleeper) pause(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	if err := p.server.client.Pause(ctx, p.box.ID); err != nil {
		return 0, err
	}
	took := time.Since(start)
	if p.server.light {
		info, err := p.server.client.Get(ctx, p.box.ID)
		if err == nil && info.Sleep != client.LightSleep {
			err = errors.New("it does not sleep lightly")
		}
		return took, err
	}
	return took, awaitGone(ctx, p.box.ID)
}

func (p *sandboxSleeper) wake(ctx context.Context) (time.Duration, error) {
	req, err := p.box.Request(ctx, http.MethodGet, guestPort, p.query, nil)
	if err != nil {
		return 0, err
	}
	return get(req, &p.beat)
}

func (p *sandboxSleeper) close(ctx context.Context) error {
	if err := p.server.client.Kill(ctx, p.box.ID); err != nil {
		return err
	}
	return awaitGone(ctx, p.box.ID)
}

// get sends a request and returns the time to the first byte of the answer.
func get(req *http.Request, beat *heartbeat) (time.Duration, error) {
	start := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return 0, fmt.Errorf("the guest's port answered %s: %s", resp.Status, text)
	}
	return took, beat.check(resp.Body)
}

// rawSleeper is the same with the raw tool.
type rawSleeper struct {
	r       *raw
	slot    int
	args    []string
	current *container // nil while it sleeps
	image   string     // of the last pause
	pauses  int
	query   string
	beat    heartbeat
}

func newRawSleeper(ctx context.Context, r *raw, guest string, holds size) (*rawSleeper, error) {
	if err := copyProgram(guest, filepath.Join(r.rootfs, guestPath)); err != nil {
		return nil, err
	}
	return newRawSleeperAt(ctx, r, 0, holds)
}

// newRawSleeperAt is newRawSleeper for one of several at once. The program is there.
func newRawSleeperAt(ctx context.Context, r *raw, slot int, holds size) (_ *rawSleeper, err error) {
	p := &rawSleeper{r: r, slot: slot, args: holds.args(), query: holds.query()}
	if p.current, err = r.prepareAt(slot, p.args...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(ctx))
		}
	}()
	if err := p.current.create(ctx); err != nil {
		return nil, err
	}
	if err := p.current.start(ctx); err != nil {
		return nil, err
	}
	return p, p.firstAnswer(ctx)
}

func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

func (p *rawSleeper) id() string { return p.current.id }

// firstAnswer asks until the guest answers.
func (p *rawSleeper) firstAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.current.guestURL()+p.query, nil)
		if err != nil {
			return err
		}
		req.Close = true
		_, err = get(req, &p.beat)
		if err == nil {
			return nil
		}
		if sleep(ctx, 500*time.Microsecond) != nil {
			return fmt.Errorf("the guest does not come up: %w", err)
		}
	}
}

func (p *rawSleeper) pause(ctx context.Context) (time.Duration, error) {
	p.pauses++
	image := filepath.Join(p.r.images(), fmt.Sprintf("%d-%d", p.slot, p.pauses))
	if err := os.Mkdir(image, 0o700); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := p.current.checkpoint(ctx, image); err != nil {
		return 0, err
	}
	took := time.Since(start)
	done, old := p.current, p.image
	p.current, p.image = nil, image
	// The image before goes now, as with drowse: memory and disk space that
	// have just been freed are quicker to use again than others.
	return took, errors.Join(done.remove(ctx), os.RemoveAll(old))
}

func (p *rawSleeper) wake(ctx context.Context) (time.Duration, error) {
	if err := p.prepare(); err != nil {
		return 0, err
	}
	return p.restore(ctx)
}

// prepare makes what the container needs that is restored next.
func (p *rawSleeper) prepare() (err error) {
	p.current, err = p.r.prepareAt(p.slot, p.args...)
	return err
}

// restore is a wake of what is prepared.
func (p *rawSleeper) restore(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	if err := p.current.create(ctx); err != nil {
		return 0, err
	}
	if err := p.current.restore(ctx, p.image); err != nil {
		return 0, err
	}
	if err := p.firstAnswer(ctx); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}

func (p *rawSleeper) close(ctx context.Context) error {
	err := os.RemoveAll(p.image)
	if p.current != nil {
		err = errors.Join(err, p.current.remove(ctx))
	}
	return err
}

// sleepResult is what sleeping guests of one size showed.
type sleepResult struct {
	pause, wake comparison
	written     []written
}

// measureSleep pauses and wakes a sandbox and a raw container in turn.
func (b *bench) measureSleep(ctx context.Context, holds size, n int) (res sleepResult, err error) {
	ours, err := newSandboxSleeper(ctx, b.server, b.o.guest, b.memory, holds)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, ours.close(ctx)) }()
	theirs, err := newRawSleeper(ctx, b.raw, b.o.guest, holds)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, theirs.close(ctx)) }()
	needs := smallOperation + int64(2*(holds.memory+holds.file))<<20
	for i := -warmup; i < n; i++ {
		w, t, err := b.sleepOnce(ctx, ours, imagesIn(b.stateDir()), needs, holds.cold)
		if err != nil {
			return res, err
		}
		_, u, err := b.sleepOnce(ctx, theirs, b.raw.images(), needs, holds.cold)
		if err != nil {
			return res, err
		}
		if i >= 0 {
			res.pause.add(turn{ours: t.pause, raw: u.pause})
			res.wake.add(turn{ours: t.wake, raw: u.wake})
			res.written = append(res.written, w)
		}
	}
	return res, nil
}

// cycle is a pause and the wake after it.
type cycle struct{ pause, wake sample }

// sleepOnce pauses and wakes one guest, whose image is in the directory images
// meanwhile. The disk is idle when it begins.
func (b *bench) sleepOnce(ctx context.Context, p sleeper, images string, needs int64, cold bool) (w written, c cycle, err error) {
	w, err = b.watchDisk(p, func() error {
		c.pause, err = b.timed(ctx, needs, func() (time.Duration, error) { return p.pause(ctx) })
		return err
	})
	if err != nil {
		return w, c, err
	}
	cache := warmFiles
	if cold {
		cache = coolFiles
	}
	if err := cache(images); err != nil {
		return w, c, err
	}
	c.wake, err = b.timed(ctx, needs, func() (time.Duration, error) { return p.wake(ctx) })
	return w, c, err
}

// imagesIn is where a server keeps its memory images, here only that of the guest
// under test.
func imagesIn(stateDir string) string { return filepath.Join(stateDir, "images") }

// written is what one pause wrote and what it had to, in bytes.
type written struct {
	touched  int64 // by the guest: memory and files
	reported int64 // by the server
	device   int64 // counted by the device, whoever wrote it
}

// watchDisk counts what is written by f, which ends with a pause of p.
func (b *bench) watchDisk(p sleeper, f func() error) (w written, err error) {
	before, err := b.disk.written()
	if err != nil {
		return w, err
	}
	if w.touched, err = memoryFile(p.id()); err != nil {
		return w, err
	}
	if err := f(); err != nil {
		return w, err
	}
	after, err := b.disk.written()
	if err != nil {
		return w, err
	}
	w.device = after - before
	if sandbox, ok := p.(*sandboxSleeper); ok {
		w.reported, err = sandbox.server.reported(sandbox.box.ID)
	}
	return w, err
}

// measureFiles pauses a sandbox that has written new files since it woke.
func (b *bench) measureFiles(ctx context.Context, holds size, files, n int) (list []written, err error) {
	p, err := newSandboxSleeper(ctx, b.server, b.o.guest, b.memory, holds)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	for i := -warmup; i < n; i++ {
		w, err := b.watchDisk(p, func() error {
			if err := p.run(ctx, "dd", "if=/dev/urandom", "of=/home/user/data", "bs=1M", fmt.Sprintf("count=%d", files), "status=none"); err != nil {
				return err
			}
			_, err := p.pause(ctx)
			return err
		})
		if err != nil {
			return nil, err
		}
		w.touched += int64(files) << 20
		if _, err := p.wake(ctx); err != nil {
			return nil, err
		}
		if i >= 0 {
			list = append(list, w)
		}
	}
	return list, nil
}
