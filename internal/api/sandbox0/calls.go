package sandbox0

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/store"
)

// execTime is how long a piece of code may run while its caller waits.
const execTime = 30 * time.Second

// endTime is how long a process that was killed may take to end.
const endTime = 10 * time.Second

// contextView is a context as clients see it.
type contextView struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`
	Alias     string            `json:"alias,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env_vars,omitempty"`
	Running   bool              `json:"running"`
	Paused    bool              `json:"paused"`
	CreatedAt httpapi.Timestamp `json:"created_at"`
	Raw       *string           `json:"output_raw,omitempty"`
	Stdout    *string           `json:"stdout,omitempty"`
	Stderr    *string           `json:"stderr,omitempty"`
	Exit      *int32            `json:"exit_code,omitempty"`
	State     string            `json:"state,omitempty"`
}

func viewContext(c *codeContext, withOutput bool) contextView {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := contextView{ID: c.id, Type: c.kind, Alias: c.alias, Cwd: c.cwd, Env: c.env, Running: true, CreatedAt: httpapi.Timestamp(c.created)}
	if c.run != nil && c.run.ended() {
		v.Running, v.Exit, v.State = false, c.run.exit, c.run.state
	}
	if withOutput {
		raw, stdout, stderr := c.out.texts()
		v.Raw, v.Stdout, v.Stderr = &raw, &stdout, &stderr
	}
	return v
}

// guest returns the inside of the sandbox that a call names.
func (s *server) guest(c *call) guest.Guest {
	return guest.Guest{Sandboxes: s.Sandboxes, ID: c.sandbox, Actor: c.actor}
}

// enter is what every call of a context begins with: see [contexts.meet].
func (s *server) enter(c *call) (guest.Guest, error) {
	g := s.guest(c)
	ctx, cancel := context.WithTimeout(c.r.Context(), callTime)
	defer cancel()
	return g, s.contexts.meet(ctx, g)
}

// context returns the context that a call names, in its sandbox.
func (s *server) context(c *call) (guest.Guest, *codeContext, error) {
	g, err := s.enter(c)
	if err != nil {
		return g, nil, err
	}
	found, err := s.contexts.get(c.sandbox, c.params[contextParam])
	return g, found, err
}

func (s *server) createContext(c *call) (reply, error) {
	made, err := s.asked(c, c.words)
	if err != nil {
		return reply{}, err
	}
	g, err := s.enter(c)
	if err != nil {
		return reply{}, err
	}
	if err := s.open(c, g, made); err != nil {
		return reply{}, err
	}
	if err := s.begin(c, g, made); err != nil {
		if _, elsewhere := store.Elsewhere(err); elsewhere || errdef.CodeOf(err) == "sandbox_not_found" { // the call as a whole would make another
			err = fail(http.StatusServiceUnavailable, codeUnavailable, "context %s was made, and its sandbox has left this server before it was done: see what the context shows, and send its input there if that is nothing", made.id)
		}
		return reply{}, err
	}
	wait, _ := said[bool](c.words, "wait_until_done")
	if wait {
		if err := c.hold(made.out); err != nil {
			return reply{}, err
		}
	}
	return reply{Status: http.StatusCreated, Body: viewContext(made, wait)}, nil
}

// begin gives a new context its first input, and waits until it is done, if that is asked for.
func (s *server) begin(c *call, g guest.Guest, made *codeContext) error {
	wait, _ := said[bool](c.words, "wait_until_done")
	if input, _ := said[string](c.words, "repl.input"); input != "" {
		if wait {
			if _, err := s.contexts.evaluate(c.r.Context(), g, made, input, evaluation{lines: c.waiting}); err != nil {
				return err
			}
		} else if err := s.contexts.feed(g, made, c.key.ID, input); err != nil {
			return err
		}
	}
	if wait && made.kind == cmd {
		return made.await(c.r.Context())
	}
	return nil
}

// hold takes room for an answer with output.
func (c *call) hold(o *output) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), held.BodyPatience)
	defer cancel()
	if !c.waiting.Await(ctx, answerCost*o.room.Has()) {
		return fail(http.StatusTooManyRequests, codeQuota, "as many answers with output wait for this API key, its address or all as may: read those, then try again; or read the output from the WebSocket")
	}
	return nil
}

// open starts what a new context asks for.
func (s *server) open(c *call, g guest.Guest, made *codeContext) error {
	start := func() error { return s.contexts.start(c.r.Context(), g, made) }
	if made.kind == repl {
		start = func() error { return openREPL(c.r.Context(), g, made) }
	}
	sb, err := s.find(c)
	if err != nil {
		return err
	}
	made.generation = sb.Record.Generation
	if err := s.contexts.add(c.r.Context(), made); err != nil {
		return err
	}
	err = start()
	if err == nil && made.kind == repl {
		err = s.contexts.store(c.r.Context(), made) // with its kernel
	}
	if err != nil {
		// The client may have gone, and the row must not stay.
		if err := s.contexts.remove(s.contexts.ctx, made); err != nil {
			return err
		}
		if errors.Is(err, errNoKernel) {
			err = fail(http.StatusBadRequest, codeInvalid, "this sandbox has no REPL for %.80q", made.alias)
		}
		return err
	}
	return nil
}

// asked returns the context that a body describes.
func (s *server) asked(c *call, w words) (*codeContext, error) {
	made := s.contexts.newContext(c.sandbox, c.key.ID, repl)
	command, isCommand := said[[]string](w, "cmd.command")
	kind, named := said[string](w, "type")
	if named {
		made.kind = kind
	} else if isCommand {
		made.kind = cmd
	}
	misplaced := func(names ...string) error {
		for _, name := range names {
			if _, was := w[name]; was {
				return body.Invalid("%q is not for a context of type %q", name, made.kind).With("field", name)
			}
		}
		return nil
	}
	made.cwd, _ = said[string](w, "cwd")
	made.env, _ = said[map[string]string](w, "env_vars")
	if made.kind == repl {
		alias, _ := said[string](w, "repl.alias")
		made.alias = alias
		if alias == "" {
			made.alias = "python"
		}
		if d, _ := said[time.Duration](w, "ttl_sec"); d > 0 {
			return nil, body.Invalid(`"ttl_sec" is for commands: this server ends no REPL by itself`).WithRemedy("delete the context when it is not needed").With("field", "ttl_sec")
		}
		return made, misplaced("cmd.command", "pty_size.rows", "pty_size.cols")
	}
	if len(command) == 0 || command[0] == "" {
		return nil, body.Invalid(`"cmd.command" must name a program`).With("field", "cmd.command")
	}
	made.command = command
	made.ttl, _ = said[time.Duration](w, "ttl_sec")
	rows, hasRows := said[uint32](w, "pty_size.rows")
	cols, hasCols := said[uint32](w, "pty_size.cols")
	if hasRows != hasCols {
		return nil, body.Invalid(`"pty_size" needs both "rows" and "cols"`).With("field", "pty_size")
	}
	if hasRows {
		made.terminal = &process.PTY_Size{Rows: rows, Cols: cols}
	}
	return made, misplaced("repl.alias", "repl.input")
}

func (s *server) listContexts(c *call) (reply, error) {
	if _, err := s.enter(c); err != nil {
		return reply{}, err
	}
	list := []contextView{}
	for _, one := range s.contexts.list(c.sandbox) {
		list = append(list, viewContext(one, false))
	}
	return ok(map[string]any{"contexts": list})
}

func (s *server) getContext(c *call) (reply, error) {
	_, found, err := s.context(c)
	if err != nil {
		return reply{}, err
	}
	if err := c.hold(found.out); err != nil {
		return reply{}, err
	}
	return ok(viewContext(found, true))
}

func (s *server) deleteContext(c *call) (reply, error) {
	g, found, err := s.context(c)
	if err != nil {
		return reply{}, err
	}
	if err := s.contexts.end(c.r.Context(), g, found); err != nil {
		return reply{}, err
	}
	if err := s.contexts.remove(c.r.Context(), found); err != nil {
		return reply{}, err
	}
	return done("deleted")
}

// end ends what a context runs.
func (cs *contexts) end(ctx context.Context, g guest.Guest, c *codeContext) error {
	if c.kind == repl {
		c.interrupt()
		res, err := interpret(ctx, g, http.MethodDelete, kernelPath(c, ""), nil)
		if err == nil {
			res.Body.Close()
		}
		if errors.Is(err, errNoKernel) {
			err = nil
		}
		return err
	}
	_, err := g.Processes().SendSignal(ctx, connect.NewRequest(&process.SendSignalRequest{Process: c.selector(), Signal: process.Signal_SIGNAL_SIGKILL}))
	if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		return agentError(err)
	}
	// Until it has ended the agent lists it, and it would be found again.
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	if err := c.await(ctx); errors.Is(err, context.DeadlineExceeded) {
		return fail(http.StatusServiceUnavailable, codeUnavailable, "the process of context %s was killed and has not ended yet: try again", c.id)
	}
	return nil
}

func (s *server) restartContext(c *call) (reply, error) {
	g, found, err := s.context(c)
	if err != nil {
		return reply{}, err
	}
	if found.kind == repl {
		res, err := interpret(c.r.Context(), g, http.MethodPost, kernelPath(found, "/restart"), nil)
		if err != nil {
			return reply{}, err
		}
		res.Body.Close()
		return ok(viewContext(found, false))
	}
	if err := s.contexts.end(c.r.Context(), g, found); err != nil {
		return reply{}, err
	}
	if err := s.contexts.start(c.r.Context(), g, found); err != nil {
		return reply{}, err
	}
	if err := s.contexts.store(c.r.Context(), found); err != nil {
		return reply{}, err
	}
	return ok(viewContext(found, false))
}

func (s *server) contextInput(c *call) (reply, error) {
	g, found, err := s.context(c)
	if err != nil {
		return reply{}, err
	}
	data, _ := said[string](c.words, "data")
	if found.kind == repl {
		err = s.contexts.feed(g, found, c.key.ID, data)
	} else {
		err = found.input(c.r.Context(), g, data)
	}
	if err != nil {
		return reply{}, err
	}
	return done("written")
}

// feed has a REPL run code that nobody waits for.
func (cs *contexts) feed(g guest.Guest, c *codeContext, key, code string) error {
	c.mu.Lock()
	full := len(c.cells) >= maxCells
	c.mu.Unlock()
	if full {
		return fail(http.StatusConflict, codeBufferFull, "context %s has %d inputs under way, which is as many as it may have: wait for one to end", c.id, maxCells)
	}
	room := cs.room.Lasting(held.Who{Key: key})
	if !room.Grow(messageCost*len(code) + chunkCost) {
		return fail(http.StatusTooManyRequests, codeQuota, "as much input of this API key waits as may: wait for some to end")
	}
	go func() {
		defer room.Free()
		if _, err := cs.evaluate(cs.ctx, g, c, code, evaluation{lines: room}); err != nil {
			c.out.write(fromStderr, err.Error()+"\n")
		}
	}()
	return nil
}

// input writes to a command's standard input, or to its terminal.
func (c *codeContext) input(ctx context.Context, g guest.Guest, data string) error {
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte(data)}}
	if c.terminal != nil {
		in = &process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: []byte(data)}}
	}
	if err := c.alive(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, execTime)
	defer cancel()
	_, err := g.Processes().SendInput(ctx, connect.NewRequest(&process.SendInputRequest{Process: c.selector(), Input: in}))
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), connect.CodeOf(err) == connect.CodeDeadlineExceeded:
		return fail(http.StatusConflict, codeBufferFull, "the process of context %s did not take the input within %s", c.id, execTime)
	case connect.CodeOf(err) == connect.CodeNotFound:
		return c.finished()
	}
	return agentError(err)
}

// alive refuses what needs a process that runs.
func (c *codeContext) alive() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run != nil && c.run.ended() {
		return c.finished()
	}
	return nil
}

func (c *codeContext) finished() error {
	return fail(http.StatusGone, codeFinished, "the process of context %s has ended: restart the context, or create another one", c.id)
}

// execView is what a piece of code has printed.
type execView struct {
	Raw    string `json:"output_raw"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}

func (s *server) contextExec(c *call) (reply, error) {
	g, found, err := s.context(c)
	if err != nil {
		return reply{}, err
	}
	if found.kind != repl {
		return reply{}, fail(http.StatusBadRequest, codeInvalid, "context %s is a command, which does not say when an input is done: use input, and read its output from the WebSocket", found.id)
	}
	data, _ := said[string](c.words, "data")
	ctx, cancel := context.WithTimeout(c.r.Context(), execTime)
	defer cancel()
	chunks, err := s.contexts.evaluate(ctx, g, found, data, evaluation{lines: c.waiting, answer: c.waiting})
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fail(http.StatusRequestTimeout, codeExecTimeout, "the code ran for more than %s and was interrupted: use input and the WebSocket for what takes longer", execTime)
		}
		return reply{}, err
	}
	var v execView
	v.Raw, v.Stdout, v.Stderr = textsOf(chunks)
	return ok(v)
}

func (s *server) contextResize(c *call) (reply, error) {
	g, found, err := s.context(c)
	if err != nil {
		return reply{}, err
	}
	rows, _ := said[uint32](c.words, "rows")
	cols, _ := said[uint32](c.words, "cols")
	if err := found.resize(c.r.Context(), g, rows, cols); err != nil {
		return reply{}, err
	}
	return done("resized")
}

func (c *codeContext) resize(ctx context.Context, g guest.Guest, rows, cols uint32) error {
	if c.terminal == nil {
		return fail(http.StatusConflict, codeNoPTY, "context %s has no terminal: create one with pty_size", c.id)
	}
	if err := c.alive(); err != nil {
		return err
	}
	size := &process.PTY_Size{Rows: rows, Cols: cols}
	_, err := g.Processes().Update(ctx, connect.NewRequest(&process.UpdateRequest{Process: c.selector(), Pty: &process.PTY{Size: size}}))
	if connect.CodeOf(err) == connect.CodeNotFound {
		return c.finished()
	}
	return agentError(err)
}

func (s *server) contextSignal(c *call) (reply, error) {
	text, _ := said[string](c.words, "signal")
	number, err := signalNumber(text)
	if err != nil {
		return reply{}, err
	}
	g, found, err := s.context(c)
	if err != nil {
		return reply{}, err
	}
	if err := found.signal(c.r.Context(), g, number); err != nil {
		return reply{}, err
	}
	return done("signaled")
}

// maxSignal is the last of Linux.
const maxSignal = 64

func signalNumber(text string) (int, error) {
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= maxSignal {
		return n, nil
	}
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(text)), "SIG")
	if n := unix.SignalNum(name); n != 0 {
		return int(n), nil
	}
	return 0, body.Invalid("%q is no signal", body.Short(text)).WithRemedy("use a name such as INT or SIGTERM, or a number from 1 to %d", maxSignal).With("field", "signal")
}

// signal sends a signal to a command's process, or interrupts a REPL.
func (c *codeContext) signal(ctx context.Context, g guest.Guest, number int) error {
	if c.kind == repl {
		if number != int(unix.SIGINT) {
			return fail(http.StatusBadRequest, codeInvalid, "a REPL takes SIGINT only; restart or delete its context to end it")
		}
		if !c.interrupt() {
			return fail(http.StatusConflict, codeNotRunning, "context %s runs no code now", c.id)
		}
		return nil
	}
	if err := c.alive(); err != nil {
		return err
	}
	var err error
	switch number {
	case int(unix.SIGKILL), int(unix.SIGTERM):
		_, err = g.Processes().SendSignal(ctx, connect.NewRequest(&process.SendSignalRequest{Process: c.selector(), Signal: process.Signal(number)}))
	default:
		return c.kill(ctx, g, number)
	}
	if connect.CodeOf(err) == connect.CodeNotFound {
		return c.finished()
	}
	return agentError(err)
}

// kill sends a signal for which the agent has no call, by the program kill.
func (c *codeContext) kill(ctx context.Context, g guest.Guest, number int) error {
	list, err := g.Processes().List(ctx, connect.NewRequest(&process.ListRequest{}))
	if err != nil {
		return agentError(err)
	}
	pid := uint32(0)
	for _, p := range list.Msg.GetProcesses() {
		if p.GetTag() == tagPrefix+c.id {
			pid = p.GetPid()
		}
	}
	if pid == 0 {
		return c.finished()
	}
	g.User = "root"
	command := "kill -" + strconv.Itoa(number) + " " + strconv.FormatUint(uint64(pid), 10)
	end, err := g.Run(ctx, "/bin/sh", "-c", command)
	if err == nil && end.GetExitCode() != 0 {
		return c.finished()
	}
	return agentError(err)
}
