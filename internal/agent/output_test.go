package agent

import (
	"testing"
	"testing/synctest"
	"time"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
)

// takeAll counts the data bytes that are in the queue.
func takeAll(s *processSubscriber) (size int, ended bool) {
	for e := s.take(); e != nil; e = s.take() {
		size += len(e.GetData().GetStdout())
		ended = ended || e.GetEnd() != nil
	}
	return size, ended
}

func fill(o *output, bytes int) {
	for chunk := make([]byte, pipeChunk); bytes > 0; bytes -= pipeChunk {
		o.publish(chunk, stdoutEvent)
	}
}

func TestOutputWithoutSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o output
		begin := time.Now()
		fill(&o, 10*queueLimit)
		if time.Since(begin) != 0 {
			t.Error("publish waited for nobody")
		}
		s := o.subscribe()
		if size, _ := takeAll(s); size != 0 {
			t.Errorf("%d bytes from before the subscription", size)
		}
	})
}

// A subscriber that is slow but takes something within stallLimit gets all.
func TestSlowSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o output
		s := o.subscribe()
		const total = 2 * queueLimit
		go func() {
			fill(&o, total)
			o.finish(endEvent(0))
		}()
		size, ended := 0, false
		for !ended {
			time.Sleep(stallLimit - time.Millisecond)
			if e := s.take(); e != nil {
				size += len(e.GetData().GetStdout())
				ended = e.GetEnd() != nil
			}
		}
		if size != total {
			t.Errorf("got %d of %d bytes", size, total)
		}
	})
}

// One that takes nothing is cut off after stallLimit, and holds up the
// process and the others that long at most.
func TestStuckSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o output
		stuck, good := o.subscribe(), o.subscribe()
		interrupted := false
		stuck.interruptWith(func() { interrupted = true })
		size := make(chan int)
		go func() {
			sum := 0
			for {
				n, ended := takeAll(good)
				if sum += n; ended {
					size <- sum
					return
				}
				<-good.ready
			}
		}()
		begin := time.Now()
		fill(&o, 4*queueLimit)
		if took := time.Since(begin); took != stallLimit {
			t.Errorf("publishing took %v, want %v", took, stallLimit)
		}
		o.finish(endEvent(0))
		if got := <-size; got != 4*queueLimit {
			t.Errorf("the other subscriber got %d bytes", got)
		}
		<-stuck.gone
		if n, ended := takeAll(stuck); n != 0 || ended || !interrupted {
			t.Errorf("the stuck one has %d bytes, end %v, interrupted %v", n, ended, interrupted)
		}
	})
}

// Tiny events fill the queue by what they cost, not by what they carry.
func TestTinyEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o output
		s := o.subscribe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range queueLimit {
				o.publish([]byte{'x'}, stdoutEvent)
			}
		}()
		synctest.Wait()
		s.mu.Lock()
		if got := len(s.queue); got > queueLimit/eventCost {
			t.Errorf("%d events in the queue", got)
		}
		s.mu.Unlock()
		o.unsubscribe(s)
		<-done
	})
}

// Leaving releases a publisher that waits.
func TestUnsubscribeReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o output
		s := o.subscribe()
		begin := time.Now()
		done := make(chan struct{})
		go func() { fill(&o, 2*queueLimit); close(done) }()
		synctest.Wait()
		o.unsubscribe(s)
		<-done
		if time.Since(begin) != 0 {
			t.Error("the publisher waited for one that had left")
		}
	})
}

func TestSubscribeAfterTheEnd(t *testing.T) {
	var o output
	o.finish(endEvent(0))
	s := o.subscribe()
	if e := s.take(); e.GetEnd() == nil {
		t.Errorf("got %v", e)
	}
	o.unsubscribe(s)
}

func TestEndOfCoreDump(t *testing.T) {
	end := endEvent(6 | 0x80).GetEnd()
	if end.Status != "signal: aborted (core dumped)" || end.GetError() != end.Status || end.Exited {
		t.Errorf("end = %v", end)
	}
}

func TestAwakeTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range []time.Duration{0, time.Second, awakeStep, time.Minute + time.Millisecond} {
			begin := time.Now()
			fired := make(chan time.Duration, 1)
			afterAwake(d, func() { fired <- time.Since(begin) })
			if got := <-fired; got != d {
				t.Errorf("fired after %v, want %v", got, d)
			}
		}
		timer := afterAwake(time.Minute, func() { t.Error("fired after stop") })
		time.Sleep(30 * time.Second)
		timer.stop()
		time.Sleep(time.Hour)
	})
}

// A step in which the sandbox slept is free; one that was late is not.
func TestAwakeCharge(t *testing.T) {
	tests := []struct{ step, elapsed, want time.Duration }{
		{awakeStep, awakeStep, awakeStep},
		{awakeStep, awakeStep + time.Second, awakeStep + time.Second},
		{awakeStep, time.Hour, 0},
		{time.Second, time.Hour, 0},
		{awakeStep, awakeStep - time.Microsecond, awakeStep},
	}
	for _, tt := range tests {
		if got := awakeCharge(tt.step, tt.elapsed); got != tt.want {
			t.Errorf("awakeCharge(%v, %v) = %v, want %v", tt.step, tt.elapsed, got, tt.want)
		}
	}
}

func TestTagPrefersTheLiving(t *testing.T) {
	r := newReaper(false)
	ps := newProcesses()
	name := "t"
	dead := &process{pid: 1, tag: &name, reaper: r, child: &child{done: make(chan struct{})}}
	close(dead.child.done)
	living := &process{pid: 2, tag: &name, reaper: r, child: &child{done: make(chan struct{})}}
	ps.add(dead)
	ps.add(living)
	for range 20 {
		p, err := ps.find(&processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Tag{Tag: name}})
		if err != nil || p != living {
			t.Fatalf("found %v, %v", p, err)
		}
	}
}

func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ps := newProcesses()
		old := &process{pid: 7, child: &child{done: make(chan struct{})}}
		close(old.child.done)
		ps.add(old)
		ps.ended(old)
		time.Sleep(retention - time.Second)
		if _, err := ps.find(pid(7)); err != nil {
			t.Errorf("before the retention: %v", err)
		}
		// The pid comes back: the timer of the old process leaves it alone.
		again := &process{pid: 7, child: &child{done: make(chan struct{})}}
		ps.add(again)
		time.Sleep(time.Minute)
		if p, err := ps.find(pid(7)); err != nil || p != again {
			t.Errorf("the new process: %v, %v", p, err)
		}
		close(again.child.done)
		ps.ended(again)
		time.Sleep(retention + time.Second)
		if _, err := ps.find(pid(7)); err == nil {
			t.Error("found after the retention")
		}
	})
}
