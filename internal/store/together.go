package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/planted"
)

// A COMMIT waits for the disk, as long for one writer as for many. So who gets the turn
// while a transaction is open joins it, in a savepoint of its own, and the last of those
// who wait commits for all. None is answered before: what one was refused for may be what
// another wrote. A writer that nobody waits for commits at once.

// mostTogether bounds the writers of a transaction, and so how long the first one waits
// for the others.
const mostTogether = 16

// transaction is one that is open. Who has the turn uses it.
type transaction struct {
	engine engine
	id     string // by which the engine knows it
	server string // that it writes for; empty for none
	fence  error  // why nothing may be written but a claim
	conn   *sql.Conn
	tx     *sql.Tx
	joined int           // how many have had their turn
	wrote  int           // how many of them have written
	over   chan struct{} // closed when it has ended; then err is set
	err    error         // why nothing of it is there
}

// noKey takes the turns of writes that are of no API key, or of one that is not known.
const noKey = ""

// write runs do in a transaction on the writer's connection when it is an API key's
// turn. ctx bounds the wait for that and nothing after it: a COMMIT that is
// interrupted may or may not have happened. What remains is bounded by lockWait.
func (s *SQL) write(ctx context.Context, key string, do func(context.Context, *sql.Tx) error) error {
	return s.writeAs(ctx, key, false, do)
}

// writeAs is write, also by a store that was fenced if it claims.
func (s *SQL) writeAs(ctx context.Context, key string, claims bool, do func(context.Context, *sql.Tx) error) error {
	leave, err := s.turns.Enter(ctx, key)
	if err != nil {
		return err
	}
	t := s.open
	if t == nil {
		if t, err = s.begin(ctx); err != nil {
			leave()
			return inTime(err)
		}
	}
	if fence := t.fence; fence != nil && !claims {
		do = func(context.Context, *sql.Tx) error { return fence }
	}
	err = inTime(t.run(context.WithoutCancel(ctx), s, key, leave, do))
	if planted.In(planted.EarlyAnswer) {
		return err
	}
	<-t.over
	if t.err != nil {
		return inTime(t.err)
	}
	return err
}

// errSlow is that the database has not answered in the time that a write may take, which
// is not the caller's.
var errSlow = errors.New("the database took too long")

func inTime(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	slow := fmt.Errorf("%w: %v", errSlow, err)
	if IsUnlearned(err) {
		return ErrUnlearned(slow)
	}
	return slow
}

// run has one more write, and gives the turn of s back. Unless somebody gets it who goes on,
// the transaction is over then.
func (t *transaction) run(ctx context.Context, s *SQL, key string, leave func(), do func(context.Context, *sql.Tx) error) error {
	s.open = nil
	last := true // also if do panics
	defer func() {
		if last {
			t.end()
			leave()
		}
	}()
	err := t.write(ctx, do)
	if t.joined++; t.err == nil && t.wrote > 0 && t.joined < mostTogether {
		s.open = t
		if last = !s.turns.Pass(key); last {
			s.open = nil
		}
	}
	return err
}

// begin opens a transaction, and looks whether somebody else has claimed the server that
// this store has claimed.
func (s *SQL) begin(ctx context.Context) (*transaction, error) {
	conn, err := s.writer.Conn(ctx)
	if err != nil {
		return nil, err
	}
	t := &transaction{engine: s.engine, conn: conn, over: make(chan struct{})}
	server, claimed := s.leases.claimed()
	t.server = server
	var last string
	t.tx, t.id, last, err = s.engine.begin(context.WithoutCancel(ctx), conn, server)
	if err != nil {
		if t.tx != nil {
			_ = t.tx.Rollback()
		}
		return nil, errors.Join(err, conn.Close())
	}
	if last != claimed && !planted.In(planted.Unfenced) {
		t.fence = ErrFenced(server)
	}
	return t, nil
}

// errPanicked is the end of a transaction in which a writer panicked.
var errPanicked = errors.New("another write of the same transaction panicked")

// write is one more write. After an error nothing of it is in the transaction.
func (t *transaction) write(ctx context.Context, do func(context.Context, *sql.Tx) error) (err error) {
	if t.wrote > 0 {
		if _, t.err = t.tx.ExecContext(ctx, `SAVEPOINT one`); t.err != nil {
			return t.err
		}
	}
	t.err = errPanicked
	err = do(ctx, t.tx)
	t.err = nil
	if t.wrote == 0 { // nobody else's is lost with it
		if err == nil {
			t.wrote = 1
		}
		return err
	}
	if err == nil {
		_, t.err = t.tx.ExecContext(ctx, `RELEASE one`)
		t.wrote++
		return t.err
	}
	// SQLite takes back the whole transaction after some errors, such as that of a full
	// disk. Then there is no savepoint any more; nor is there where the connection broke.
	if _, gone := t.tx.ExecContext(ctx, `ROLLBACK TO one; RELEASE one`); gone != nil {
		t.err = gone
		if _, refused := errors.AsType[*errdef.Error](err); !refused {
			t.err = err // which says more
		}
	}
	return err
}

// end commits what has been written, if all of that is there.
func (t *transaction) end() {
	if t.err == nil && t.wrote > 0 {
		if t.err = t.tx.Commit(); t.err != nil {
			t.err = t.engine.settle(context.Background(), t.server, t.id, t.err)
		}
	}
	_ = t.tx.Rollback() // no effect after Commit, or where the database itself has rolled back
	_ = t.conn.Close()  // it goes back to the pool
	close(t.over)
}
