package services

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/service"
)

const (
	// stopGrace is how long a process has to end when asked, before it is killed.
	stopGrace = 10 * time.Second

	// firstBackoff is how long a service waits after its first failure. It doubles
	// with each failure in a row.
	firstBackoff = time.Second

	// steady is how long a service must have been ready for its next failure to be
	// the first in a row.
	steady = 10 * time.Second

	// loud is how many failures in a row are each told of. After that, every
	// doubling of their number is.
	loud = 3
)

// unit is one service, as it was asked for at one time.
type unit struct {
	m    *Manager
	spec service.Service
	log  *log

	stop chan struct{} // closed to end it
	gone chan struct{} // closed when nothing of it runs
	kick chan struct{} // has one element when it is to be started again now

	// Guarded by Manager.mu.
	ending bool
	status service.Status
}

// end begins to end the service. It is called with the manager's mu held.
func (u *unit) end() {
	if !u.ending {
		u.ending = true
		close(u.stop)
	}
}

// run supervises the service until it is stopped.
func (u *unit) run(before <-chan struct{}) {
	defer close(u.gone)
	if before != nil {
		<-before // it is being ended, which is bounded
	}
	for failures := 0; ; {
		if !u.awaitOthers() {
			return
		}
		o := u.once(failures)
		switch {
		case o.stopped:
			return
		case o.again:
			failures = 0
			continue
		}
		if o.steady {
			failures = 0
		}
		again, ok := u.rest(o.err, &failures)
		if !ok {
			return
		}
		if again {
			failures = 0
		}
	}
}

// awaitOthers waits until the services are ready that this one starts after. It
// reports false if it was stopped.
func (u *unit) awaitOthers() bool {
	for {
		u.m.mu.Lock()
		missing, changed := u.m.missing(u.spec.After), u.m.changed
		if missing != "" && (u.status.State != service.Waiting || u.status.WaitsFor != missing) {
			u.enter(service.Waiting)
			u.status.WaitsFor = missing
			u.m.stir()
			changed = u.m.changed
		}
		u.m.mu.Unlock()
		select {
		case <-u.stop:
			return false
		default:
		}
		if missing == "" {
			return true
		}
		select {
		case <-changed:
		case <-u.stop:
			return false
		}
	}
}

// outcome is how a process of the service ended.
type outcome struct {
	stopped bool  // because the service was
	again   bool  // because the service is to be started again
	err     error // else; nil for success
	steady  bool  // it had been ready for long
}

// errUnready is the failure of a service that was not ready in time.
var errUnready = errors.New("it was not ready in time")

// once starts the service and sees its process to the end.
func (u *unit) once(failures int) outcome {
	select { // whatever asked for a start is served by this one
	case <-u.kick:
	default:
	}
	u.log.part()
	u.set(func() {
		u.enter(service.Starting)
		u.status.Starts++
		u.status.Failures = failures
		u.status.StartedAt = u.status.Since
		if told(failures) {
			u.m.happened(u.spec.Name, service.EventStarted, "")
		}
	})
	p, err := u.m.starter.Start(u.spec, u.log)
	if err != nil {
		u.log.say("drowse: it could not be started: %v", err)
		return outcome{err: fmt.Errorf("it could not be started: %w", err)}
	}
	u.set(func() { u.status.PID = p.PID() })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- u.untilReady(ctx) }()
	var since time.Time
	for {
		select {
		case <-p.Done():
			return outcome{err: p.Err(), steady: !since.IsZero() && now().Sub(since) >= steady}
		case err := <-ready:
			if err != nil {
				u.terminate(p)
				return outcome{err: err}
			}
			since = now()
			u.set(func() {
				if len(u.kick) > 0 { // it is to be started again
					return
				}
				u.enter(service.IsReady)
				u.status.ReadyAt = u.status.Since
				if told(failures) {
					u.m.happened(u.spec.Name, service.EventReady, fmt.Sprintf("%v after its start", u.status.Since.Sub(u.status.StartedAt).Round(time.Millisecond)))
				}
			})
		case <-u.stop:
			cancel()
			u.terminate(p)
			u.set(func() { u.m.happened(u.spec.Name, service.EventEnded, "it was stopped") })
			return outcome{stopped: true}
		case <-u.kick:
			cancel()
			u.terminate(p)
			u.set(func() { u.m.happened(u.spec.Name, service.EventEnded, "it is started again, as asked") })
			return outcome{again: true}
		}
	}
}

// terminate ends a process, and waits for that.
func (u *unit) terminate(p Process) {
	u.set(func() { u.enter(service.Stopping) })
	p.Stop(false)
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-p.Done():
	case <-grace.C:
		p.Stop(true)
		<-p.Done()
	}
}

// rest notes how a process ended, and waits until it is time for the next. ok is
// false if the service was stopped, and asked is true if the next is for being asked.
func (u *unit) rest(end error, failures *int) (asked, ok bool) {
	var wait <-chan time.Time
	policy := u.spec.Restart
	again := policy == service.Always || policy == service.OnFailure && end != nil
	if again {
		*failures++
		d := u.backoff(*failures)
		timer := time.NewTimer(d)
		defer timer.Stop()
		wait = timer.C
		u.backOff(end, *failures, d)
	} else {
		u.settle(end)
	}
	select {
	case <-wait:
		return false, true
	case <-u.kick:
		return true, true
	case <-u.stop:
		return false, false
	}
}

// backoff returns how long to wait after so many failures in a row.
func (u *unit) backoff(failures int) time.Duration {
	d := firstBackoff
	for range failures - 1 {
		if d *= 2; d >= u.spec.MaxBackoff {
			return u.spec.MaxBackoff
		}
	}
	return min(d, u.spec.MaxBackoff)
}

func (u *unit) backOff(end error, failures int, d time.Duration) {
	// First: who is told that it ended may look there at once.
	u.log.say("drowse: it ended (%s); it is started again in %v", said(end), d)
	u.set(func() {
		u.enter(service.BackingOff)
		u.status.NextAt, u.status.Failures, u.status.LastEnd = u.status.Since.Add(d), failures, said(end)
		if !told(failures) {
			return
		}
		u.m.happened(u.spec.Name, service.EventCrashed, said(end))
		u.m.happened(u.spec.Name, service.EventBackingOff, fmt.Sprintf("it is started again in %v, after %d failures in a row", d, failures))
	})
}

func (u *unit) settle(end error) {
	u.log.say("drowse: it ended (%s); it is not started again", said(end))
	u.set(func() {
		u.status.LastEnd = said(end)
		if end == nil {
			u.enter(service.Done)
			u.m.happened(u.spec.Name, service.EventEnded, said(end))
			return
		}
		u.status.Failures++
		u.enter(service.Failed)
		u.m.happened(u.spec.Name, service.EventCrashed, said(end)+"; it is not started again")
	})
}

// told reports whether a failure of that number is told of in the event log.
func told(failures int) bool {
	for n := loud; n < failures; n *= 2 {
		if failures == 2*n {
			return true
		}
	}
	return failures <= loud
}

func said(end error) string {
	if end == nil {
		return "exit status 0"
	}
	return human.Line(end.Error(), service.MaxDetail)
}

// enter changes the state. It is called with the manager's mu held.
func (u *unit) enter(s service.State) {
	u.status.State, u.status.Since = s, now()
	u.status.WaitsFor, u.status.NextAt, u.status.ReadyAt = "", time.Time{}, time.Time{}
	switch s {
	case service.Starting, service.IsReady, service.Stopping:
	default:
		u.status.PID, u.status.StartedAt = 0, time.Time{}
	}
}

// set changes the status.
func (u *unit) set(change func()) {
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	change()
	u.m.stir()
}
