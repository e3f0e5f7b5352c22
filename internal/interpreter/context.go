package interpreter

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// keepaliveEvery is how long a stream is quiet at most.
	keepaliveEvery = 5 * time.Second

	// A cell nobody waits for is interrupted every interruptEvery, and loses
	// its kernel after interruptLimit: E2B's clients want the next cell to run
	// within 15 s.
	interruptEvery = 5 * time.Second
	interruptLimit = 10 * time.Second
)

// contexts are those of a sandbox, in the order in which they were made.
type contexts struct {
	host Host
	logf func(string, ...any)

	mu       sync.Mutex
	ordered  []*codeContext
	defaults map[string]*codeContext // by language
}

func newContexts(host Host, logf func(string, ...any)) *contexts {
	cs := &contexts{host: host, logf: logf, defaults: map[string]*codeContext{}}
	for _, name := range []string{"python", "javascript"} {
		cs.defaults[name] = cs.add(languages[name], defaultDir)
	}
	return cs
}

// add is called with mu held, or before there is anybody else.
func (cs *contexts) add(l *language, dir string) *codeContext {
	c := &codeContext{
		id: newID(), language: l, dir: dir, host: cs.host, logf: cs.logf,
		turn: make(chan struct{}, 1), starting: make(chan struct{}, 1),
	}
	cs.ordered = append(cs.ordered, c)
	return c
}

func (cs *contexts) create(name, dir string) (*codeContext, error) {
	l, err := languageOf(cs.host, name)
	if err != nil {
		return nil, err
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.ordered) >= maxContexts {
		return nil, failf(http.StatusInternalServerError, "there are %d contexts already: remove some", len(cs.ordered))
	}
	return cs.add(l, dir), nil
}

// defaultOf returns the context of those who name none.
func (cs *contexts) defaultOf(name string) (*codeContext, error) {
	l, err := languageOf(cs.host, name)
	if err != nil {
		return nil, err
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.defaults[l.name] == nil {
		cs.defaults[l.name] = cs.add(l, defaultDir)
	}
	return cs.defaults[l.name], nil
}

func (cs *contexts) list() []*codeContext {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return slices.Clone(cs.ordered)
}

func (cs *contexts) get(id string) *codeContext {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.ordered {
		if c.id == id {
			return c
		}
	}
	return nil
}

func (cs *contexts) remove(id string) *codeContext {
	c := cs.get(id)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.ordered = slices.DeleteFunc(cs.ordered, func(other *codeContext) bool { return other == c })
	if c != nil && cs.defaults[c.language.name] == c {
		delete(cs.defaults, c.language.name)
	}
	return c
}

// newID returns a random UUID, the form that clients know.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// ending is why a context's kernel was taken away.
type ending struct{ name, value string }

var (
	endRestarted = ending{"ContextRestarting", "Context was restarted"}
	endRemoved   = ending{"ExecutionAborted", "Context was removed"}
)

// codeContext is a place where cells run and what they leave behind stays.
type codeContext struct {
	id       string
	language *language
	dir      string
	host     Host
	logf     func(string, ...any)

	turn     chan struct{} // holds one element while a cell runs
	starting chan struct{} // holds one element while a kernel starts

	mu      sync.Mutex
	kernel  *kernel // nil: none yet, or taken away
	count   int     // of cells, of this kernel
	removed bool
}

// contextView is a context as clients see it.
type contextView struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func (c *codeContext) view() contextView { return contextView{c.id, c.language.name, c.dir} }

// ready returns the context's kernel, started if need be.
func (c *codeContext) ready(ctx context.Context) (*kernel, error) {
	select {
	case c.starting <- struct{}{}:
		defer func() { <-c.starting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if k, err := c.present(); k != nil || err != nil {
		return k, err
	}
	k, err := startKernel(ctx, c.host, c.logf, c.language, c.dir)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed {
		k.process.Kill()
		return nil, unknownContext(c.id)
	}
	c.kernel, c.count = k, 0
	return k, nil
}

// present returns the kernel there is, or nil.
func (c *codeContext) present() (*kernel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed {
		return nil, unknownContext(c.id)
	}
	if c.kernel == nil || !c.kernel.alive() {
		return nil, nil
	}
	return c.kernel, nil
}

// reset takes the kernel away, and returns when it has ended. Its cell, if one
// is running, ends with why.
func (c *codeContext) reset(why ending) {
	c.mu.Lock()
	k := c.kernel
	c.kernel = nil
	c.removed = c.removed || why == endRemoved
	if k != nil {
		k.endWith(why)
	}
	c.mu.Unlock()
	if k != nil {
		k.process.Kill()
		<-k.process.Done()
	}
}

func (c *codeContext) nextCount(k *kernel) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kernel != k {
		return 1 // it is being taken away
	}
	c.count++
	return c.count
}

// cell is code to run once.
type cell struct {
	code string
	env  map[string]string
}

// run waits for its turn, runs the cell, and tells the client all of it. It
// returns when the context is free for the next one.
func (c *codeContext) run(ctx context.Context, out *stream, cell cell) {
	quiet := time.NewTimer(keepaliveEvery)
	defer quiet.Stop()
	if out.start() != nil || !c.awaitTurn(ctx, out, quiet) {
		return
	}
	defer func() { <-c.turn }()
	k, err := c.ready(ctx)
	if err != nil {
		// It was there when the cell came, and is not any more.
		_ = out.send(errorFields(endRemoved.name, err.Error(), ""))
		_ = out.send(map[string]any{"type": typeEnd})
		return
	}
	x := newExecution()
	k.listen(x)
	defer x.leave()
	count := c.nextCount(k)
	told := out.send(map[string]any{"type": typeCount, "execution_count": count})
	sent, request := make(chan error, 1), k.request(cell, count)
	go func() { sent <- k.speech.run(request) }()
	for told == nil {
		select {
		case m := <-x.messages:
			told = out.send(m.fields())
		case <-x.finished:
			_ = out.send(map[string]any{"type": typeEnd})
			return
		case err := <-sent:
			if err != nil {
				k.unlisten()
				k.copies = -1 // it may not have got to reseeding
				_ = out.send(errorFields("ValueError", err.Error(), ""))
				_ = out.send(map[string]any{"type": typeEnd})
				return
			}
			sent = nil
		case <-k.ended:
			why := k.why()
			_ = out.send(errorFields(why.name, why.value, ""))
			_ = out.send(map[string]any{"type": typeEnd})
			return
		case <-quiet.C:
			told = out.send(map[string]any{"type": typeKeepalive})
		case <-ctx.Done():
			told = ctx.Err()
		}
		quiet.Reset(keepaliveEvery)
	}
	x.leave()
	k.stop(x)
}

// awaitTurn reports whether the turn has come before the client went away.
func (c *codeContext) awaitTurn(ctx context.Context, out *stream, quiet *time.Timer) bool {
	for {
		select {
		case c.turn <- struct{}{}:
			return true
		case <-quiet.C:
			if out.send(map[string]any{"type": typeKeepalive}) != nil {
				return false
			}
			quiet.Reset(keepaliveEvery)
		case <-ctx.Done():
			return false
		}
	}
}
