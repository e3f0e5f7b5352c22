package sandbox0

import (
	"context"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// newContext returns a context that is not known yet.
func (cs *contexts) newContext(sandbox, key, kind string) *codeContext {
	return &codeContext{
		id: newContextID(), sandbox: sandbox, key: key, kind: kind, created: time.Now(), save: cs.saveEnd,
		out: newOutput(cs.room.Output(key)), record: cs.room.Record(key),
	}
}

// row is what the store keeps of a context.
func (c *codeContext) row() store.CodeContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	row := store.CodeContext{
		ID: c.id, Sandbox: c.sandbox, Key: c.key, Kind: c.kind, Alias: c.alias, Command: c.command, Cwd: c.cwd, Env: c.env,
		TTL: c.ttl, CreatedAt: c.created, Kernel: c.kernel,
	}
	if c.terminal != nil {
		row.Terminal = &store.TerminalSize{Rows: int(c.terminal.Rows), Cols: int(c.terminal.Cols)}
	}
	if r := c.run; r != nil && r.stage >= runEnding {
		row.End = &store.ContextEnd{State: r.state}
		if r.exit != nil {
			row.End.Exit = new(int(*r.exit))
		}
	}
	return row
}

// store writes a context down as it is now.
func (cs *contexts) store(ctx context.Context, c *codeContext) error {
	c.saving.Lock()
	defer c.saving.Unlock()
	return cs.rows.ChangeContext(ctx, c.row())
}

// saveEnd writes down how a context has ended. Where that fails the agent is asked again
// after a restart.
func (cs *contexts) saveEnd(c *codeContext) {
	if err := cs.store(cs.ctx, c); err != nil && !errdef.Is(err, errdef.NotFound) && cs.ctx.Err() == nil {
		cs.log.Error("cannot store how a context ended", "sandbox", c.sandbox, "context", c.id, "error", err)
	}
}

// fromRow returns the context of a row.
func (cs *contexts) fromRow(row store.CodeContext) *codeContext {
	c := cs.newContext(row.Sandbox, row.Key, row.Kind)
	c.id, c.alias, c.command, c.cwd, c.env = row.ID, row.Alias, row.Command, row.Cwd, row.Env
	c.ttl, c.created, c.kernel = row.TTL, row.CreatedAt, row.Kernel
	if size := row.Terminal; size != nil {
		c.terminal = &process.PTY_Size{Rows: uint32(size.Rows), Cols: uint32(size.Cols)}
	}
	if c.kind == cmd {
		c.run = &run{left: make(chan struct{})}
	}
	if end := row.End; end != nil && c.run != nil {
		c.run.stage, c.run.state = runLoaded, end.State
		if end.Exit != nil {
			c.run.exit = new(int32(*end.Exit))
		}
		close(c.run.left)
	}
	return c
}

// load makes the contexts of a sandbox those of the store.
func (cs *contexts) load(ctx context.Context, sandbox string) error {
	has := cs.shelf(sandbox)
	has.rows.Lock()
	defer has.rows.Unlock()
	rows, err := cs.rows.Contexts(ctx, sandbox)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, row := range rows {
		kept[row.ID] = true
		cs.mu.Lock()
		known := has.all[row.ID] != nil
		cs.mu.Unlock()
		if known {
			continue
		}
		if row.Kind == repl && row.Kernel == "" {
			// Another server makes its kernel now, or ended before it had one.
			if time.Since(row.CreatedAt) > callTime {
				if err := cs.rows.RemoveContext(ctx, sandbox, row.ID); err != nil {
					return err
				}
			}
			continue
		}
		c := cs.fromRow(row)
		if !c.record.Grow(c.cost()) {
			continue // it is known again when there is room
		}
		cs.mu.Lock()
		has.all[c.id] = c
		cs.mu.Unlock()
	}
	for _, c := range cs.list(sandbox) {
		if !kept[c.id] { // another server has removed it
			cs.lose(has, c.id)
		}
	}
	return nil
}

// lose makes a context unknown here.
func (cs *contexts) lose(has *shelf, id string) {
	cs.mu.Lock()
	c := has.all[id]
	delete(has.all, id)
	cs.mu.Unlock()
	if c != nil {
		c.drop()
	}
}

// add makes a context known. The oldest that has ended makes room for it.
func (cs *contexts) add(ctx context.Context, c *codeContext) error {
	cs.clean()
	has := cs.shelf(c.sandbox)
	has.rows.Lock()
	defer has.rows.Unlock()
	if !c.record.Grow(c.cost()) {
		return fail(http.StatusTooManyRequests, codeQuota, "the contexts of this API key, or of all, take as much memory as they may: delete some")
	}
	dropped, err := cs.rows.AddContext(ctx, c.row())
	if err != nil {
		c.record.Free()
		return err
	}
	cs.lose(has, dropped)
	cs.mu.Lock()
	has.all[c.id] = c
	cs.mu.Unlock()
	return nil
}

func (cs *contexts) remove(ctx context.Context, c *codeContext) error {
	has := cs.shelf(c.sandbox)
	has.rows.Lock()
	defer has.rows.Unlock()
	if err := cs.rows.RemoveContext(ctx, c.sandbox, c.id); err != nil {
		return err
	}
	cs.lose(has, c.id)
	return nil
}
