package sandbox0

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Bounds of contexts.
const (
	// contextCost is what one takes besides its texts: it is followed, and written down.
	contextCost = 32 << 10
	// tidyEvery is how often contexts of sandboxes that are gone are looked for.
	tidyEvery = time.Minute
	// callTime bounds the calls of the agent that answer at once, a wake apart.
	callTime = 2 * time.Minute
)

// tagPrefix begins the tag by which the agent knows the process of a context, also
// after a restart of this server.
const tagPrefix = "sandbox0:"

// contexts are those of all sandboxes. What runs is the agent's to know, and what there
// is and how it ended the store's; here is what it has printed.
type contexts struct {
	ctx       context.Context // of what outlives a request; it ends with the server
	sandboxes Sandboxes
	rows      store.CodeContexts
	room      *held.Room
	log       *slog.Logger

	mu   sync.Mutex
	of   map[string]*shelf // by sandbox
	tidy time.Time
}

// shelf has the contexts of a sandbox.
type shelf struct {
	rows sync.Mutex              // held while rows are compared, added or removed; taken before mu of contexts
	all  map[string]*codeContext // by id
}

func newContexts(ctx context.Context, o Options) *contexts {
	return &contexts{ctx: ctx, sandboxes: o.Sandboxes, rows: o.Contexts, room: o.Room, log: o.Log, of: map[string]*shelf{}}
}

// shelf returns that of a sandbox.
func (cs *contexts) shelf(sandbox string) *shelf {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.of[sandbox] == nil {
		cs.of[sandbox] = &shelf{all: map[string]*codeContext{}}
	}
	return cs.of[sandbox]
}

// codeContext is a command, or a REPL.
type codeContext struct {
	id, kind, alias string
	sandbox, key    string
	save            func(*codeContext) // writes down that it has ended
	saving          sync.Mutex         // held while it is written down, so that the last word is the latest; taken before mu
	command         []string
	cwd             string
	env             map[string]string
	terminal        *process.PTY_Size
	ttl             time.Duration
	created         time.Time
	kernel          string // the interpreter's id of a REPL
	out             *output
	record          *held.Share // of what is kept, for all of this

	mu         sync.Mutex
	generation int64 // of the sandbox, in which it was seen last
	run        *run
	cells      map[*context.CancelFunc]bool // of a REPL, those that run or wait
}

// run is one life of a context's process.
type run struct {
	stage  stage
	exit   *int32
	state  string
	broken error         // why nobody follows it any more, though it has not ended
	left   chan struct{} // closed when following ends
}

// stage is how far a run has come.
type stage int

const (
	runLost stage = iota // nobody follows it
	runFollowed
	runEnding // exit and state are known, and being written down
	runEnded
	runLoaded // its end is from the store
)

// The states of a process that has ended.
const (
	stateStopped = "stopped"
	stateKilled  = "killed"
	stateCrashed = "crashed"
)

func stateOf(exit int32) string {
	switch exit {
	case 0:
		return stateStopped
	case -1, 137:
		return stateKilled
	}
	return stateCrashed
}

func (r *run) ended() bool { return r.stage >= runEnded }

// forget drops the contexts of a sandbox.
func (cs *contexts) forget(sandbox string) {
	cs.mu.Lock()
	gone := cs.of[sandbox]
	delete(cs.of, sandbox)
	var all []*codeContext
	if gone != nil {
		all = slices.Collect(maps.Values(gone.all))
		clear(gone.all)
	}
	cs.mu.Unlock()
	for _, c := range all {
		c.drop()
	}
}

// cost is what the record of a context takes.
func (c *codeContext) cost() int {
	n := contextCost + len(c.alias) + len(c.cwd)
	for _, word := range c.command {
		n += len(word) + 16
	}
	for name, value := range c.env {
		n += len(name) + len(value) + 64
	}
	return n
}

// drop gives back what a context takes.
func (c *codeContext) drop() {
	c.out.drop()
	c.record.Free()
}

// clean forgets sandboxes that have ended, now and then.
func (cs *contexts) clean() {
	cs.mu.Lock()
	due := time.Since(cs.tidy) > tidyEvery
	var known []string
	if due {
		cs.tidy = time.Now()
		known = slices.Collect(maps.Keys(cs.of))
	}
	cs.mu.Unlock()
	for _, id := range known {
		sb, err := cs.sandboxes.Find(cs.ctx, id)
		if errdef.Is(err, errdef.NotFound) || err == nil && sb.Record.State == lifecycle.Terminated {
			cs.forget(id)
		}
	}
}

// list returns the contexts of a sandbox, oldest first.
func (cs *contexts) list(sandbox string) []*codeContext {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	has := cs.of[sandbox]
	if has == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(has.all), func(a, b *codeContext) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id, b.id))
	})
}

func (cs *contexts) get(sandbox, id string) (*codeContext, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if has := cs.of[sandbox]; has != nil && has.all[id] != nil {
		return has.all[id], nil
	}
	return nil, fail(http.StatusNotFound, codeContextNotFound, "sandbox %s has no context %.80q: GET …/contexts lists those it has", sandbox, id)
}

func newContextID() string { return "ctx-" + strings.ToLower(rand.Text()[:16]) }

// start starts the process of a command and follows it. The request's context
// bounds the start alone.
func (cs *contexts) start(ctx context.Context, g guest.Guest, c *codeContext) error {
	req := connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: c.command[0], Args: c.command[1:], Envs: c.env},
		Tag:     new(tagPrefix + c.id),
	})
	if c.cwd != "" {
		req.Msg.Process.Cwd = &c.cwd
	}
	if c.terminal != nil {
		req.Msg.Pty = &process.PTY{Size: c.terminal}
	}
	if c.ttl > 0 {
		req.Header().Set(agentapi.HeaderTimeout, fmt.Sprint(c.ttl.Milliseconds()))
	}
	begin := func(life context.Context) (*guest.Process, error) { return g.Start(life, req) }
	return agentError(cs.join(ctx, c, begin, func() *run {
		c.run = &run{stage: runFollowed, left: make(chan struct{})}
		return c.run
	}))
}

// rejoin follows a process that nobody follows: the sandbox has slept meanwhile,
// or this server was started anew.
func (cs *contexts) rejoin(ctx context.Context, g guest.Guest, c *codeContext) error {
	begin := func(life context.Context) (*guest.Process, error) { return g.Rejoin(life, c.selector()) }
	return cs.join(ctx, c, begin, func() *run {
		r := c.run
		if r == nil || r.stage != runLost { // somebody else was first
			return nil
		}
		r.stage, r.broken, r.left = runFollowed, nil, make(chan struct{})
		return r
	})
}

// join follows a process for longer than the request, whose context bounds the
// beginning alone. It is the run that as returns, under the lock; nil for none.
func (cs *contexts) join(ctx context.Context, c *codeContext, begin func(life context.Context) (*guest.Process, error), as func() *run) error {
	life, end := context.WithCancel(cs.ctx)
	stop := context.AfterFunc(ctx, end)
	p, err := begin(life)
	if !stop() && err == nil { // the client has gone
		p.Close()
		err = ctx.Err()
	}
	if err != nil {
		end()
		return err
	}
	c.mu.Lock()
	r := as()
	c.mu.Unlock()
	go func() {
		defer end()
		defer p.Close()
		if r != nil {
			c.follow(r, p)
		}
	}()
	return nil
}

func (c *codeContext) selector() *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: tagPrefix + c.id}}
}

// follow writes down what a process prints until it ends, or until nobody can
// tell any more.
func (c *codeContext) follow(r *run, p *guest.Process) {
	for {
		event, err := p.Next()
		if connect.CodeOf(err) == connect.CodeDeadlineExceeded { // its ttl
			c.finish(r, -1)
			return
		}
		if err != nil {
			c.mu.Lock()
			r.stage, r.broken = runLost, err
			close(r.left)
			c.mu.Unlock()
			return
		}
		switch {
		case event.GetData() != nil:
			d := event.GetData()
			c.out.write(fromStdout, string(d.GetStdout()))
			c.out.write(fromStderr, string(d.GetStderr()))
			c.out.write(fromPTY, string(d.GetPty()))
		case event.GetEnd() != nil:
			c.finish(r, event.GetEnd().GetExitCode())
			return
		}
	}
}

// finish writes down how a process ended before anybody is told.
func (c *codeContext) finish(r *run, exit int32) {
	c.mu.Lock()
	r.exit, r.state, r.stage = &exit, stateOf(exit), runEnding
	c.mu.Unlock()
	c.save(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.stage = runEnded
	close(r.left)
}

// vanish says of a process that it has ended, and nobody knows how: nobody followed
// it then, or a boot has left nothing of it.
func (c *codeContext) vanish() {
	c.mu.Lock()
	gone := c.run.stage == runLost
	if gone {
		c.run.stage = runEnded
	}
	c.mu.Unlock()
	if gone {
		c.save(c)
	}
}

// await waits for the end of a command's process.
func (c *codeContext) await(ctx context.Context) error {
	c.mu.Lock()
	r := c.run
	if r == nil {
		c.mu.Unlock()
		return fail(http.StatusConflict, codeNotRunning, "the process of context %s is being started: try again", c.id)
	}
	left := r.left
	c.mu.Unlock()
	select {
	case <-left:
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.ended() {
		return nil
	}
	return agentError(r.broken)
}

// meet enters the sandbox, which wakes it where that is allowed, and makes the
// contexts fit to what runs there: a process that slept is followed again, one
// that was started for an earlier server is found, and one that is gone has
// ended. Of REPLs a boot leaves nothing.
func (cs *contexts) meet(ctx context.Context, g guest.Guest) error {
	res, err := g.Processes().List(ctx, connect.NewRequest(&process.ListRequest{}))
	if err != nil {
		return agentError(err)
	}
	running := map[string]*process.ProcessInfo{}
	for _, p := range res.Msg.GetProcesses() {
		if id, ours := strings.CutPrefix(p.GetTag(), tagPrefix); ours {
			running[id] = p
		}
	}
	if err := cs.load(ctx, g.ID); err != nil {
		return err
	}
	for _, c := range cs.list(g.ID) {
		if c.kind == repl {
			continue
		}
		p := running[c.id]
		delete(running, c.id)
		c.mu.Lock()
		if p != nil && c.run != nil && c.run.stage == runLoaded { // it was started again, and the server ended before that was written down
			c.run = &run{left: make(chan struct{})}
		}
		lost := c.run != nil && c.run.stage == runLost
		c.mu.Unlock()
		switch {
		case !lost:
		case p == nil:
			// It may have ended a moment ago, which the agent still knows.
			if cs.rejoin(ctx, g, c) != nil {
				c.vanish()
			}
		default:
			if err := cs.rejoin(ctx, g, c); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
				return agentError(err)
			}
		}
	}
	for id, p := range running {
		if err := cs.adopt(ctx, g, id, p); err != nil {
			return err
		}
	}
	return cs.meetKernels(ctx, g)
}

// adopt makes a process known of which no row tells: it is one of the sandbox that this
// one was forked from, or of a server that had no rows.
func (cs *contexts) adopt(ctx context.Context, g guest.Guest, id string, p *process.ProcessInfo) error {
	c := cs.newContext(g.ID, strings.TrimPrefix(g.Actor, "key:"), cmd)
	c.id, c.command = id, append([]string{p.GetConfig().GetCmd()}, p.GetConfig().GetArgs()...)
	c.cwd, c.env = p.GetConfig().GetCwd(), p.GetConfig().GetEnvs()
	c.run = &run{left: make(chan struct{})}
	if err := cs.add(ctx, c); err != nil {
		return nil // there are too many to keep
	}
	if err := cs.rejoin(ctx, g, c); err != nil {
		return cs.remove(ctx, c)
	}
	return nil
}

// agentError returns what the agent, or the way to it, says as an error of the
// dialect.
func agentError(err error) error {
	if _, ok := errors.AsType[*errdef.Error](err); ok || err == nil {
		return err
	}
	if _, ours := errors.AsType[*failure](err); ours {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return fail(http.StatusServiceUnavailable, codeUnavailable, "the sandbox's agent cannot be reached now: try again")
	}
	switch e.Code() {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeNotFound:
		return fail(http.StatusBadRequest, codeInvalid, "%s", e.Message())
	case connect.CodePermissionDenied:
		return fail(http.StatusForbidden, codePermission, "%s", e.Message())
	case connect.CodeResourceExhausted:
		return fail(http.StatusTooManyRequests, codeQuota, "%s", e.Message())
	case connect.CodeInternal, connect.CodeUnknown:
		return fail(http.StatusConflict, codeConflict, "the sandbox's agent failed: %s", e.Message())
	}
	return fail(http.StatusServiceUnavailable, codeUnavailable, "the sandbox's agent cannot be reached now: %s", e.Message())
}
