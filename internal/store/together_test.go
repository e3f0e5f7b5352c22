package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"modernc.org/sqlite"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// crowd is writers of one store that wait while the first is held up.
type crowd struct {
	t       *testing.T
	s       *SQL
	commits *atomic.Int32 // that there were
	refuse  *atomic.Bool  // has SQLite refuse to commit
	end     chan struct{}
	first   error
	done    sync.WaitGroup
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{t, openInternal(t, filepath.Join(t.TempDir(), "drowse.db")), new(atomic.Int32), new(atomic.Bool), make(chan struct{}), nil, sync.WaitGroup{}}
	conn, err := c.s.writer.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Raw(func(driver any) error {
		driver.(sqlite.HookRegisterer).RegisterCommitHook(func() int32 {
			if c.refuse.Load() {
				return 1
			}
			c.commits.Add(1)
			return 0
		})
		return nil
	})
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	c.done.Go(func() {
		c.first = c.s.write(t.Context(), noKey, func(ctx context.Context, tx *sql.Tx) error {
			close(begun)
			<-c.end
			_, err := tx.ExecContext(ctx, `INSERT INTO secrets (name, value) VALUES ('first', randomblob(32))`)
			return err
		})
	})
	<-begun
	return c
}

// write has one more wait for its turn, and returns where its error will be.
func (c *crowd) write(ctx context.Context, do func(context.Context, *sql.Tx) error) *error {
	err, waits := new(error), newAsked(ctx)
	c.done.Go(func() { *err = c.s.write(waits, noKey, do) })
	<-waits.at
	return err
}

// giveUp has one wait for its turn that gives up, and returns its error.
func (c *crowd) giveUp(ctx context.Context) (wait func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended, waits := make(chan error, 1), newAsked(ctx)
	go func() { ended <- c.s.write(waits, noKey, insert("gone")) }()
	<-waits.at
	return func() error { cancel(); return <-ended }
}

// insert is a write of a secret of that name.
func insert(name string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO secrets (name, value) VALUES (?, randomblob(32))`, name)
		return err
	}
}

// names lets the first go on and returns what there is when all have ended.
func (c *crowd) names() string {
	close(c.end)
	c.done.Wait()
	rows, err := collect(c.t.Context(), c.s.reader, func(rows *sql.Rows) (name string, err error) {
		err = rows.Scan(&name)
		return name, err
	},
		`SELECT name FROM secrets ORDER BY rowid`)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.s.open != nil || c.s.turns.Taken() != 0 {
		c.t.Error("a transaction is open, or somebody has the turn")
	}
	return strings.Join(rows, " ")
}

// TestWriteTogether: those who wait are committed together, and none less than if it were
// alone.
func TestWriteTogether(t *testing.T) {
	c := newCrowd(t)
	var errs []*error
	for n := range mostTogether + 3 {
		errs = append(errs, c.write(t.Context(), insert(fmt.Sprint(n))))
	}
	got := c.names()
	if n := len(strings.Fields(got)); n != mostTogether+4 || c.commits.Load() != 2 {
		t.Errorf("%d commits of %d writes: %s", c.commits.Load(), n, got)
	}
	for _, err := range errs {
		if *err != nil {
			t.Error(*err)
		}
	}
}

// TestWriteAlone: who does not write, or cannot, takes nothing from the others.
func TestWriteAlone(t *testing.T) {
	c := newCrowd(t)
	refusal := errdef.New(errdef.Conflict, "sandbox_exists", "it exists")
	a := c.write(t.Context(), insert("a"))
	gone := c.giveUp(t.Context())
	refused := c.write(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(insert("refused")(ctx, tx), refusal)
	})
	twice := c.write(t.Context(), insert("a"))
	b := c.write(t.Context(), insert("b"))
	last := c.giveUp(t.Context())
	for _, err := range []error{gone(), last()} {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if got := c.names(); got != "first a b" || c.commits.Load() != 1 {
		t.Errorf("there are %s, after %d commits", got, c.commits.Load())
	}
	if errors.Join(c.first, *a, *b) != nil || !errors.Is(*refused, refusal) || *twice == nil {
		t.Errorf("%v, %v, %v, %v, %v", c.first, *a, *b, *refused, *twice)
	}
}

// TestRefusedTogether: the first does not wait for all who are refused.
func TestRefusedTogether(t *testing.T) {
	c := newCrowd(t)
	ran := 0
	for range 3 * mostTogether {
		c.write(t.Context(), func(context.Context, *sql.Tx) error {
			if c.commits.Load() == 0 {
				ran++
			}
			return errdef.New(errdef.Conflict, "sandbox_exists", "it exists")
		})
	}
	if got := c.names(); got != "first" || ran >= mostTogether {
		t.Errorf("%d were refused before the first commit; there is %s", ran, got)
	}
}

// TestCommitTogetherFails: where the commit fails nobody has written anything, and nobody
// was refused for what is not there.
func TestCommitTogetherFails(t *testing.T) {
	c := newCrowd(t)
	refusal := errdef.New(errdef.Conflict, "sandbox_exists", "it exists")
	a := c.write(t.Context(), insert("a"))
	refused := c.write(t.Context(), func(context.Context, *sql.Tx) error { return refusal })
	c.refuse.Store(true)
	if got := c.names(); got != "" || c.first == nil || *a == nil || *refused == nil || errors.Is(*refused, refusal) {
		t.Errorf("there is %q; %v, %v, %v", got, c.first, *a, *refused)
	}
	c.refuse.Store(false)
	if err := c.s.Commit(t.Context(), Sandbox{ID: "a"}, []lifecycle.Entry{{Type: lifecycle.EntryCreated}}); err != nil {
		t.Error(err)
	}
}

// TestTransactionTakenBack: SQLite takes back a whole transaction after some errors. Those
// before are told so, and those after have another one.
func TestTransactionTakenBack(t *testing.T) {
	c := newCrowd(t)
	a := c.write(t.Context(), insert("a"))
	taken := errors.New("taken back")
	takes := c.write(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `ROLLBACK`); err != nil {
			t.Error(err)
		}
		return taken
	})
	b := c.write(t.Context(), insert("b"))
	if got := c.names(); got != "b" || c.first == nil || *a == nil || *takes == nil || *b != nil {
		t.Errorf("there is %q; %v, %v, %v, %v", got, c.first, *a, *takes, *b)
	}
}

// TestWriterPanics: who panics keeps nobody waiting.
func TestWriterPanics(t *testing.T) {
	c := newCrowd(t)
	a := c.write(t.Context(), insert("a"))
	var said any
	waits := newAsked(t.Context())
	c.done.Go(func() {
		defer func() { said = recover() }()
		_ = c.s.write(waits, noKey, func(context.Context, *sql.Tx) error { panic("no") })
	})
	<-waits.at
	b := c.write(t.Context(), insert("b"))
	if got := c.names(); got != "b" || !errors.Is(c.first, errPanicked) || !errors.Is(*a, errPanicked) || said != "no" || *b != nil {
		t.Errorf("there is %q; %v, %v, %v, %v", got, c.first, *a, said, *b)
	}
}
