package pgtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Proxy passes on what clients and a server say to each other, and loses what a test
// tells it to. A commit, for it, is a statement that says that and nothing more, as
// database/sql sends it to end a transaction.
type Proxy struct {
	server             string // the server's socket
	dir                string // has the proxy's socket
	listener           net.Listener
	accepting, passing sync.WaitGroup

	pass    sync.RWMutex // held for reading while bytes pass, for writing while none may
	stall   sync.Mutex
	stalled bool // under stall

	mu    sync.Mutex
	conns map[*proxied]bool
	next  *loss // what happens to the next commit
}

// loss is what happens to one commit.
type loss struct {
	done   chan struct{}
	commit bool // the commit itself is lost, not its answer
}

// Proxy starts one in front of the server, which ends with the test.
func (s *Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	dir := filepath.Join(s.dir, fmt.Sprintf("p%d", s.proxies.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+socketName)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{server: s.dir + socketName, dir: dir, listener: l, conns: map[*proxied]bool{}}
	p.accepting.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.accepting.Wait()
		p.Cut()
		p.Release()
		p.passing.Wait()
	})
	return p
}

// URL returns that of a database by way of the proxy.
func (p *Proxy) URL(database string) string { return URLs(database, p) }

// URLs returns that of a database by way of proxies of several servers, in their order.
func URLs(database string, by ...*Proxy) string {
	var dirs []string
	for _, p := range by {
		dirs = append(dirs, p.dir)
	}
	u, err := url.Parse(database)
	if err != nil {
		panic(err) // it is of NewDatabase or Admin
	}
	q := u.Query()
	q.Set("host", strings.Join(dirs, ","))
	if len(by) > 1 {
		q.Set("target_session_attrs", "read-write")
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// Cut closes all connections. Clients may connect again.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

// LoseAnswer has the next commit reach the server, and the connection close when the
// server has answered, without the answer. Done is closed then.
func (p *Proxy) LoseAnswer() (done <-chan struct{}) { return p.lose(&loss{}) }

// LoseCommit has the next commit not reach the server, and the connection close when
// the server has closed it: it has undone the transaction. Done is closed then.
func (p *Proxy) LoseCommit() (done <-chan struct{}) { return p.lose(&loss{commit: true}) }

func (p *Proxy) lose(l *loss) <-chan struct{} {
	l.done = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = l
	return l.done
}

// Stall has no byte pass, in either way, until [Proxy.Release]. What a client has sent
// by then reaches the server, even if the client has given up.
func (p *Proxy) Stall() {
	p.stall.Lock()
	defer p.stall.Unlock()
	if !p.stalled {
		p.pass.Lock()
		p.stalled = true
	}
}

// Release ends a [Proxy.Stall].
func (p *Proxy) Release() {
	p.stall.Lock()
	defer p.stall.Unlock()
	if p.stalled {
		p.pass.Unlock()
		p.stalled = false
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", p.server)
		if err != nil {
			client.Close() // as where nothing listens
			continue
		}
		c := &proxied{proxy: p, client: client, server: server, ended: make(chan struct{})}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		p.passing.Go(c.fromServer)
		p.passing.Go(func() {
			c.fromClient()
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.conns, c)
		})
	}
}

// proxied is a connection of a client, and its own to the server.
type proxied struct {
	proxy          *Proxy
	client, server net.Conn
	ended          chan struct{} // closed when the server says nothing more

	mu      sync.Mutex
	pending int   // how often the server has yet to say that it is ready
	lost    *loss // what happens to a commit that was sent
	before  int   // pending, of what was sent before that
}

func (c *proxied) close() {
	c.client.Close()
	c.server.Close()
}

// fromClient passes on what the client says.
func (c *proxied) fromClient() {
	defer c.close()
	for started := false; ; started = true {
		message, err := read(c.client, started)
		if err != nil {
			return
		}
		var l *loss
		if started {
			l = c.proxy.take(message)
		}
		c.mu.Lock()
		if l != nil {
			c.lost, c.before = l, c.pending
		}
		if !started || strings.IndexByte("QSF", message[0]) >= 0 { // Query, Sync, FunctionCall
			c.pending++
		}
		c.mu.Unlock()
		if l != nil && l.commit {
			_ = c.server.(*net.UnixConn).CloseWrite()
			<-c.ended
			return
		}
		if c.proxy.write(c.server, message) != nil {
			return
		}
	}
}

// take returns what happens to a message: nil if it is no commit, or none is to be lost.
func (p *Proxy) take(message []byte) *loss {
	if message[0] != 'Q' || !bytes.EqualFold(bytes.Trim(message[5:], " \t\r\n;\x00"), []byte("commit")) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.next
	p.next = nil
	return l
}

// fromServer passes on what the server says.
func (c *proxied) fromServer() {
	defer close(c.ended)
	defer c.finish()
	for {
		message, err := read(c.server, true)
		if err != nil {
			return
		}
		ready := message[0] == 'Z' // ReadyForQuery
		c.mu.Lock()
		lost := c.lost != nil && c.before == 0
		if ready {
			c.pending--
			c.before--
		}
		c.mu.Unlock()
		switch {
		case lost && ready:
			return
		case lost:
		case c.proxy.write(c.client, message) != nil:
			return
		}
	}
}

// finish closes a connection, and says so to who waits for its loss.
func (c *proxied) finish() {
	c.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil {
		close(c.lost.done)
	}
}

// write passes on a message, unless the proxy is stalled.
func (p *Proxy) write(to net.Conn, message []byte) error {
	p.pass.RLock()
	defer p.pass.RUnlock()
	_, err := to.Write(message)
	return err
}

// read reads one message: its type, which the first of a client lacks, the length of
// what follows, and that.
func read(from io.Reader, typed bool) ([]byte, error) {
	header := make([]byte, 4, 5)
	if typed {
		header = header[:5]
	}
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(header[len(header)-4:])
	if length < 4 || length > 1<<30 {
		return nil, fmt.Errorf("a message of %d bytes", length)
	}
	message := append(header, make([]byte, length-4)...)
	_, err := io.ReadFull(from, message[len(header):])
	return message, err
}
