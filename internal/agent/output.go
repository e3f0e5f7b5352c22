package agent

import (
	"slices"
	"sync"
	"time"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
)

const (
	// queueLimit bounds what a subscriber may be behind, in bytes.
	queueLimit = 4 << 20

	// eventCost is what a queued event takes besides its data, so that many
	// tiny writes are bounded as well.
	eventCost = 256

	// stallLimit is how long a subscriber with a full queue may take nothing
	// before it is cut off.
	stallLimit = 5 * time.Second
)

// output fans the events of one process out to its subscribers.
//
// The rule: each subscriber has a queue of queueLimit bytes. While one is
// full, the process waits: a client that reads slowly but reads gets every
// byte, however large the output. A subscriber with a full queue that takes
// nothing for stallLimit is cut off with an error rather than served with a
// gap, and the process goes on. So a process is never held by an absent
// client, and by a stuck one for stallLimit at most. Output that nobody
// subscribed to is discarded, and counted.
type output struct {
	mu   sync.Mutex
	subs []*processSubscriber
	end  *processpb.ProcessEvent
	// missed is how many bytes were discarded for want of a subscriber.
	missed int64
}

// subscribe returns a queue of everything published from now on. After the
// end it holds only that.
func (o *output) subscribe() *processSubscriber {
	s := newSubscriber[*processpb.ProcessEvent]()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end != nil {
		s.put(o.end, 0)
		return s
	}
	o.subs = append(o.subs, s)
	return s
}

func (o *output) unsubscribe(s *processSubscriber) {
	s.leave(false)
	o.mu.Lock()
	defer o.mu.Unlock()
	// A clone, since publish walks the old slice without the lock.
	o.subs = slices.DeleteFunc(slices.Clone(o.subs), func(x *processSubscriber) bool { return x == s })
}

// watched reports whether anybody gets the events.
func (o *output) watched() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.subs) > 0
}

// publish delivers a chunk to every subscriber, waiting for those that are
// behind. The chunk is copied, and only if somebody wants it.
func (o *output) publish(chunk []byte, wrap func([]byte) *processpb.ProcessEvent) {
	o.mu.Lock()
	subs := o.subs
	if len(subs) == 0 {
		o.missed += int64(len(chunk))
	}
	o.mu.Unlock()
	if len(subs) == 0 {
		return
	}
	event := wrap(slices.Clone(chunk))
	for _, s := range subs {
		s.push(event, len(chunk)+eventCost)
	}
}

// lost returns how many bytes nobody has got.
func (o *output) lost() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.missed
}

// finish delivers the end. The caller sees to it that nothing is published
// afterwards.
func (o *output) finish(end *processpb.ProcessEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end = end
	for _, s := range o.subs {
		s.put(end, 0)
	}
	o.subs = nil
}

type processSubscriber = subscriber[*processpb.ProcessEvent]

// subscriber is one client's queue of events.
type subscriber[E any] struct {
	// ready has a token when something was put in, gone is closed when the
	// client left or was cut off.
	ready chan struct{}
	gone  chan struct{}

	mu    sync.Mutex
	queue []queued[E]
	bytes int
	room  chan struct{} // closed at the next take; nil while nobody waits
	left  bool

	interrupt func()
}

type queued[E any] struct {
	event E
	size  int
}

func newSubscriber[E any]() *subscriber[E] {
	return &subscriber[E]{ready: make(chan struct{}, 1), gone: make(chan struct{})}
}

// push puts an event in once there is room for it.
func (s *subscriber[E]) push(event E, size int) {
	for {
		room := s.tryPush(event, size)
		if room == nil {
			return
		}
		stall := time.NewTimer(stallLimit)
		select {
		case <-room:
			stall.Stop()
		case <-s.gone:
			stall.Stop()
			return
		case <-stall.C:
			s.leave(true)
			return
		}
	}
}

// tryPush returns nil if the event is in or no longer wanted, otherwise a
// channel that is closed when there is more room.
func (s *subscriber[E]) tryPush(event E, size int) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left {
		return nil
	}
	if s.bytes == 0 || s.bytes+size <= queueLimit {
		s.append(event, size)
		return nil
	}
	if s.room == nil {
		s.room = make(chan struct{})
	}
	return s.room
}

// put puts an event in whatever the room.
func (s *subscriber[E]) put(event E, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.left {
		s.append(event, size)
	}
}

// append is called with mu held.
func (s *subscriber[E]) append(event E, size int) {
	s.queue = append(s.queue, queued[E]{event, size})
	s.bytes += size
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// take returns the oldest event, or the zero value if there is none.
func (s *subscriber[E]) take() (event E) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return event
	}
	q := s.queue[0]
	s.queue[0] = queued[E]{}
	s.queue = s.queue[1:]
	s.bytes -= q.size
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
	return q.event
}

// leave ends the subscription; cut says that it was not the client's wish.
func (s *subscriber[E]) leave(cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left {
		return
	}
	s.left = true
	s.queue, s.bytes = nil, 0
	close(s.gone)
	if cut && s.interrupt != nil {
		s.interrupt()
	}
}

// interruptWith sets what unblocks the subscriber's client connection when it
// is cut off; without it a blocked send would hold on to it for ever.
func (s *subscriber[E]) interruptWith(interrupt func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt = interrupt
}
