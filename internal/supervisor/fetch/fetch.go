// Package fetch reads what memory images lack from object storage, while the sandboxes
// run already whose images they are: first what somebody waits for, then the rest.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/replica"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
)

const (
	// parallel is how many pieces of an image are read at once. Of all images there are as many
	// as mostBehind that nobody waits for, and mostAsked that somebody does.
	parallel   = 4
	mostBehind = 8
	mostAsked  = 16
	// goneWithin is for how long after a failure it is looked whether the image is being removed.
	goneWithin = 2 * time.Second
	// The pauses between tries while object storage does not answer, or the disk is full.
	leastPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second

	codeDamaged = "checkpoint_damaged"
)

// Fetcher completes memory images. It is safe for concurrent use.
type Fetcher struct {
	layers *layer.Store
	space  *space.Disk
	log    *slog.Logger
	ctx    context.Context
	work   sync.WaitGroup
	behind chan struct{} // pieces that are being read, and nobody waits for
	asked  chan struct{} // those that somebody waits for

	mu  sync.Mutex
	all map[string]*Fetch // by image
}

// New returns a Fetcher that works until ctx ends.
func New(ctx context.Context, layers *layer.Store, disk *space.Disk, log *slog.Logger) *Fetcher {
	return &Fetcher{layers: layers, space: disk, log: log, ctx: ctx, all: map[string]*Fetch{}, behind: make(chan struct{}, mostBehind), asked: make(chan struct{}, mostAsked)}
}

// Stopped returns when nothing is read any more, after the end of its ctx.
func (f *Fetcher) Stopped() { f.work.Wait() }

// Begin has the pages of an image read that come late: open says from where, as often as it
// takes. Nothing happens where the image is whole, or is being read.
func (f *Fetcher) Begin(image string, open func(context.Context) (replica.Part, error)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, x := range f.all { // what was removed since it failed
		if !x.Failed() {
			continue
		}
		if _, err := os.Stat(layer.LatePath(f.layers.ImageDir(id))); errors.Is(err, fs.ErrNotExist) {
			delete(f.all, id)
		}
	}
	if f.all[image] != nil {
		return nil
	}
	return f.beginLocked(image, open)
}

func (f *Fetcher) beginLocked(image string, open func(context.Context) (replica.Part, error)) error {
	late, err := layer.OpenLate(f.layers.ImageDir(image))
	if late == nil || err != nil {
		return err
	}
	x := &Fetch{f: f, image: image, late: late, open: open, opened: make(chan struct{}), over: make(chan struct{}), asked: make(chan int, parallel)}
	f.all[image] = x
	f.work.Go(func() { f.run(x) })
	return nil
}

// run completes an image.
func (f *Fetcher) run(x *Fetch) {
	defer x.late.Close()
	err := x.run(f.ctx)
	if err == nil {
		err = x.late.Complete()
	}
	for begin := time.Now(); err != nil && !x.gone() && time.Since(begin) < goneWithin && insist.Sleep(f.ctx, leastPause); {
	}
	gone := x.gone()
	switch {
	case err == nil:
		f.log.Info("memory image is whole", "image", x.image, "bytes", x.late.Size)
	case f.ctx.Err() != nil:
		err = f.ctx.Err()
	case !gone:
		f.log.Error("memory image cannot be completed: its sandbox does not wake again", "image", x.image, "err", err)
		err = errdef.New(errdef.Unavailable, codeDamaged, "its memory image %s could not be read whole from object storage: %w", x.image, err).
			WithRemedy("put its copy back from a backup of the bucket and resume it again, or kill it")
	}
	if err == nil || gone {
		f.mu.Lock()
		delete(f.all, x.image)
		f.mu.Unlock()
	}
	x.end(err)
}

// end tells all who wait.
func (x *Fetch) end(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err = err
	if err == nil {
		for f := range x.listeners {
			(*f)(x.late.Size)
		}
	}
	close(x.over)
}

// WhenWhole implements runtime.Late.
func (x *Fetch) WhenWhole(f func(size int64)) (stop func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.over:
		if x.err == nil {
			f(x.late.Size)
		}
		return func() {}
	default:
	}
	if x.listeners == nil {
		x.listeners = map[*func(int64)]bool{}
	}
	x.listeners[&f] = true
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.listeners, &f)
	}
}

// Of returns what reads the rest of an image; nil if nothing does.
func (f *Fetcher) Of(image string) *Fetch {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all[image]
}

// Wait returns when nothing of an image is being read any more, and why it is not whole. What has
// failed before is tried once more.
func (f *Fetcher) Wait(ctx context.Context, image string) error {
	x := f.Of(image)
	if x == nil {
		return nil
	}
	if x.Failed() {
		f.mu.Lock()
		var err error
		if f.all[image] == x {
			delete(f.all, image)
			if err = f.beginLocked(image, x.open); err != nil {
				f.all[image] = x
			}
		}
		x = f.all[image]
		f.mu.Unlock()
		if x == nil || err != nil {
			return err
		}
	}
	select {
	case <-x.over:
		return x.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Drain returns when no image is being completed any more, or ctx ends.
func (f *Fetcher) Drain(ctx context.Context) error {
	f.mu.Lock()
	all := slices.Collect(maps.Values(f.all))
	f.mu.Unlock()
	for _, x := range all {
		select {
		case <-x.over: // also what cannot be completed
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("memory of a sandbox is still being read: %w", ctx.Err())
	}
	return nil
}

// Fetch is the pages of an image that are being read. It implements [runtime.Late].
type Fetch struct {
	f     *Fetcher
	image string
	late  *layer.Late
	open  func(context.Context) (replica.Part, error)
	asked chan int // pieces that somebody waits for

	opened chan struct{} // closed when part and pieces are there
	part   replica.Part
	pieces []piece

	over chan struct{} // closed after err is set
	err  error

	mu        sync.Mutex // guards the end; the Fetcher's is not held while listeners are told, who may wait
	listeners map[*func(size int64)]bool
}

// piece is a piece of the file. It is there once ready is closed.
type piece struct {
	begun atomic.Bool
	ready chan struct{}
}

var _ runtime.Late = (*Fetch)(nil)

// Await implements runtime.Late.
func (x *Fetch) Await(ctx context.Context, off int64) (start, end int64, err error) {
	select {
	case <-x.opened:
	case <-x.over:
		return 0, x.late.Size, x.err
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	n, start, end := x.part.PieceAt(min(off, x.part.Size()-1))
	if x.ready(n) {
		return start, end, nil
	}
	for asked := x.asked; ; {
		select {
		case asked <- n:
			asked = nil
		case <-x.pieces[n].ready:
			return start, end, nil
		case <-x.over:
			if x.ready(n) {
				return start, end, nil
			}
			return start, end, x.err
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// Failed reports whether the rest will not come.
func (x *Fetch) Failed() bool {
	select {
	case <-x.over:
		return x.err != nil
	default:
		return false
	}
}

// ready reports whether a piece is there.
func (x *Fetch) ready(n int) bool {
	select {
	case <-x.pieces[n].ready:
		return true
	default:
		return false
	}
}

// gone reports whether the image was removed.
func (x *Fetch) gone() bool {
	var st unix.Stat_t
	return unix.Fstat(int(x.late.Fd()), &st) == nil && st.Nlink == 0
}

// run reads all of the file.
func (x *Fetch) run(ctx context.Context) error {
	if err := x.again(ctx, func() (err error) {
		x.part, err = x.open(ctx)
		return err
	}); err != nil {
		return err
	}
	if x.part.Size() != x.late.Size {
		return fmt.Errorf("internal error: %d bytes for a file of %d", x.part.Size(), x.late.Size)
	}
	x.pieces = make([]piece, x.part.Pieces())
	for i := range x.pieces {
		x.pieces[i].ready = make(chan struct{})
	}
	close(x.opened)
	todo := make(chan int)
	group, ctx := errgroup.WithContext(ctx)
	for range parallel {
		group.Go(func() error { return x.work(ctx, todo) })
	}
	group.Go(func() error {
		defer close(todo)
		for n := range x.pieces {
			select {
			case todo <- n:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return group.Wait()
}

// work reads pieces until all were read: those that somebody waits for before others.
func (x *Fetch) work(ctx context.Context, todo <-chan int) error {
	for {
		select {
		case n := <-x.asked:
			if err := x.one(ctx, n, x.f.asked); err != nil {
				return err
			}
			continue
		default:
		}
		// A turn behind others is taken before a piece is, or somebody might wait for that.
		select {
		case n := <-x.asked:
			if err := x.one(ctx, n, x.f.asked); err != nil {
				return err
			}
		case x.f.behind <- struct{}{}:
			n, more := <-todo
			err := error(nil)
			if more {
				err = x.one(ctx, n, nil)
			}
			<-x.f.behind
			if err != nil || !more {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// one reads a piece, if nobody does or has, in its turn.
func (x *Fetch) one(ctx context.Context, n int, turn chan struct{}) error {
	if !x.pieces[n].begun.CompareAndSwap(false, true) {
		return nil
	}
	if turn != nil {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := x.again(ctx, func() error { return x.bring(ctx, n) })
	if err == nil {
		close(x.pieces[n].ready)
	}
	return err
}

// errGone is that nobody needs the image any more.
var errGone = errors.New("the memory image was removed")

// bring reads one piece.
func (x *Fetch) bring(ctx context.Context, n int) error {
	start, end := x.part.Bounds(n)
	if x.part.Zeros(n) {
		return x.late.Zeros(start, end-start)
	}
	if err := x.f.space.Check(space.Least); err != nil {
		return err
	}
	data, err := x.part.Read(ctx, n)
	if err != nil {
		return err
	}
	_, err = x.late.WriteAt(data, start)
	return err
}

// again does something until it succeeds, unless it never will.
func (x *Fetch) again(ctx context.Context, f func() error) error {
	pause := leastPause
	for n := 0; ; n++ {
		if x.gone() {
			return errGone
		}
		err := f()
		if err == nil || lasting(err) {
			return err
		}
		if n%20 == 0 {
			x.f.log.Warn("a memory image is not read on yet", "image", x.image, "err", err)
		}
		if !insist.Sleep(ctx, pause) {
			return ctx.Err()
		}
		pause = min(2*pause, mostPause)
	}
}

// lasting reports whether no other try mends an error.
func lasting(err error) bool {
	switch errdef.CodeOf(err) {
	case "replica_damaged", "replica_too_new":
		return true
	}
	return errdef.Is(err, errdef.NotFound) || errdef.Is(err, errdef.Invalid) || errdef.Is(err, errdef.Unsupported) || errdef.Is(err, errdef.Conflict)
}
