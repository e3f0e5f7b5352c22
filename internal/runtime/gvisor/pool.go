package gvisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// Warm says which runtimes are to wait, made and empty, for a Start or Restore
// that then need not make one.
type Warm struct {
	Count int // 0 for none
	// Spec says what they are like at first, apart from ID and Rootfs. Later
	// they are like what was launched last.
	Spec runtime.Spec
}

// calm is for how long no launch may have been in progress before a runtime is
// made ahead: it is not to slow the launches, nor what they are made for. Where several
// owners launch, that is waited for no longer than calmPatience: one of them could keep
// the others from ever finding a runtime that waits.
const (
	calm         = 100 * time.Millisecond
	calmPatience = 400 * time.Millisecond
)

// pool keeps runtimes waiting. One goroutine makes them.
type pool struct {
	d       *Driver
	size    int
	log     *slog.Logger
	stop    context.CancelFunc
	stopped chan struct{}
	changed chan struct{} // has room for one: there may be something to do
	images  imagePool

	mu        sync.Mutex
	shape     runtime.Spec // of the last launch
	demand    demand
	waiting   []*slot // oldest first
	launching int
}

// slot is a runtime that waits.
type slot struct {
	shape runtime.Spec
	c     *container.Container
	root  *rootSender
}

// shapeOf returns what of a spec a runtime is made with: all but what it can
// be given later.
func shapeOf(s runtime.Spec) runtime.Spec {
	s.ID, s.Owner, s.Rootfs, s.Network, s.Sharers, s.Build, s.Unread, s.AllFirst, s.Late, s.Disk = "", "", "", nil, 0, "", nil, false, nil, runtime.Disk{}
	return s
}

// fits reports whether a runtime that waited could be what spec describes. What
// is mounted beside the root has to be there when its processes are made.
func fits(s runtime.Spec) bool { return len(s.Mounts) == 0 }

func newPool(ctx context.Context, d *Driver, warm Warm) *pool {
	ctx, stop := context.WithCancel(ctx)
	p := &pool{
		d: d, size: warm.Count, log: d.log, shape: shapeOf(warm.Spec), demand: demand{},
		stop: stop, stopped: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	p.look()
	go func() {
		defer close(p.stopped)
		p.run(ctx)
	}()
	return p
}

// close ends the runtimes that wait.
func (p *pool) close() error {
	p.stop()
	<-p.stopped
	p.images.close()
	p.mu.Lock()
	waiting := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	var errs []error
	for _, s := range waiting {
		errs = append(errs, p.d.discard(s))
	}
	return errors.Join(errs...)
}

// look makes the goroutine see whether there is something to do.
func (p *pool) look() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// begin and end surround a launch.
func (p *pool) begin(spec runtime.Spec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.launching++
	if fits(spec) {
		p.shape = shapeOf(spec)
		p.demand.launched(spec.Owner, p.shape, time.Now())
	}
}

func (p *pool) end() {
	p.mu.Lock()
	p.launching--
	p.mu.Unlock()
	p.look()
}

// take turns a runtime that waits into the one that spec describes. It returns
// nil if there is none that could be.
func (p *pool) take(spec runtime.Spec) (*container.Container, error) {
	if !fits(spec) {
		return nil, nil
	}
	for {
		s := p.pick(shapeOf(spec), spec.Owner)
		if s == nil {
			return nil, nil
		}
		err := p.d.become(s, spec)
		if err == nil {
			return s.c, nil
		}
		// One that has died is of no use. Another may do, or a new one.
		p.log.Warn("a runtime that waited cannot be used", "err", err)
		if err := p.d.discard(s); err != nil {
			return nil, err
		}
	}
}

// pick takes a runtime that waits out of the pool. nil is none of this shape, or none
// that this owner should have.
func (p *pool) pick(shape runtime.Spec, owner string) *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 1 && !p.demand.mayTakeLast(owner, time.Now()) {
		return nil
	}
	i := slices.IndexFunc(p.waiting, func(s *slot) bool { return reflect.DeepEqual(s.shape, shape) })
	if i < 0 {
		return nil
	}
	s := p.waiting[i]
	p.waiting = slices.Delete(p.waiting, i, i+1)
	return s
}

// run keeps the pool full.
func (p *pool) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		}
		// One loop for both: awaitCalm takes what says that there is something to do.
		for (p.lacks() || p.images.lacks()) && p.awaitCalm(ctx) {
			fill := p.fill
			if !p.lacks() {
				fill = p.images.fill
			}
			if err := fill(ctx); err != nil && ctx.Err() == nil {
				p.log.Warn("nothing waits for the next start or wake", "err", err)
				break // until the next launch
			}
		}
	}
}

// lacks reports whether there should be another runtime: the pool has room, or holds
// nothing of use to who comes first.
func (p *pool) lacks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) < p.size || p.size > 0 && !p.holds(p.wanted()[0])
}

// wanted returns the shapes that runtimes should have, the most urgent one first.
func (p *pool) wanted() []runtime.Spec {
	if shapes := p.demand.shapes(time.Now()); len(shapes) > 0 {
		return shapes
	}
	return []runtime.Spec{p.shape}
}

func (p *pool) holds(shape runtime.Spec) bool {
	return slices.ContainsFunc(p.waiting, func(s *slot) bool { return reflect.DeepEqual(s.shape, shape) })
}

// awaitCalm waits until no launch has been in progress for a while, or for too long. It
// reports false if ctx ends first.
func (p *pool) awaitCalm(ctx context.Context) bool {
	t := time.NewTimer(calm)
	defer t.Stop()
	patience := time.NewTimer(calmPatience)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-p.changed:
		case <-patience.C:
			p.mu.Lock()
			several := p.demand.several()
			p.mu.Unlock()
			if several {
				return true
			}
		case <-t.C:
			p.mu.Lock()
			launching := p.launching
			p.mu.Unlock()
			if launching == 0 {
				return true
			}
		}
		t.Reset(calm)
	}
}

// fill adds a runtime of the most urgent shape that there is none of. The oldest makes
// room for it.
func (p *pool) fill(ctx context.Context) error {
	p.mu.Lock()
	wanted := p.wanted()
	shape := wanted[max(slices.IndexFunc(wanted, func(shape runtime.Spec) bool { return !p.holds(shape) }), 0)]
	var old []*slot
	if n := len(p.waiting) - p.size + 1; n > 0 {
		old = slices.Clone(p.waiting[:n])
		p.waiting = slices.Delete(p.waiting, 0, n)
	}
	p.mu.Unlock()
	for _, s := range old {
		if err := p.d.discard(s); err != nil {
			return err
		}
	}
	s, err := p.d.makeSlot(ctx, shape)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, s)
	return nil
}

// makeSlot makes a runtime without a root.
func (d *Driver) makeSlot(ctx context.Context, shape runtime.Spec) (_ *slot, err error) {
	spec := shape
	// Of another length and form than the ids of launches.
	spec.ID = "warm-" + strings.ToLower(rand.Text())
	bundle := filepath.Join(d.waiting(), spec.ID)
	spec.Rootfs = lateRootDir(bundle)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.remove(bundle, spec.ID))
		}
	}()
	accept, cancel, err := listenForRoot(spec.Rootfs)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := os.WriteFile(filepath.Join(bundle, containerIDFile), []byte(spec.ID), 0o600); err != nil {
		return nil, err
	}
	c, err := d.make(ctx, bundle, spec, nil)
	if err != nil {
		return nil, err
	}
	root, err := accept()
	if err != nil {
		return nil, err
	}
	return &slot{shape: shape, c: c.(local).c, root: root}, nil
}

// become gives a runtime that waits its root and its id.
func (d *Driver) become(s *slot, spec runtime.Spec) error {
	for _, pid := range []int{s.c.SandboxPid(), s.c.GoferPid.Load()} {
		if exited(pid) {
			return fmt.Errorf("process %d of runtime %s has exited", pid, s.c.ID)
		}
	}
	if err := failpoint.Fail(failpoint.WarmRoot); err != nil {
		return err
	}
	if err := s.root.send(spec.Rootfs); err != nil {
		return err
	}
	if err := failpoint.Fail(failpoint.WarmMove); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(d.waiting(), s.c.ID), d.bundle(spec.ID)); err != nil {
		return err
	}
	s.root.close()
	failpoint.Pass(failpoint.WarmMoved)
	return nil
}

// exited reports whether a process has ended, even if nobody has waited for it.
func exited(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err != nil || n > 0
}

// discard removes a runtime that waits.
func (d *Driver) discard(s *slot) error {
	s.root.close()
	return d.remove(filepath.Join(d.waiting(), s.c.ID), s.c.ID)
}

// removeWaiting removes all runtimes that wait, even half made ones.
func (d *Driver) removeWaiting() error {
	ids, err := names(d.waiting())
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, d.remove(filepath.Join(d.waiting(), id), id))
	}
	return errors.Join(errs...)
}
