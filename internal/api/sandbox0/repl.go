package sandbox0

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
)

// maxCells is how many inputs of one REPL may run or wait.
const maxCells = 16

// Bounds of what the interpreter answers: the guest is hostile.
const (
	maxInterpreterAnswer = 1 << 20
	maxInterpreterLine   = 8 << 20
)

// languages are the interpreter's names for aliases that are called otherwise.
var languages = map[string]string{"": "python", "node": "javascript", "python3": "python", "sh": "bash"}

// interpret asks the sandbox's interpreter, whose errors have texts for people.
func interpret(ctx context.Context, g guest.Guest, method, path string, body any) (*http.Response, error) {
	var sent io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		sent = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, guest.URL(path), sent)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := g.Client(agentapi.CodePort).Do(req)
	if err != nil {
		return nil, interpreterError(err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 512))
	message := strings.ToValidUTF8(strings.TrimSpace(string(text)), "\uFFFD")
	if res.StatusCode == http.StatusNotFound {
		return nil, errNoKernel
	}
	return nil, fail(http.StatusBadRequest, codeInvalid, "the REPL cannot be had: %s", message)
}

var errNoKernel = errors.New("the interpreter has no such context")

func interpreterError(err error) error {
	if _, ok := errors.AsType[*errdef.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, ours := errors.AsType[*failure](err); ours {
		return err
	}
	return fail(http.StatusServiceUnavailable, codeUnavailable, "the sandbox's interpreter cannot be reached now: try again")
}

// kernelView is a context as the interpreter shows it.
type kernelView struct {
	ID  string `json:"id"`
	Cwd string `json:"cwd"`
}

// openREPL makes the kernel of a REPL.
func openREPL(ctx context.Context, g guest.Guest, c *codeContext) error {
	language := c.alias
	if name, other := languages[c.alias]; other {
		language = name
	}
	ask := map[string]string{"language": language}
	if c.cwd != "" {
		ask["cwd"] = c.cwd
	}
	res, err := interpret(ctx, g, http.MethodPost, "/contexts", ask)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var k kernelView
	if err := json.NewDecoder(io.LimitReader(res.Body, maxInterpreterAnswer)).Decode(&k); err != nil || k.ID == "" {
		return fail(http.StatusServiceUnavailable, codeUnavailable, "the sandbox's interpreter gave no REPL: try again")
	}
	c.kernel = k.ID
	return nil
}

// meetKernels drops REPLs of which a boot has left nothing.
func (cs *contexts) meetKernels(ctx context.Context, g guest.Guest) error {
	sb, err := cs.sandboxes.Find(ctx, g.ID)
	if err != nil {
		return err
	}
	var unsure []*codeContext
	for _, c := range cs.list(g.ID) {
		c.mu.Lock()
		if c.kind == repl && c.generation != sb.Record.Generation {
			unsure = append(unsure, c)
		}
		c.mu.Unlock()
	}
	if len(unsure) == 0 {
		return nil
	}
	res, err := interpret(ctx, g, http.MethodGet, "/contexts", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var kernels []kernelView
	if err := json.NewDecoder(io.LimitReader(res.Body, maxInterpreterAnswer)).Decode(&kernels); err != nil {
		return fail(http.StatusServiceUnavailable, codeUnavailable, "the sandbox's interpreter cannot be understood: try again")
	}
	there := map[string]bool{}
	for _, k := range kernels {
		there[k.ID] = true
	}
	for _, c := range unsure {
		if !there[c.kernel] {
			if err := cs.remove(ctx, c); err != nil {
				return err
			}
			continue
		}
		c.mu.Lock()
		c.generation = sb.Record.Generation
		c.mu.Unlock()
	}
	return nil
}

// evaluation is where it counts what the guest says while code runs.
type evaluation struct {
	lines  *held.Share // whose end has not come
	answer *held.Share // for whoever waits for all of it; nil if nobody does
}

// evaluate runs a piece of code in a REPL to its end. The pieces of one REPL run
// one after the other. If ctx ends, the code is interrupted.
func (cs *contexts) evaluate(ctx context.Context, g guest.Guest, c *codeContext, code string, room evaluation) ([]chunk, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	if len(c.cells) >= maxCells {
		c.mu.Unlock()
		return nil, fail(http.StatusConflict, codeBufferFull, "context %s has %d inputs under way, which is as many as it may have: wait for one to end", c.id, maxCells)
	}
	if c.cells == nil {
		c.cells = map[*context.CancelFunc]bool{}
	}
	c.cells[&cancel] = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.cells, &cancel)
		c.mu.Unlock()
	}()
	ask := map[string]any{"code": code, "context_id": c.kernel}
	if len(c.env) > 0 {
		ask["env_vars"] = c.env
	}
	res, err := interpret(ctx, g, http.MethodPost, agentapi.PathCode, ask)
	if errors.Is(err, errNoKernel) {
		if err = cs.remove(ctx, c); err == nil {
			_, err = cs.get(g.ID, c.id)
		}
	}
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return c.listen(res.Body, room)
}

// cellMessage is a line of what the interpreter tells of code that runs.
type cellMessage struct {
	Type      string  `json:"type"`
	Text      printed `json:"text"`
	Main      bool    `json:"is_main_result"`
	Traceback string  `json:"traceback"`
	Name      string  `json:"name"`
	Value     string  `json:"value"`
}

// printed is a text; what is none is nothing. As values of any type, an array of empty
// arrays would take twenty times as much memory as it is long.
type printed string

// UnmarshalJSON implements json.Unmarshaler.
func (s *printed) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '"' {
		return nil
	}
	return json.Unmarshal(data, (*string)(s))
}

// listen reads what code prints to its end. A value that the code ends with is
// printed like at a prompt.
func (c *codeContext) listen(from io.Reader, room evaluation) (said []chunk, err error) {
	size, full := 0, room.answer == nil
	say := func(source, text string) {
		c.out.write(source, text)
		if full || text == "" {
			return
		}
		one := chunk{source: source, data: strings.ToValidUTF8(text[:min(maxKept-size, len(text))], "")}
		if size += len(text); size > maxKept {
			full = true
		}
		if !room.answer.Grow(answerCost * one.cost()) {
			full = true
			return
		}
		said = append(said, one)
	}
	limit := held.NewLines(from, room.lines, maxInterpreterLine)
	defer limit.Free()
	lines := json.NewDecoder(limit)
	for {
		var m cellMessage
		err := lines.Decode(&m)
		switch {
		case errors.Is(err, io.EOF):
			return said, fail(http.StatusServiceUnavailable, codeUnavailable, "the sandbox's interpreter ended before the code did")
		case errors.Is(err, held.ErrTooLarge):
			return said, errLongLine
		case errors.Is(err, held.ErrNoRoom):
			return said, errNoLine
		case err != nil:
			return said, interpreterError(err)
		}
		text := string(m.Text)
		switch m.Type {
		case "stdout":
			say(fromStdout, text)
		case "stderr":
			say(fromStderr, text)
		case "result":
			if m.Main && text != "" {
				say(fromStdout, text+"\n")
			}
		case "error":
			if m.Traceback == "" {
				m.Traceback = m.Name + ": " + m.Value
			}
			say(fromStderr, strings.TrimRight(m.Traceback, "\n")+"\n")
		case "end_of_execution":
			if full && room.answer != nil {
				said = append(said, chunk{source: fromStderr, data: "[drowse: the end of this output was not kept]\n"})
			}
			return said, nil
		}
	}
}

// answerCost is how often output is in memory while it is answered with: in pieces, as
// texts, and as JSON.
const answerCost = 3

var errLongLine = fail(http.StatusRequestEntityTooLarge, codeInvalid, "the code printed more than %d MiB at once and was interrupted: print less at a time, or write it to a file", maxInterpreterLine>>20)

var errNoLine = fail(http.StatusTooManyRequests, codeQuota, "there is no room for what the code printed at once, and it was interrupted: as much waits for this API key, or for all, as may; print less at a time")

// interrupt ends what a REPL runs, and reports whether that was anything.
func (c *codeContext) interrupt() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cancel := range c.cells {
		(*cancel)()
	}
	return len(c.cells) > 0
}

func kernelPath(c *codeContext, verb string) string {
	return "/contexts/" + url.PathEscape(c.kernel) + verb
}
