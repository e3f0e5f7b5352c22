// Package sleeps is the screen of "drowse demo --tui": sandboxes that fall asleep and
// wake again and again, in turn. After each wake, what a sandbox has in memory and in
// files is compared byte for byte with what it had before.
//
// One goroutine owns what is shown; others live the life of a sandbox each, and send
// it what has happened.
package sleeps

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gdamore/tcell/v3"

	"github.com/drowse-dev/drowse/client"
)

// Sandbox is a sandbox that is watched.
type Sandbox interface {
	ID() string
	// Read asks the program in it, which wakes it if it sleeps.
	Read(ctx context.Context) (Reading, error)
	// Nap has its timeout end after this long.
	Nap(ctx context.Context, after time.Duration) error
	// Pause puts it to sleep now.
	Pause(ctx context.Context) error
	// Info looks at it, which wakes nothing.
	Info(ctx context.Context) (client.Info, error)
	// Host says what it takes of the host now, and how many processes that are; -1
	// where that cannot be seen.
	Host() (use string, processes int, err error)
}

// Reading is what the program in a sandbox says.
type Reading struct {
	PID, Count    int
	Memory, Files []byte        // all that it has there
	FirstByte     time.Duration // from the request on
}

// Options say what is watched.
type Options struct {
	Sandboxes []Sandbox
	URL       string        // of the server
	Awake     time.Duration // how long a sandbox is awake each time, unless the user says
	Asleep    time.Duration // and asleep
}

const (
	lookEvery = 100 * time.Millisecond
	drawEvery = 100 * time.Millisecond
	// patience bounds each step of the sandbox's life.
	patience = time.Minute
)

// Sleep is what one sleep has come to.
type Sleep struct {
	ID            string
	Lasted        time.Duration
	Written       int64 // bytes, by the pause
	Before, After Reading
}

// Same returns an error unless the sandbox went on with all that it had.
func (s Sleep) Same() error {
	b, a := s.Before, s.After
	if err := sameBytes("memory", b.Memory, a.Memory); err != nil {
		return err
	}
	if err := sameBytes("files", b.Files, a.Files); err != nil {
		return err
	}
	switch {
	case a.PID != b.PID:
		return fmt.Errorf("its process was %d, and is %d after a sleep", b.PID, a.PID)
	case a.Count < b.Count:
		return fmt.Errorf("it had counted to %d, and is at %d after a sleep", b.Count, a.Count)
	}
	return nil
}

// sameBytes returns an error that says where two texts differ.
func sameBytes(what string, before, after []byte) error {
	if len(before) != len(after) {
		return fmt.Errorf("its %s had %d bytes, and have %d after a sleep", what, len(before), len(after))
	}
	for n := range before {
		if before[n] != after[n] {
			return fmt.Errorf("byte %d of its %s was %#02x, and is %#02x after a sleep", n, what, before[n], after[n])
		}
	}
	return nil
}

// phase is what a sandbox is doing.
type phase int

const (
	starting phase = iota
	awake
	fallingAsleep
	asleep
	waking
)

// screen is what is shown. Only the goroutine of [Run] touches it.
type screen struct {
	Options
	tty    tcell.Screen
	now    time.Time
	done   bool
	lives  []*life
	sleeps []Sleep // of all sandboxes, in the order in which they ended
}

// life is a sandbox's.
type life struct {
	Options
	sandbox Sandbox
	hurry   chan struct{} // ends what it does now
	tell    func(func(*screen))
	shown   shown
}

// shown is what is shown of a sandbox. Only the goroutine of [Run] touches it.
type shown struct {
	phase  phase
	until  time.Time // when the phase ends by itself
	last   Reading
	host   string
	sleeps int
}

// Run shows the sandboxes on tty until the user quits, ctx ends or something is not
// as it was. It returns the sleeps that have come to their end.
func Run(ctx context.Context, tty tcell.Screen, o Options) ([]Sleep, error) {
	ctx, cancel := context.WithCancel(ctx)
	var living sync.WaitGroup
	defer living.Wait()
	defer cancel()
	if err := tty.Init(); err != nil {
		return nil, fmt.Errorf("cannot use this terminal: %w", err)
	}
	defer tty.Fini()
	s := &screen{Options: o, tty: tty, now: time.Now()}
	news, ended := make(chan func(*screen)), make(chan error, len(o.Sandboxes))
	for n, sandbox := range o.Sandboxes {
		l := &life{Options: o, sandbox: sandbox, hurry: make(chan struct{}, 1), tell: func(f func(*screen)) {
			select {
			case news <- f:
			case <-ctx.Done():
			}
		}}
		s.lives = append(s.lives, l)
		// The others are awake while one sleeps.
		later := time.Duration(n) * (o.Awake + o.Asleep) / time.Duration(len(o.Sandboxes))
		living.Go(func() { ended <- fmt.Errorf("sandbox %s: %w", sandbox.ID(), l.live(ctx, later)) })
	}
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	for !s.done {
		s.now = time.Now()
		s.draw()
		select {
		case event, open := <-tty.EventQ():
			if !open {
				return s.sleeps, nil
			}
			s.handle(event)
		case f := <-news:
			f(s)
		case err := <-ended:
			return s.sleeps, err
		case <-tick.C:
		}
	}
	return s.sleeps, nil
}

// handle takes in a key, or a new size.
func (s *screen) handle(event tcell.Event) {
	switch e := event.(type) {
	case *tcell.EventResize:
		s.tty.Sync()
	case *tcell.EventKey:
		switch {
		case e.Key() == tcell.KeyCtrlC, e.Key() == tcell.KeyEscape, e.Key() == tcell.KeyRune && e.Str() == "q":
			s.done = true
		case e.Key() == tcell.KeyRune && e.Str() == " ", e.Key() == tcell.KeyEnter:
			for _, l := range s.lives {
				select {
				case l.hurry <- struct{}{}:
				default: // it has been told already
				}
			}
		}
	}
}

// live lets the sandbox fall asleep and wakes it, until ctx ends. It is awake for so
// much longer the first time.
func (l *life) live(ctx context.Context, longer time.Duration) error {
	before, err := l.sandbox.Read(ctx)
	for err == nil {
		l.tell(func(*screen) { l.shown.last = before })
		var sleep Sleep
		sleep, err = l.sleep(ctx, before, l.Awake+longer)
		longer = 0
		if err == nil {
			err = sleep.Same()
		}
		if err == nil {
			before = sleep.After
			l.tell(func(s *screen) {
				l.shown.sleeps++
				s.sleeps = append(s.sleeps, sleep)
			})
		}
	}
	return err
}

// become shows a phase, which ends by itself after so long.
func (l *life) become(p phase, after time.Duration) {
	until := time.Now().Add(after)
	l.tell(func(*screen) { l.shown.phase, l.shown.until = p, until })
}

// sleep is one sleep, with the time awake before it.
func (l *life) sleep(ctx context.Context, before Reading, awakeFor time.Duration) (Sleep, error) {
	select {
	case <-l.hurry: // that was for what has ended
	default:
	}
	if err := l.sandbox.Nap(ctx, awakeFor); err != nil {
		return Sleep{}, err
	}
	l.become(awake, awakeFor)
	if err := l.untilAsleep(ctx); err != nil {
		return Sleep{}, err
	}
	began := time.Now()
	l.become(asleep, l.Asleep)
	// What it has written is counted before its runtime has ended: wait for that.
	if err := l.wait(ctx, "its processes are gone", func() (bool, error) {
		processes, err := l.look()
		return processes <= 0, err
	}); err != nil {
		return Sleep{}, err
	}
	info, err := l.sandbox.Info(ctx)
	if err != nil {
		return Sleep{}, err
	}
	rest := time.NewTimer(l.Asleep - time.Since(began))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-l.hurry:
	case <-ctx.Done():
		return Sleep{}, ctx.Err()
	}
	s := Sleep{ID: l.sandbox.ID(), Lasted: time.Since(began), Before: before}
	if info.Checkpoint != nil {
		s.Written = info.Checkpoint.Bytes
	}
	l.become(waking, 0)
	s.After, err = l.sandbox.Read(ctx)
	return s, err
}

// untilAsleep waits until the sandbox sleeps: by its timeout, or because the user
// wants it now.
func (l *life) untilAsleep(ctx context.Context) error {
	return l.wait(ctx, "it sleeps", func() (bool, error) {
		select {
		case <-l.hurry:
			l.become(fallingAsleep, 0)
			return true, l.sandbox.Pause(ctx)
		default:
		}
		if _, err := l.look(); err != nil {
			return false, err
		}
		info, err := l.sandbox.Info(ctx)
		switch {
		case err != nil:
			return false, err
		case info.State == client.Paused:
			return true, nil
		case info.Phase != "":
			l.tell(func(*screen) { l.shown.phase = fallingAsleep })
		}
		return false, nil
	})
}

// look shows what the sandbox takes of the host.
func (l *life) look() (processes int, err error) {
	use, processes, err := l.sandbox.Host()
	l.tell(func(*screen) { l.shown.host = use })
	return processes, err
}

// wait polls until ok.
func (l *life) wait(ctx context.Context, what string, ok func() (bool, error)) error {
	bound := 2*l.Awake + l.Asleep + patience
	give := time.NewTimer(bound)
	defer give.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if done, err := ok(); done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-give.C:
			return fmt.Errorf("waited %s in vain until %s", bound, what)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
