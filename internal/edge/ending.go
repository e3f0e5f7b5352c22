package edge

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/internal/edge/h1"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// How a request ends whose generation is cut. What has no answer yet gets one of
// the server's own. A stream of messages that the edge can follow is ended by a
// message that says why. All else is broken off, so that half an answer is never
// taken for a whole one.
const (
	// messagePatience is how long the rest of a message may take.
	messagePatience = 250 * time.Millisecond
	// cutPatience is how long a request has to end before it is broken off.
	cutPatience = time.Second
	// causePatience is how long a stream that broke waits to be told why: that
	// its runtime has ended is noticed a little later.
	causePatience = 500 * time.Millisecond
)

// ending is where an exchange stands when it may be cut. It is guarded by
// conn.mu.
type ending struct {
	cut      bool
	answered bool // the answer has begun
	complete bool // and is complete
	followed bool // its messages are
	whole    bool // the last of them is complete
	over     bool // the edge has sent the last of them itself
}

// cut implements flight.
func (x *exchange) cut() {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	x.end.cut = true
	switch {
	case x.end.complete || c.broken:
	case x.end.followed && !x.end.whole:
		_ = c.up.SetReadDeadline(time.Now().Add(messagePatience))
	case x.end.followed:
		_ = c.up.SetReadDeadline(past)
	case x.end.answered:
		c.breakOffLocked()
	case c.up != nil:
		_ = c.up.SetDeadline(past)
	}
}

// step looks at or changes where the exchange stands.
func (x *exchange) step(f func(e *ending)) ending {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	if f != nil {
		f(&x.end)
	}
	return x.end
}

// cutReply is the answer to a request that was cut before it had one; nil if it
// is to be broken off, because its body is half sent.
func (x *exchange) cutReply() *reply {
	if x.upload != nil && !x.uploaded() {
		return nil
	}
	return interrupted(x.p, x.lease.Why())
}

// passMessages passes on what the sandbox says until it ends, or until the
// exchange is cut and the message under way is complete; then it says why.
func (x *exchange) passMessages(m messages, c *h1.Chunks, note func(int)) error {
	s, client := &x.up.stream, x.c.in.conn
	x.step(func(e *ending) { e.followed, e.whole = true, true })
	for {
		for data := s.buffered(); len(data) > 0 && (c == nil || !c.Done()); data = s.buffered() {
			n, over, err := x.followMessages(m, c, data)
			switch {
			case err != nil:
				return err
			case over:
				return x.farewell(m, c)
			}
			if _, err := client.Write(data[:n]); err != nil {
				return &writeError{err}
			}
			note(n)
			s.skip(n)
		}
		if c != nil && c.Done() {
			return nil
		}
		err := s.fill()
		switch {
		case err == nil:
			continue
		case x.isOver(m, c):
			return x.farewell(m, c)
		case c == nil && errors.Is(err, io.EOF):
			return nil
		}
		return unexpected(err)
	}
}

// followMessages returns how much of the data to pass on. over says that the
// exchange was cut, and nothing more is.
func (x *exchange) followMessages(m messages, c *h1.Chunks, data []byte) (n int, over bool, err error) {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	if x.end.cut && whole(m, c) {
		return 0, true, nil
	}
	n, err = follow(m, c, data, x.end.cut)
	x.end.whole = whole(m, c)
	return n, false, err
}

func whole(m messages, c *h1.Chunks) bool { return m.between() && (c == nil || c.Between()) }

// isOver reports whether a stream that has broken can be ended with a message:
// it was cut, and broke between two.
func (x *exchange) isOver(m messages, c *h1.Chunks) bool {
	if !whole(m, c) || x.c.ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(causePatience)
	defer timer.Stop()
	select {
	case <-x.g.cut:
		return true
	case <-x.c.ctx.Done():
	case <-timer.C:
	}
	return false
}

// farewell ends a stream with a message that says why.
func (x *exchange) farewell(m messages, c *h1.Chunks) error {
	out := m.farewell(x.lease.Why())
	if c != nil {
		out = append(fmt.Appendf(nil, "%x\r\n", len(out)), out...)
		out = append(out, "\r\n0\r\n\r\n"...)
	}
	x.step(func(e *ending) { e.over = true })
	if _, err := x.c.in.conn.Write(out); err != nil {
		return &writeError{err}
	}
	return nil
}

// interrupted is the answer to a request whose lease was cut before the sandbox
// had answered. Unlike one that never got in, it may have been carried out.
func interrupted(p *passage, why error) *reply {
	if p.server != "" {
		return brokeOff(p, why)
	}
	a := gone(p.id, why)
	a.Interrupted = true
	if lifecycle.Ended(why) {
		a.Message += ": " + inFlight(why, p.port)
	}
	return a
}

// gone is the answer to a request for a sandbox that sleeps, has ended, or never
// was. It says which, but in the words that E2B's clients compare with.
func gone(id string, why error) *reply {
	a := &reply{Code: http.StatusBadGateway, SandboxID: id, Message: "The sandbox was not found"}
	e, ok := errors.AsType[*errdef.Error](why)
	switch {
	case !ok:
	case errdef.Is(why, errdef.NotFound) && !lifecycle.Ended(why):
	case errdef.Is(why, errdef.NotFound):
		a.ErrorCode, a.Remedy, a.Reason, a.EndedAt = e.Code, e.Remedy, e.Context["reason"], e.Context["endedAt"]
	default:
		a.ErrorCode, a.Remedy, a.Reason, a.PausedAt = e.Code, e.Remedy, e.Context["reason"], e.Context["pausedAt"]
		// E2B's SDKs look for "was not found", and take all else for an outage.
		a.Message = "The sandbox was not found running, because it is asleep: " + e.Error()
		if e.Code == "put_to_sleep" {
			a.Message = "The sandbox was not found running any more: " + e.Error()
		}
	}
	return a
}
