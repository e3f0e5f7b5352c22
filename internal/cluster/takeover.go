package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// takes are the sandboxes, snapshots and built templates that are being taken over, or leave, each
// once for all who ask for it.
type takes struct {
	mu  sync.Mutex
	now map[string]*take
}

// take is one of them.
type take struct {
	done   chan struct{}
	server string // set before done is closed: who has it then; empty for this server
	err    error
}

// takeOver has this server take over what another has that is gone, and returns who has it
// then. Whoever asks may go away meanwhile.
func (c *Cluster) takeOver(ctx context.Context, id, from string) (server string, err error) {
	if !ids.Valid(id) {
		if id, _, err = c.o.OwnerOf(ctx, id); err != nil {
			return "", err
		}
	}
	t, begun := c.takes.begin(id, false)
	if begun {
		go c.carryOut(context.WithoutCancel(ctx), t, id, from)
	}
	return t.wait(ctx)
}

// begin returns how something is being taken over from now on, and true; or how it is already, or
// was a moment ago unless that is not to count.
func (t *takes) begin(id string, anew bool) (_ *take, begun bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now[id]; now != nil && !(anew && now.over()) {
		return now, false
	}
	if t.now == nil {
		t.now = map[string]*take{}
	}
	t.now[id] = &take{done: make(chan struct{})}
	return t.now[id], true
}

// end tells those who wait for a take that it is over, and for some time those who ask.
func (t *takes) end(id string, was *take, tell time.Duration) {
	close(was.done)
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.now[id] == was {
			delete(t.now, id)
		}
	}
	if tell == 0 {
		forget()
		return
	}
	time.AfterFunc(tell, forget)
}

// of returns how something is being taken over; nil if it is not.
func (t *takes) of(id string) *take {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now[id]
	if now != nil && now.over() {
		return nil
	}
	return now
}

// over reports whether it has come to its end.
func (t *take) over() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// wait returns who has it then.
func (t *take) wait(ctx context.Context) (server string, err error) {
	select {
	case <-t.done:
		return t.server, t.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// carryOut takes something over, when it is its turn: each takes memory, and room on the disk.
func (c *Cluster) carryOut(ctx context.Context, t *take, id, from string) {
	c.turns <- struct{}{}
	err := c.o.TakeOver(ctx, id)
	<-c.turns
	_, elsewhere := store.Elsewhere(err)
	wait := takeAgain
	switch {
	case err == nil:
	case c.taken(ctx, t, id, from):
	case lifecycle.Ended(err): // nobody needs to have it
		t.err = err
	case elsewhere && alive(ctx, c.o.Store, from): // it is back
		t.server = from
		_ = c.Forget(ctx)
	case elsewhere: // it is not gone for long enough
		t.err = errGone(id, from, "what ran there may be there still for a moment")
	case errdef.CodeOf(err) == "record_changed" || errdef.Is(err, errdef.Exists): // it is here by now, or another was faster
		t.err = errGone(id, from, "it is being taken over")
	case errdef.CodeOf(err) == "not_replicated":
		t.err = errdef.New(errdef.Unavailable, codeUnreachable, "server %s, which has %s, is gone, and what that is now is not in object storage", from, called(id)).
			WithRemedy("start that server again; what it has asleep is there then").With("server", from)
	default:
		wait = failAgain
		c.o.Log.Warn("what a server has that is gone could not be taken over", "of", called(id), "server", from, "err", err)
		t.err = err
	}
	if t.err == nil {
		wait = 0
	}
	c.takes.end(id, t, wait)
}

const (
	// mostTakes is how many sandboxes are taken over at once.
	mostTakes = 4
	// takeAgain is for how long one that has failed is what all get who ask, and failAgain where
	// it was not because of the other server: each may fetch much.
	takeAgain = 2 * time.Second
	failAgain = 30 * time.Second
)

// taken reports whether another take was faster than one that has failed, and notes who has
// the sandbox. What has failed may be due to that in many ways: its parts were read one by one.
func (c *Cluster) taken(ctx context.Context, t *take, id, from string) bool {
	began := time.Now()
	server, err := c.ownerNow(ctx, id)
	if err != nil || server == from {
		return false
	}
	if server != "" {
		t.server = server
		c.note(id, server, began)
	}
	return true
}

// alive reports whether a server has its lease, as it is stored now.
func alive(ctx context.Context, st Store, server string) bool {
	all, err := st.Servers(ctx)
	return err == nil && store.ServerOf(all, server).Alive()
}

// ownerNow returns the server that has something by what is stored now; empty for this one.
func (c *Cluster) ownerNow(ctx context.Context, id string) (server string, err error) {
	if !ids.Valid(id) {
		_, server, err = c.o.OwnerOf(ctx, id)
	} else {
		var sb store.Sandbox
		sb, err = c.o.Store.Sandbox(ctx, id)
		server = sb.Owner
	}
	if server == c.o.Store.Self() {
		server = ""
	}
	return server, err
}

// called returns what has an id, for people.
func called(id string) string {
	switch {
	case snapshots.IsID(id):
		return "snapshot " + id
	case ids.Valid(id):
		return "sandbox " + id
	}
	return "template " + id
}

// errGone says that something cannot be had at once.
func errGone(id, server, why string) error {
	return errdef.New(errdef.Unavailable, codeUnreachable, "server %s, which has %s, is gone, and %s", server, called(id), why).
		WithRemedy("send the request again in a moment; if that lasts, see why that server is down").With("server", server)
}
