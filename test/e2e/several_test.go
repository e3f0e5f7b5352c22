package e2e

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/drowse-dev/drowse/internal/secret"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// envServers is how many servers stand behind the address of each server that a test
// starts, to run all tests so. They have one database and one place for copies, and each
// connection goes to any of them: what a test sees of one server it must see of several.
//
// What the test does with its server (stop, crash, restart) befalls all of them. A test
// that looks at what only one server has is left out, and listed in test/alone.txt.
const envServers = "DROWSE_TEST_SERVERS"

// servers is the number, or 0 for tests of one server.
var servers = sync.OnceValue(func() int {
	n, err := strconv.Atoi(os.Getenv(envServers))
	if err != nil || n < 2 {
		return 0
	}
	return n
})

// leftOut has the reason for each test that test/alone.txt lists.
var leftOut = sync.OnceValues(func() (map[string]string, error) {
	text, err := os.ReadFile("../alone.txt")
	if err != nil {
		return nil, err
	}
	reasons := map[string]string{}
	for line := range strings.Lines(string(text)) {
		test, reason, _ := strings.Cut(strings.TrimPrefix(line, "test/e2e "), ": ")
		reasons[test] = strings.TrimSpace(reason)
	}
	return reasons, nil
})

// skipWithSeveral skips a test that is about one server.
func skipWithSeveral(t testing.TB, why string) {
	t.Helper()
	if servers() > 0 {
		t.Skipf("left out with several servers: %s", why)
	}
}

// keptConnections is how many idle connections the tests' client keeps. With several
// servers it keeps none, so that each request goes to any of them.
func keptConnections() int {
	if servers() > 0 {
		return -1
	}
	return 16
}

// inPlaceOfOne returns several servers that are one service, or nil if the tests are of one.
func inPlaceOfOne(t testing.TB, args []string) *server {
	t.Helper()
	if servers() == 0 {
		return nil
	}
	reasons, err := leftOut()
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	if reason := reasons[name]; reason != "" {
		skipWithSeveral(t, reason)
	}
	s := serverIn(t, "")
	s.listeners = []string{s.addr}
	for i, arg := range args {
		if strings.HasSuffix(arg, "-listen") {
			s.listeners = append(s.listeners, args[i+1])
		}
	}
	s.store = pgtest.Shared(t).NewDatabase(t)
	blobs := t.TempDir()
	key := strings.Repeat("42", 32) // that values of secrets are encrypted with
	for range servers() {
		m := serverIn(t, stateDir(t))
		if err := os.WriteFile(filepath.Join(m.home, secret.KeyFile), []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		m.store, m.log = s.store, s.log
		m.peer = []string{"--peer-listen", freeAddress(t), "--blobs", blobs}
		m.listeners = []string{m.addr}
		for range s.listeners[1:] {
			m.listeners = append(m.listeners, freeAddress(t))
		}
		s.members = append(s.members, m)
	}
	return s
}

// each returns the servers that this one stands for.
func (s *server) each() []*server {
	if s.members == nil {
		return []*server{s}
	}
	return s.members
}

// runs reports whether any of the servers runs.
func (s *server) runs() bool {
	for _, m := range s.each() {
		if m.cmd != nil {
			return true
		}
	}
	return false
}

// startMembers starts all servers and lets clients reach them.
func (s *server) startMembers() {
	s.t.Helper()
	for _, m := range s.members {
		m.binary, m.env, m.args = s.binary, s.env, slices.Clone(s.args)
		for i, arg := range m.args {
			if n := slices.Index(s.listeners, arg); n > 0 {
				m.args[i] = m.listeners[n]
			}
		}
		m.start()
		s.shareHostKey()
	}
	for n, addr := range s.listeners {
		var to []string
		for _, m := range s.members {
			to = append(to, m.listeners[n])
		}
		b, err := balance(addr, to)
		if err != nil {
			s.t.Fatal(err)
		}
		s.balancers = append(s.balancers, b)
	}
}

// shareHostKey has all servers known to SSH clients by one key, that of the first.
func (s *server) shareHostKey() {
	s.t.Helper()
	const name = "ssh_host_ed25519_key"
	key, err := os.ReadFile(filepath.Join(s.members[0].home, name))
	if errors.Is(err, fs.ErrNotExist) {
		return // no clients by SSH
	}
	for _, m := range s.members[1:] {
		err = cmp.Or(err, os.WriteFile(filepath.Join(m.home, name), key, 0o600))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// unbalance lets no client reach the servers any more, once they have ended.
func (s *server) unbalance() {
	for _, b := range s.balancers {
		b.close()
	}
	s.balancers = nil
}

// settle waits, with several servers, for what is promised soon and not at once: a key that
// was revoked at one counts for requests to sandboxes of others within a quarter of a second.
func (s *server) settle(what string, check func() bool) {
	s.t.Helper()
	if s.members != nil {
		testmode.Eventually(s.t, what, check)
	}
}

// alone skips a test with several servers that looks at what only one has.
func (s *server) alone(what string) {
	s.t.Helper()
	if s.members != nil {
		skipWithSeveral(s.t, what)
	}
}

// dir is the state directory of the one server.
func (s *server) dir() string {
	s.t.Helper()
	s.alone("its state directory")
	return s.home
}

// glob returns the files of all state directories that match a pattern below these.
func (s *server) glob(pattern ...string) []string {
	var found []string
	for _, m := range s.each() {
		found = append(found, glob(filepath.Join(append([]string{m.home}, pattern...)...))...)
	}
	return found
}

// processes returns the processes of a sandbox.
func (s *server) processes(id string) []string {
	var found []string
	for _, m := range s.each() {
		found = append(found, processes(m.home, id)...)
	}
	return found
}

// cgroups returns the cgroups of a sandbox.
func (s *server) cgroups(id string) []string {
	var found []string
	for _, m := range s.each() {
		found = append(found, cgroups(m.home, id)...)
	}
	return found
}

// pid is the process of the one server.
func (s *server) pid() int {
	s.t.Helper()
	s.alone("its process")
	return s.cmd.Process.Pid
}

// balancer passes each connection on to any of several servers.
type balancer struct {
	listener net.Listener
	open     sync.WaitGroup
}

func balance(addr string, to []string) (*balancer, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	b := &balancer{listener: listener}
	b.open.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			b.open.Go(func() { pass(conn.(*net.TCPConn), to) })
		}
	})
	return b, nil
}

// close returns when nothing is passed on any more.
func (b *balancer) close() {
	_ = b.listener.Close()
	b.open.Wait()
}

// pass passes a connection on to a server that takes it, until both sides have ended or
// one has broken off, which the other then sees.
func pass(from *net.TCPConn, to []string) {
	defer from.Close()
	for _, i := range rand.Perm(len(to)) {
		conn, err := net.Dial("tcp", to[i])
		if err != nil {
			continue // it does not run
		}
		defer conn.Close()
		server := conn.(*net.TCPConn)
		var both sync.WaitGroup
		both.Go(func() { passOneWay(server, from) })
		both.Go(func() { passOneWay(from, server) })
		both.Wait()
		return
	}
}

func passOneWay(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err == nil {
		_ = to.CloseWrite()
		return
	}
	for _, conn := range []*net.TCPConn{to, from} {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
}
