package store

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// CodeContext is a command, or a REPL, that a client has started in a sandbox and may
// come back to.
type CodeContext struct {
	ID        string            `json:"id"`
	Sandbox   string            `json:"sandbox"`
	Key       string            `json:"key"` // the id of the API key that has made it
	Kind      string            `json:"kind"`
	Alias     string            `json:"alias,omitempty"` // the language of a REPL
	Command   []string          `json:"command,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Terminal  *TerminalSize     `json:"terminal,omitempty"` // nil for none
	TTL       time.Duration     `json:"ttl,omitempty"`
	CreatedAt time.Time         `json:"createdAt"`
	Kernel    string            `json:"kernel,omitempty"` // the interpreter's id of a REPL
	End       *ContextEnd       `json:"end,omitempty"`    // nil while its process runs
}

// TerminalSize is that of a terminal, in characters.
type TerminalSize struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// ContextEnd is how the process of a context ended.
type ContextEnd struct {
	Exit  *int   `json:"exit,omitempty"` // nil where nobody knows
	State string `json:"state,omitempty"`
}

// Bounds of the contexts of a sandbox.
const (
	MostContexts     = 64      // those that have ended included
	MostContextBytes = 4 << 20 // of all together, as they are stored
)

// CodeContexts is the contexts of sandboxes that have not ended. They go in the commit
// in which their sandbox ends.
type CodeContexts interface {
	// AddContext stores a new one. If there are too many, the oldest that has ended goes,
	// whose id is returned. It is errdef.Exhausted if none has ended, or if all take too
	// much room, and errdef.NotFound if the sandbox is not there or has ended.
	AddContext(ctx context.Context, c CodeContext) (dropped string, err error)
	// ChangeContext stores one anew; errdef.NotFound if it was removed.
	ChangeContext(ctx context.Context, c CodeContext) error
	// Contexts returns those of a sandbox, oldest first.
	Contexts(ctx context.Context, sandbox string) ([]CodeContext, error)
	// RemoveContext removes one, if it is there.
	RemoveContext(ctx context.Context, sandbox, id string) error
}

// ErrTooManyContexts is what AddContext returns for one more than a sandbox may have.
func ErrTooManyContexts(sandbox string) error {
	return errdef.New(errdef.Exhausted, "too_many_contexts", "sandbox %s has %d contexts, which is as many as it may have", sandbox, MostContexts).
		WithRemedy("delete some").With("allowed", MostContexts)
}

// ErrContextsTooLarge is what AddContext returns where all take too much room.
func ErrContextsTooLarge(sandbox string) error {
	return errdef.New(errdef.Exhausted, "too_many_contexts", "the contexts of sandbox %s would take more than %d MiB", sandbox, MostContextBytes>>20).
		WithRemedy("delete some, or put long commands into files")
}

// ErrContextNotFound is what is returned where there is no such context.
func ErrContextNotFound(c CodeContext) error {
	return errdef.New(errdef.NotFound, "context_not_found", "sandbox %s has no context %.80q", c.Sandbox, c.ID)
}

// ErrSandboxOver is what AddContext returns for a sandbox that has ended.
func ErrSandboxOver(id string) error {
	return errdef.New(errdef.NotFound, "sandbox_not_found", "sandbox %s has ended", id)
}

// InUTC returns c with its times in UTC, sharing nothing.
func (c CodeContext) InUTC() CodeContext {
	toUTC(&c.CreatedAt)
	c.Command, c.Env = slices.Clone(c.Command), maps.Clone(c.Env)
	if c.Terminal != nil {
		c.Terminal = new(*c.Terminal)
	}
	if c.End != nil {
		c.End = new(*c.End)
	}
	return c
}

// codeContexts is the part of a database with the contexts of sandboxes.
type codeContexts struct{ s *SQL }

// AddContext implements [Store].
func (x codeContexts) AddContext(ctx context.Context, c CodeContext) (dropped string, err error) {
	data, err := encode(c.InUTC())
	if err == nil {
		err = x.s.write(ctx, c.Key, func(ctx context.Context, tx *sql.Tx) (err error) {
			if err := x.s.own(ctx, tx, ownedSandboxes, c.Sandbox); err != nil {
				return err
			}
			dropped, err = addContext(ctx, tx, c, data)
			return err
		})
	}
	if err != nil {
		dropped = ""
	}
	return dropped, x.s.explain(err, "store context %s of sandbox %s", c.ID, c.Sandbox)
}

func addContext(ctx context.Context, tx *sql.Tx, c CodeContext, data string) (dropped string, err error) {
	state, err := stateOf(ctx, tx, c.Sandbox)
	if err != nil {
		return "", err
	}
	if state == lifecycle.Terminated {
		return "", ErrSandboxOver(c.Sandbox)
	}
	var has int
	if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM code_contexts WHERE sandbox = ?`, c.Sandbox).Scan(&has); err != nil {
		return "", err
	}
	if has >= MostContexts {
		err := tx.QueryRowContext(ctx, `
			DELETE FROM code_contexts WHERE sandbox = ?1 AND id = (
				SELECT id FROM code_contexts WHERE sandbox = ?1 AND ended = 1 ORDER BY created_at, id LIMIT 1)
			RETURNING id`, c.Sandbox).Scan(&dropped)
		if errors.Is(err, sql.ErrNoRows) {
			err = ErrTooManyContexts(c.Sandbox)
		}
		if err != nil {
			return "", err
		}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO code_contexts (sandbox, id, created_at, ended, version, data) VALUES (?, ?, ?, ?, ?, ?)`,
		c.Sandbox, c.ID, stamp(c.CreatedAt), c.End != nil, formVersion, data); err != nil {
		return "", err
	}
	var size int
	err = tx.QueryRowContext(ctx, `SELECT sum(octet_length(data)) FROM code_contexts WHERE sandbox = ?`, c.Sandbox).Scan(&size)
	if err == nil && size > MostContextBytes {
		err = ErrContextsTooLarge(c.Sandbox)
	}
	return dropped, err
}

// ChangeContext implements [Store].
func (x codeContexts) ChangeContext(ctx context.Context, c CodeContext) error {
	data, err := encode(c.InUTC())
	if err == nil {
		err = x.s.write(ctx, c.Key, func(ctx context.Context, tx *sql.Tx) error {
			if err := x.s.own(ctx, tx, ownedSandboxes, c.Sandbox); err != nil {
				return err
			}
			result, err := tx.ExecContext(ctx, `UPDATE code_contexts SET ended = ?, version = ?, data = ? WHERE sandbox = ? AND id = ?`,
				c.End != nil, formVersion, data, c.Sandbox, c.ID)
			return oneRow(result, err, func() error { return ErrContextNotFound(c) })
		})
	}
	return x.s.explain(err, "store context %s of sandbox %s", c.ID, c.Sandbox)
}

// Contexts implements [Store].
func (x codeContexts) Contexts(ctx context.Context, sandbox string) ([]CodeContext, error) {
	all, err := collect(ctx, x.s.reader, func(rows *sql.Rows) (c CodeContext, err error) {
		var (
			id      string
			version int
			data    sql.RawBytes
		)
		if err := rows.Scan(&id, &version, &data); err != nil {
			return c, err
		}
		err = decode("context "+id, version, data, &c)
		return c, err
	}, `SELECT id, version, data FROM code_contexts WHERE sandbox = ? ORDER BY created_at, id`, sandbox)
	return all, x.s.explain(err, "read the contexts of sandbox %s", sandbox)
}

// RemoveContext implements [Store].
func (x codeContexts) RemoveContext(ctx context.Context, sandbox, id string) error {
	err := x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		if err := x.s.own(ctx, tx, ownedSandboxes, sandbox); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM code_contexts WHERE sandbox = ? AND id = ?`, sandbox, id)
		return err
	})
	return x.s.explain(err, "remove context %s of sandbox %s", id, sandbox)
}

// dropContexts removes those of a sandbox that ends.
func dropContexts(ctx context.Context, tx *sql.Tx, sb Sandbox) error {
	if sb.Record.State != lifecycle.Terminated {
		return nil
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM code_contexts WHERE sandbox = ?`, sb.ID)
	return err
}
