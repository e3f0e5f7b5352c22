package interpreter

import (
	"sync"
	"time"
)

// execution is a listener to one kernel while it runs one cell.
type execution struct {
	messages chan *message
	finished chan struct{} // closed by the kernel, after the last message
	gone     chan struct{} // closed by the listener, who takes no more
	leave    func()        // closes gone, once
}

func newExecution() *execution {
	x := &execution{messages: make(chan *message), finished: make(chan struct{}), gone: make(chan struct{})}
	x.leave = sync.OnceFunc(func() { close(x.gone) })
	return x
}

// request says what becomes of the variables of a cell afterwards: they are
// what the kernel started with, or nothing. It is made once for each cell, in turn.
func (k *kernel) request(c cell, count int) request {
	copies := k.host.Copies()
	r := request{Code: c.code, Count: count, Env: map[string]string{}, Restore: map[string]*string{}, Reseed: copies != k.copies}
	k.copies = copies
	for name, value := range c.env {
		r.Env[name], r.Restore[name] = value, nil
		if before, ok := k.env[name]; ok {
			r.Restore[name] = &before
		}
	}
	return r
}

// stop interrupts a cell nobody listens to any more, and ends a kernel that
// does not heed it.
func (k *kernel) stop(x *execution) {
	limit := time.NewTimer(interruptLimit)
	defer limit.Stop()
	again := time.NewTicker(interruptEvery)
	defer again.Stop()
	k.speech.interrupt()
	for {
		select {
		case <-x.finished:
			k.settle(limit.C)
			return
		case <-k.ended:
			return
		case <-again.C:
			k.speech.interrupt()
		case <-limit.C:
			k.kill()
			return
		}
	}
}

// settle has the kernel run nothing, so that an interrupt that came after the
// end of its cell does not meet the next one.
func (k *kernel) settle(limit <-chan time.Time) {
	x := newExecution()
	x.leave()
	k.listen(x)
	request := k.request(cell{}, 0)
	go func() { _ = k.speech.run(request) }()
	select {
	case <-x.finished:
	case <-k.ended:
	case <-limit:
		k.kill()
	}
}

func (k *kernel) kill() {
	k.process.Kill()
	<-k.ended
}

// endWith says why the kernel will have ended.
func (k *kernel) endWith(why ending) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end = why
}

func (k *kernel) why() ending {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.end != (ending{}) {
		return k.end
	}
	return ending{"UnexpectedEndOfExecution", "The kernel has ended (" + k.process.Status() + "); the next execution starts a new one"}
}
