package pgtest

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// behind returns a proxy, the URL of a database with a table x by way of it, and the URL
// without it.
func behind(t *testing.T, s *Server) (p *Proxy, by, past string) {
	t.Helper()
	past = s.NewDatabase(t)
	SQL(t, past, "create table x (n int)")
	p = s.Proxy(t)
	return p, p.URL(past), past
}

func openSQL(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// commits are the ways in which a program ends a transaction that has added a row.
var commits = map[string]func(t *testing.T, url string) error{
	"database/sql": func(t *testing.T, url string) error {
		tx, err := openSQL(t, url).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("insert into x values ($1)", 1); err != nil {
			t.Fatal(err)
		}
		return tx.Commit()
	},
	"pgx": func(t *testing.T, url string) error {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "insert into x values ($1)", 1)
			return err
		})
	},
	"SQL": func(t *testing.T, url string) error {
		conn := hold(t, url)
		if err := try(t, conn, "begin; insert into x values (1)"); err != nil {
			t.Fatal(err)
		}
		return try(t, conn, " COMMIT;\n")
	},
}

// TestLosses: what is lost decides whether the transaction is there; the client learns
// the same both times, and only once.
func TestLosses(t *testing.T) {
	for name, commit := range commits {
		t.Run(name, func(t *testing.T) {
			p, by, past := behind(t, Shared(t))
			for _, c := range []struct {
				what string
				lose func() <-chan struct{}
				want string // rows
			}{
				{"nothing", func() <-chan struct{} { return nil }, "1"},
				{"the answer", p.LoseAnswer, "2"},
				{"the commit", p.LoseCommit, "2"},
				{"nothing again", func() <-chan struct{} { return nil }, "3"},
			} {
				done := c.lose()
				err := commit(t, by)
				if (err != nil) != (done != nil) {
					t.Errorf("%s was lost, and the client got the error %v", c.what, err)
				}
				if refused := new(pgconn.PgError); errors.As(err, &refused) {
					t.Errorf("%s was lost, and the client got an answer: %v", c.what, err)
				}
				if done != nil {
					select {
					case <-done:
					case <-time.After(testmode.Patience()):
						t.Fatalf("%s was not lost", c.what)
					}
				}
				// Nobody holds a lock on what has been undone.
				want(t, SQL(t, past, "set lock_timeout = 1; lock table x; select count(*) from x"), c.want)
			}
		})
	}
}

// TestAnswersBefore: only the answer to the commit is lost, not those before it.
func TestAnswersBefore(t *testing.T) {
	p, by, past := behind(t, Shared(t))
	conn := hold(t, by)
	done := p.LoseAnswer()
	if err := conn.Conn().SetDeadline(time.Now().Add(testmode.Patience())); err != nil {
		t.Fatal(err)
	}
	front := conn.Frontend()
	for _, statement := range []string{"begin", "insert into x values (1)", "commit", "select 1"} {
		front.SendQuery(&pgproto3.Query{String: statement})
	}
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		message, err := front.Receive()
		if err != nil {
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("the connection ended by %v", err)
			}
			break
		}
		if m, ok := message.(*pgproto3.CommandComplete); ok {
			got = append(got, string(m.CommandTag))
		}
	}
	want(t, got, "BEGIN", "INSERT 0 1")
	<-done
	want(t, SQL(t, past, "select count(*) from x"), "1")
}

// TestCut: all connections end, and others can be made.
func TestCut(t *testing.T) {
	p, by, past := behind(t, Shared(t))
	a, b := hold(t, by), hold(t, by)
	if err := try(t, a, "begin; insert into x values (1)"); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	for _, conn := range []*pgconn.PgConn{a, b} {
		if err := try(t, conn, "commit"); err == nil {
			t.Error("a connection that was cut is there")
		}
	}
	want(t, SQL(t, by, "select count(*) from x"), "0")
	testmode.Eventually(t, "the server has noticed", func() bool {
		return SQL(t, past, "select count(*) from pg_stat_activity where datname = current_database()")[0] == "1"
	})
	testmode.Eventually(t, "the proxy has no connection left", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.conns) == 0
	})
}

// TestStall: nothing passes, in either way and on new connections, and nothing is lost.
func TestStall(t *testing.T) {
	p, by, past := behind(t, Shared(t))
	open, waiting := hold(t, by), hold(t, by)
	// The server's answer is stalled: it comes when the lock is free.
	locked := hold(t, past)
	if err := try(t, locked, "begin; lock table x"); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- try(t, waiting, "insert into x values (1)") }()
	testmode.Eventually(t, "an insert waits for the lock", func() bool {
		return SQL(t, past, "select count(*) from pg_locks where not granted")[0] == "1"
	})
	p.Stall()
	p.Stall() // it is no other than one
	if err := try(t, locked, "commit"); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "the server has inserted", func() bool { return SQL(t, past, "select count(*) from x")[0] == "1" })

	open.Frontend().SendQuery(&pgproto3.Query{String: "insert into x values (2)"})
	if err := open.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	open.Conn().Close()
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if conn, err := pgconn.Connect(short, by); !pgconn.Timeout(err) {
		t.Errorf("a connection was made: %v, %v", conn, err)
	}
	select {
	case err := <-answered:
		t.Errorf("an answer passed: %v", err)
	default:
	}
	want(t, SQL(t, past, "select n from x"), "1")

	p.Release()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	testmode.Eventually(t, "what was sent has come, though who sent it has given up", func() bool {
		return SQL(t, past, "select count(*) from x where n = 2")[0] == "1"
	})
	want(t, SQL(t, by, "select count(*) from x"), "2")
}

// TestStalledAndCut: a connection can be cut while nothing passes.
func TestStalledAndCut(t *testing.T) {
	p, by, past := behind(t, Shared(t))
	open := hold(t, by)
	p.Stall()
	sent := make(chan error, 1)
	go func() { sent <- try(t, open, "insert into x values (1)") }()
	p.Cut()
	if err := <-sent; err == nil {
		t.Error("a statement passed")
	}
	p.Release()
	want(t, SQL(t, past, "select count(*) from x"), "0")
}

// TestProxyOfNothing: where the server is down, the proxy's connections end, and later
// ones are made.
func TestProxyOfNothing(t *testing.T) {
	s := Start(t)
	_, by, _ := behind(t, s)
	s.Crash(t)
	if rows, err := run(by, "select 1"); err == nil {
		t.Errorf("a server that is down says %q", rows)
	}
	s.Up(t)
	want(t, SQL(t, by, "select 1"), "1")
}

// TestProxyEnds: after its test, nobody listens.
func TestProxyEnds(t *testing.T) {
	var socket string
	t.Run("it", func(t *testing.T) {
		p := Shared(t).Proxy(t)
		socket = filepath.Join(p.dir, socketName)
		hold(t, p.URL(Shared(t).Admin())) // also where a client is connected
	})
	if conn, err := net.Dial("unix", socket); err == nil {
		conn.Close()
		t.Error("somebody listens")
	}
}
