package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// endEnv says how a program that has started servers ends.
const endEnv = "DROWSE_PGTEST_END"

// TestWhateverEndsTheTests: a program that ends without any cleanup leaves no process
// and no directory.
func TestWhateverEndsTheTests(t *testing.T) {
	if how := os.Getenv(endEnv); how != "" {
		for _, s := range []*Server{Start(t), Shared(t)} {
			fmt.Printf("server %s %d %s\n", s.dir, s.first(t), fmt.Sprint(s.others(t)))
		}
		switch how {
		case "exit":
			os.Exit(3)
		case "SIGKILL":
			Shared(t).Stop(t)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	for _, how := range []string{"exit", "SIGKILL", "all passed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestWhateverEndsTheTests$/^none$")
			cmd.Env = append(os.Environ(), endEnv+"="+how)
			out, err := cmd.CombinedOutput()
			if (err == nil) != (how == "all passed") {
				t.Errorf("it ended by %v", err)
			}
			servers := 0
			for line := range strings.Lines(string(out)) {
				line, ok := strings.CutPrefix(strings.TrimSpace(line), "server ")
				if !ok {
					continue
				}
				servers++
				fields := strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(line))
				if len(fields) < 5 {
					t.Errorf("a server has too few processes: %s", line)
				}
				gone(t, fields[0], fields[1:])
			}
			if servers != 2 {
				t.Errorf("%d servers were started, want 2:\n%s", servers, out)
			}
		})
	}
}

// gone waits until a directory and processes are no more.
func gone(t *testing.T, dir string, pids []string) {
	t.Helper()
	testmode.Eventually(t, dir+" is no more", func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	})
	for _, pid := range pids {
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		testmode.Eventually(t, "process "+pid+" is no more", func() bool { return strings.ContainsAny(state(n), "ZX") })
	}
}

// TestEndsWithTheTest: after a test, there is nothing of its server at once.
func TestEndsWithTheTest(t *testing.T) {
	var dir string
	var pids []int
	t.Run("it", func(t *testing.T) {
		s := Start(t)
		dir, pids = s.dir, append(s.others(t), s.first(t))
		if len(pids) < 4 {
			t.Errorf("the server has the processes %v", pids)
		}
	})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
	for _, pid := range pids {
		if got := state(pid); got != "X" {
			t.Errorf("process %d is left, in state %s", pid, got)
		}
	}
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestDatabases: each is for itself, and its owner has no rights in others.
func TestDatabases(t *testing.T) {
	s := Shared(t)
	runtime.GC() // its directory must not go with what nobody uses
	a, b := s.NewDatabase(t), s.NewDatabase(t)
	want(t, SQL(t, a, "create table x (n int, s text); insert into x values (1, 'a'), (2, 'B')"))
	want(t, SQL(t, a, "select * from x order by s"), "1|a", "2|B") // by bytes B would be first
	want(t, SQL(t, b, "select count(*) from pg_tables where schemaname = 'public'"), "0")
	want(t, SQL(t, a, "select rolsuper or rolcreatedb or rolcreaterole from pg_roles where rolname = current_user"), "f")
	want(t, SQL(t, a, "show fsync; show synchronous_commit; show full_page_writes"), "on", "on", "on")
	if _, err := run(a, "select 1; select nothing"); err == nil || !strings.Contains(err.Error(), `column "nothing"`) {
		t.Errorf("a statement that is wrong: %v", err)
	}
}

// TestDatabasesGo: those of a shared server are dropped, also with connections.
func TestDatabasesGo(t *testing.T) {
	s := Shared(t)
	before := SQL(t, s.Admin(), "select datname from pg_database order by 1")
	outside := t
	t.Run("it", func(t *testing.T) {
		db := s.NewDatabase(t)
		conn, err := pgconn.Connect(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		outside.Cleanup(func() { _ = conn.Close(context.WithoutCancel(outside.Context())) })
		if len(SQL(t, s.Admin(), "select datname from pg_database")) != len(before)+1 {
			t.Error("there is no new database")
		}
	})
	want(t, SQL(t, s.Admin(), "select datname from pg_database order by 1"), before...)
}

// TestSettings: a test may ask for more.
func TestSettings(t *testing.T) {
	s := Start(t, "fsync=off", "max_connections=20")
	want(t, SQL(t, s.Admin(), "show fsync; show max_connections"), "off", "20")
}

// TestCrash: what was committed is there afterwards, and what was not is not.
func TestCrash(t *testing.T) {
	s := Start(t)
	db := s.NewDatabase(t)
	SQL(t, db, "create table x (n int)")
	for n := range 3 {
		SQL(t, db, fmt.Sprintf("insert into x values (%d)", n))
		open := hold(t, db)
		if err := try(t, open, "begin; insert into x values (100)"); err != nil {
			t.Fatal(err)
		}
		pids := append(s.others(t), s.first(t))
		s.Crash(t)
		for _, pid := range pids {
			if got := state(pid); got != "X" {
				t.Errorf("process %d is there after a crash, in state %s", pid, got)
			}
		}
		if _, err := run(db, "select 1"); err == nil {
			t.Error("a server that crashed answers")
		}
		if err := try(t, open, "commit"); err == nil {
			t.Error("a server that crashed commits")
		}
		s.Up(t)
		want(t, SQL(t, db, "select count(*), max(n) from x"), fmt.Sprintf("%d|%d", n+1, n))
	}
	log, err := os.ReadFile(s.log())
	if got := bytes.Count(log, []byte("database system was not properly shut down")); err != nil || got != 3 {
		t.Errorf("the server recovered %d times, want 3 (%v)", got, err)
	}
}

// TestRestart: it ends connections, and keeps what was committed.
func TestRestart(t *testing.T) {
	s := Start(t)
	db := s.NewDatabase(t)
	SQL(t, db, "create table x (n int); insert into x values (7)")
	open, before := hold(t, db), s.first(t)
	s.Restart(t)
	if s.first(t) == before {
		t.Error("it is the same process")
	}
	if err := try(t, open, "select 1"); err == nil {
		t.Error("a connection outlived a restart")
	}
	want(t, SQL(t, db, "select n from x"), "7")
	if log, err := os.ReadFile(s.log()); err != nil || bytes.Contains(log, []byte("not properly shut down")) {
		t.Errorf("the server crashed (%v)", err)
	}
}

// TestStop: a server that is stopped takes connections and answers nothing.
func TestStop(t *testing.T) {
	s := Start(t)
	db := s.NewDatabase(t)
	open := hold(t, db)
	s.Stop(t)
	for _, pid := range append(s.others(t), s.first(t)) {
		if got := state(pid); got != "T" {
			t.Errorf("process %d is in state %s", pid, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := open.Exec(ctx, "select 1").Close(); !pgconn.Timeout(err) {
		t.Errorf("a server that is stopped has answered: %v", err)
	}
	s.Cont(t)
	want(t, SQL(t, db, "select 1"), "1")
}

// hold opens a connection, which is closed after the test.
func hold(t testing.TB, url string) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func try(t testing.TB, conn *pgconn.PgConn, sql string) error {
	t.Helper()
	return conn.Exec(t.Context(), sql).Close()
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		s, err := newServer(nil)
		if err != nil {
			b.Fatal(err)
		}
		s.kill()
		if err := s.remove(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewDatabase(b *testing.B) {
	s := Start(b)
	for b.Loop() {
		s.NewDatabase(b)
	}
}

func BenchmarkDropDatabase(b *testing.B) {
	s := Start(b)
	for n := 1; b.Loop(); n++ {
		s.NewDatabase(b)
		SQL(b, s.Admin(), fmt.Sprintf("drop database t%d with (force)", n))
	}
}

func BenchmarkCommit(b *testing.B) {
	s := Start(b)
	conn := hold(b, s.NewDatabase(b))
	SQL(b, s.url(role, "t1"), "create table x (n int)")
	for b.Loop() {
		if err := try(b, conn, "insert into x values (1)"); err != nil {
			b.Fatal(err)
		}
	}
}

// TestOpen: a program that is no test has a server until it ends it.
func TestOpen(t *testing.T) {
	t.Parallel()
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	_, url, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	if got := SQL(t, url, "select current_user, count(*) from pg_tables where schemaname = 'public'"); !slices.Equal(got, []string{"drowse|0"}) {
		t.Errorf("the database has %q", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
}
