// Package pgtest runs PostgreSQL for tests: the server of Debian's packages, with a
// directory of its own and nothing of the machine's, and databases in it.
//
// A server ends with its test, and one that is shared with the test's program. That
// holds however these end, also by SIGKILL: no process is left then, and no directory.
//
// What was committed is there after [Server.Crash], and would be after a power cut: the
// server syncs as one in production does. It sorts text as English does, not by bytes,
// as the databases of most users do; and the role that a database belongs to may not
// do more than that.
//
// A [Proxy] loses what passes between a client and a server.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drowse-dev/drowse/internal/ownthread"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const (
	role       = "drowse" // owns the databases of tests
	socketName = "/.s.PGSQL.5432"
	longest    = 107 // bytes in the path of a socket
)

// settings are those of every server. What is not here is as PostgreSQL has it: it
// syncs what it commits.
var settings = []string{
	"listen_addresses=",
	"max_connections=100",
	"shared_buffers=4MB",              // all of them are looked through for each new database
	"dynamic_shared_memory_type=mmap", // in the server's directory, with which it goes
	"max_wal_size=4GB",                // a checkpoint syncs the hundreds of files of each database
	"checkpoint_timeout=1h",
	"jit=off",
	"timezone=UTC",
	"log_timezone=UTC",
	"log_destination=stderr",
	"logging_collector=off",
}

// Server is a server of PostgreSQL.
type Server struct {
	bin       string // where the programs are
	dir       string // has its data, its log and its socket
	settings  []string
	shared    bool
	remove    func() error // removes dir, as the end of this program does, or that of this server
	databases atomic.Int64
	proxies   atomic.Int64

	mu      sync.Mutex
	process *os.Process // the first one; nil while the server is down
	ended   chan struct{}
}

// Start starts a server that ends with the test. Settings are for this one, such as
// "fsync=off".
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := newServer(settings)
	if err != nil {
		t.Fatal(err)
	}
	s.endWith(t)
	return s
}

func (s *Server) endWith(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("PostgreSQL said:\n%s", s.said())
		}
		s.kill()
		if err := s.remove(); err != nil {
			t.Errorf("remove the directory of PostgreSQL: %v", err)
		}
	})
}

// Open starts a server for a program that is no test. It ends with that, at the latest.
func Open() (*Server, error) { return newServer(nil) }

// Close ends a server that Open has started.
func (s *Server) Close() error {
	s.kill()
	return s.remove()
}

var shared struct {
	sync.Mutex
	server *Server
}

// Shared returns the server that all tests of a program have in common, which ends with
// the program. A test that stops or crashes one takes its own.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s, err := newServer(nil)
		if err != nil {
			t.Fatal(err)
		}
		s.shared = true
		shared.server = s
	}
	return shared.server
}

// newServer starts a server, which ends by kill and remove.
func newServer(own []string) (_ *Server, err error) {
	return makeServer(own, func(s *Server) error {
		initdb := s.command("initdb", "--pgdata=data", "--no-sync", "--no-instructions", "--auth=trust", "--username=postgres",
			"--encoding=UTF8", "--no-locale", "--locale-provider=icu", "--icu-locale=en-US", "--wal-segsize=4")
		if out, err := combined(initdb); err != nil {
			return fmt.Errorf("initdb in %s: %w\n%s\nIf its user may not enter %s, set TMPDIR to a directory that all may enter", s.dir, err, out, filepath.Dir(s.dir))
		}
		if err := s.up(); err != nil {
			return err
		}
		_, err := run(s.Admin(), "create role "+role+" login")
		return err
	})
}

// makeServer makes the directory of a server, and has it filled.
func makeServer(own []string, fill func(*Server) error) (_ *Server, err error) {
	s := &Server{settings: append(settings[:len(settings):len(settings)], own...)}
	if s.bin, err = programs(); err != nil {
		return nil, err
	}
	parent := os.TempDir()
	if len(parent+"/pg1234567890/p999"+socketName) > longest {
		parent = "/tmp"
	}
	if s.dir, err = os.MkdirTemp(parent, "pg"); err != nil {
		return nil, err
	}
	if s.remove, err = removeInTheEnd(s.dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	defer func() {
		if err != nil {
			s.kill()
			err = errors.Join(err, s.remove())
		}
	}()
	if c := attributes().Credential; c != nil {
		if err := os.Chown(s.dir, int(c.Uid), int(c.Gid)); err != nil {
			return nil, err
		}
	}
	if err := fill(s); err != nil {
		return nil, err
	}
	return s, nil
}

// combined runs a program of PostgreSQL, and returns what it says.
func combined(cmd *exec.Cmd) (out []byte, err error) {
	err = ownthread.Run(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	return out, err
}

// StandBy returns a stand-by of the server that each commit waits for. It ends with the test.
func (s *Server) StandBy(t testing.TB) *Server {
	t.Helper()
	standby, err := makeServer(nil, func(standby *Server) error { return standby.follow(s) })
	if err != nil {
		t.Fatal(err)
	}
	standby.endWith(t)
	return standby
}

// Follow has a server that is down become a stand-by of another one that each commit waits for.
// What it had is lost.
func (s *Server) Follow(t testing.TB, primary *Server) {
	t.Helper()
	if err := s.follow(primary); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) follow(primary *Server) error {
	if err := os.RemoveAll(filepath.Join(s.dir, "data")); err != nil {
		return err
	}
	backup := s.command("pg_basebackup", "--pgdata=data", "--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--dbname", primary.Admin())
	if out, err := combined(backup); err != nil {
		return fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	if err := s.up(); err != nil {
		return err
	}
	return primary.setStandBys("*")
}

// Alone has commits of the server wait for no stand-by.
func (s *Server) Alone(t testing.TB) {
	t.Helper()
	if err := s.setStandBys(""); err != nil {
		t.Fatal(err)
	}
}

// setStandBys says which stand-bys a commit waits for, and waits until the server knows.
func (s *Server) setStandBys(names string) error {
	if _, err := run(s.Admin(), "alter system set synchronous_standby_names = '"+names+"'"); err != nil {
		return err
	}
	if _, err := run(s.Admin(), "select pg_reload_conf()"); err != nil {
		return err
	}
	for end := time.Now().Add(testmode.Patience()); ; time.Sleep(5 * time.Millisecond) {
		// It is the checkpointer that tells who commits.
		rows, err := run(s.Admin(), "select current_setting('synchronous_standby_names'), count(*) filter (where sync_state = 'sync') from pg_stat_replication")
		if err != nil {
			return err
		}
		if name, standbys, _ := strings.Cut(rows[0], "|"); name == names && (names == "") == (standbys == "0") {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("PostgreSQL has the stand-bys %s. It said:\n%s", rows[0], s.said())
		}
	}
}

// Promote has a stand-by become a primary, which waits for no stand-by.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	if rows := SQL(t, s.Admin(), "select pg_promote()"); rows[0] != "t" {
		t.Fatalf("the stand-by is not promoted. It said:\n%s", s.said())
	}
	s.Alone(t) // as a copy of a primary it may wait for one
}

// programs returns the directory with the programs of the newest PostgreSQL.
func programs() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	newest, dir := 0, ""
	for _, path := range found {
		bin := filepath.Dir(path)
		version, err := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
		if _, missing := os.Stat(filepath.Join(bin, "postgres")); err == nil && missing == nil && version > newest {
			newest, dir = version, bin
		}
	}
	if dir == "" {
		return "", errors.New("there is no PostgreSQL in /usr/lib/postgresql, which these tests start: run script/deps test, which installs it")
	}
	return dir, nil
}

// removeInTheEnd has a directory removed when this process ends, whatever ends it, when
// the function that it returns is called, or when nobody has that any more.
func removeInTheEnd(dir string) (remove func() error, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The server may still be ending.
	cmd := exec.Command("sh", "-c", `read -r _; for _ in $(seq 100); do rm -rf "$0" && exit; sleep 0.1; done; exit 1`, dir)
	cmd.Stdin = r
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // interrupting the tests does not reach it
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	return func() error {
		w.Close()
		return cmd.Wait()
	}, nil
}

// attributes are those of PostgreSQL's processes: it refuses to be root, and ends with
// the thread that starts it. In a PID namespace all of its processes end with the first,
// and in an IPC namespace no shared memory is left.
func attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC}
	uid, gid := os.Geteuid(), os.Getegid()
	if uid != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		return a
	}
	a.Credential = &syscall.Credential{Uid: 65534, Gid: 65534} // nobody
	if u, err := user.Lookup("postgres"); err == nil {
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			a.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return a
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = attributes()
	return cmd
}

// Up starts a server that has crashed, and waits until it has recovered.
func (s *Server) Up(t testing.TB) {
	t.Helper()
	if err := s.up(); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		return errors.New("start PostgreSQL: it is up already")
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"-D", "data", "-k", s.dir}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	cmd := s.command("postgres", args...)
	cmd.Stdout, cmd.Stderr = log, log
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_ = ownthread.Run(func() error {
			err := cmd.Start()
			started <- err
			if err != nil {
				return err
			}
			return cmd.Wait()
		})
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.process, s.ended = cmd.Process, ended
	patience := testmode.Patience()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		_, err := run(s.Admin(), "select 1")
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			s.process = nil
			return fmt.Errorf("PostgreSQL ended: %v. It said:\n%s", cmd.ProcessState, s.said())
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("PostgreSQL answers nothing within %s: %w. It said:\n%s", patience, err, s.said())
		}
	}
}

func (s *Server) log() string { return filepath.Join(s.dir, "log") }

// said is the end of the server's log.
func (s *Server) said() string {
	log, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(log), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "")
}

// Crash kills all processes of the server at once. [Server.Up] starts it again.
func (s *Server) Crash(t testing.TB) {
	t.Helper()
	if !s.kill() {
		t.Fatal("crash PostgreSQL: it is down already")
	}
}

// kill reports whether the server was up.
func (s *Server) kill() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return false
	}
	_ = s.process.Kill() // one that has ended already is as it shall be
	<-s.ended            // all of its namespace have ended before the first
	s.process = nil
	return true
}

// Restart ends the server as an upgrade does, with all connections, and starts it again.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	process, ended := s.process, s.ended
	s.mu.Unlock()
	if process == nil {
		t.Fatal("restart PostgreSQL: it is down")
	}
	if err := process.Signal(syscall.SIGINT); err != nil {
		t.Fatalf("end PostgreSQL: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(testmode.Patience()):
		t.Fatalf("PostgreSQL does not end. It said:\n%s", s.said())
	}
	s.kill()
	s.Up(t)
}

// Stop halts all processes of the server where they are, until [Server.Cont].
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	// Once the first has stopped there are no more.
	s.signal(t, syscall.SIGSTOP, s.first(t))
	s.signal(t, syscall.SIGSTOP, s.others(t)...)
}

// Cont lets a server that was stopped go on.
func (s *Server) Cont(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGCONT, s.others(t)...)
	s.signal(t, syscall.SIGCONT, s.first(t))
}

func (s *Server) signal(t testing.TB, sig syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		// Those that have just ended are not missed.
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatalf("send %s to a process of PostgreSQL: %v", sig, err)
		}
		if sig == syscall.SIGSTOP {
			testmode.Eventually(t, "a process of PostgreSQL has stopped", func() bool { return strings.ContainsAny(state(pid), "TZX") })
		}
	}
}

func (s *Server) first(t testing.TB) int {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		t.Fatal("PostgreSQL is down: start it with Up first")
	}
	return s.process.Pid
}

// others are all processes of the server but the first, whose children they are.
func (s *Server) others(t testing.TB) (pids []int) {
	t.Helper()
	first := strconv.Itoa(s.first(t))
	for _, name := range testmode.Names(t, "/proc") {
		if pid, err := strconv.Atoi(name); err == nil {
			if fields := stat(pid); len(fields) > 1 && fields[1] == first {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// state is that of a process, as /proc has it; X for one that is not there.
func state(pid int) string {
	if fields := stat(pid); len(fields) > 0 {
		return fields[0]
	}
	return "X"
}

// stat returns the state of a process, its parent, and what follows in /proc.
func stat(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return strings.Fields(rest)
}

// Programs is the directory with the programs of this PostgreSQL.
func (s *Server) Programs() string { return s.bin }

// Admin is the URL by which the superuser connects, to a database that has nothing.
func (s *Server) Admin() string { return s.url("postgres", "postgres") }

func (s *Server) url(user, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(user), Path: "/" + database}
	u.RawQuery = url.Values{"host": {s.dir}, "sslmode": {"disable"}}.Encode()
	return u.String()
}

// NewDatabase makes an empty database, and returns the URL by which its owner connects.
// In a server that is shared it goes with the test.
func (s *Server) NewDatabase(t testing.TB) string {
	t.Helper()
	name, url, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	if s.shared {
		t.Cleanup(func() { SQL(t, s.Admin(), "drop database "+name+" with (force)") })
	}
	return url
}

// Create makes an empty database, and returns its name and the URL by which its owner
// connects.
func (s *Server) Create() (name, url string, err error) {
	name = fmt.Sprintf("t%d", s.databases.Add(1))
	_, err = run(s.Admin(), "create database "+name+" owner "+role+" template template0")
	return name, s.url(role, name), err
}

// SQL runs statements in a database, all in one transaction if they begin no other, and
// returns the rows of all of them: their columns as text, with "|" between.
func SQL(t testing.TB, url, statements string) (rows []string) {
	t.Helper()
	rows, err := run(url, statements)
	if err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
	return rows
}

func run(url, statements string) (rows []string, err error) {
	// Also when a test cleans up, whose context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), testmode.Patience())
	defer cancel()
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	results, err := conn.Exec(ctx, statements).ReadAll()
	for _, result := range results {
		for _, row := range result.Rows {
			columns := make([]string, len(row))
			for i, value := range row {
				columns[i] = string(value)
			}
			rows = append(rows, strings.Join(columns, "|"))
		}
	}
	return rows, err
}
