package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// records is a database with servers and sandboxes, as one of the servers sees it.
type records struct {
	self    string
	secret  [32]byte
	servers []store.Server
	owners  map[string]string // of sandboxes
	state   lifecycle.State   // of all of them that have none in states
	states  map[string]lifecycle.State
	volumes map[string]bool // which of them have one
	asked   atomic.Int64    // how often for a sandbox
	fails   error
	silent  atomic.Bool // nothing is answered
	mu      sync.Mutex  // guards fails and told where the room is told
	told    []store.Room
	now     func() []store.Server // in place of servers; nil for those
	asks    func()                // called before a sandbox is read; nil for nothing
	reading func()                // called while servers or sandboxes are read, after that; nil for nothing
}

// meanwhile has happen what happens while something is read.
func (r *records) meanwhile() {
	if f := r.reading; f != nil {
		r.reading = nil
		f()
	}
}

func (r *records) Self() string { return r.self }

// answer returns when something is answered.
func (r *records) answer(ctx context.Context) error {
	if !r.silent.Load() {
		return nil
	}
	<-ctx.Done()
	return errdef.New(errdef.Unavailable, "store_unavailable", "%w", ctx.Err())
}

func (r *records) Sandbox(ctx context.Context, id string) (store.Sandbox, error) {
	r.asked.Add(1)
	if err := r.answer(ctx); err != nil {
		return store.Sandbox{}, err
	}
	if f := r.asks; f != nil {
		r.asks = nil
		f()
	}
	owner, ok := r.owners[id]
	r.meanwhile()
	switch {
	case r.fails != nil:
		return store.Sandbox{}, r.fails
	case !ok:
		return store.Sandbox{}, errdef.New(errdef.NotFound, "sandbox_not_found", "no sandbox %s", id)
	}
	sb := store.Sandbox{ID: id, Owner: owner, Record: lifecycle.Record{State: cmp.Or(r.states[id], r.state)}}
	if sb.Record.State == lifecycle.Terminated {
		sb.Record.Tombstone = &lifecycle.Tombstone{Reason: lifecycle.Killed}
	}
	if r.volumes[id] {
		sb.Config.Volumes = []store.VolumeMount{{}}
	}
	return sb, nil
}

func (r *records) Servers(ctx context.Context) ([]store.Server, error) {
	if err := r.answer(ctx); err != nil {
		return nil, err
	}
	if r.now != nil {
		return r.now(), r.fails
	}
	all := slices.Clone(r.servers)
	r.meanwhile()
	return all, r.fails
}

func (r *records) SetRoom(_ context.Context, room store.Room) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		return r.fails
	}
	r.told = append(r.told, room)
	return nil
}

func (r *records) Secret(_ context.Context, name string) ([]byte, error) {
	if name != "servers" {
		return nil, errors.New("another secret is asked for")
	}
	return r.secret[:], nil
}

// failer fails a test that writes to it.
type failer struct{ t *testing.T }

func (f failer) Write(p []byte) (int, error) {
	f.t.Errorf("written is %s", p)
	return len(p), nil
}

func open(t *testing.T, r *records, has ...string) *Cluster {
	t.Helper()
	c, err := Open(t.Context(), Options{Store: r, Has: func(id string) bool { return slices.Contains(has, id) }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// listen has a server answer connections with a word, and returns its address.
func listen(t *testing.T, c *Cluster) string {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := c.Listen(tcp)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				state := conn.(*tls.Conn)
				if state.Handshake() == nil {
					_, _ = io.WriteString(conn, state.ConnectionState().NegotiatedProtocol+" for "+state.ConnectionState().PeerCertificates[0].Subject.CommonName)
				}
			}()
		}
	}()
	return tcp.Addr().String()
}

// TestServersKnowEachOther: servers of one database reach each other, and nobody else does
// by their listener.
func TestServersKnowEachOther(t *testing.T) {
	secret := [32]byte{1}
	b := open(t, &records{self: "srv_b", secret: secret})
	at := listen(t, b)
	here := &records{self: "srv_a", secret: secret, servers: []store.Server{{ID: "srv_a"}, {ID: "srv_b", Address: at}, {ID: "srv_c", Address: at, Name: "far"}}}
	a := open(t, here)

	for _, protocol := range []string{"http/1.1", "h2"} {
		conn, err := a.Dial(t.Context(), "srv_b", protocol)
		if err != nil {
			t.Fatal(err)
		}
		if said, err := io.ReadAll(conn); err != nil || string(said) != protocol+" for srv_a" {
			t.Errorf("srv_b says %q, %v", said, err)
		}
		_ = conn.Close()
	}
	unreachable := func(c *Cluster, server, why string) {
		t.Helper()
		conn, err := c.Dial(t.Context(), server, "http/1.1")
		if err == nil { // with TLS 1.3 the other side's refusal comes after the handshake
			var said []byte
			if said, err = io.ReadAll(conn); err == nil && len(said) == 0 {
				err = io.ErrUnexpectedEOF
			}
			_ = conn.Close()
			if err == nil {
				t.Errorf("%s is reached where %s", server, why)
			}
			return
		}
		if errdef.CodeOf(err) != "server_unreachable" || errdef.Fact(err, "server") != server || errors.Unwrap(err) == nil || strings.Contains(err.Error(), at) {
			t.Errorf("%s where %s: %v, because of %v", server, why, err, errors.Unwrap(err))
		}
	}
	a.o.Log = slog.New(slog.NewTextHandler(failer{t}, nil)) // whoever asks logs it
	unreachable(a, "srv_c", "another server has its address now")
	unreachable(a, "srv_d", "the database knows no such server")
	unreachable(b, "srv_a", "that listens nowhere")
	stranger := open(t, &records{self: "srv_a", secret: [32]byte{2}, servers: here.servers})
	unreachable(stranger, "srv_b", "the database is another")

	plain, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true})
	if err == nil {
		if said, err := io.ReadAll(plain); err == nil {
			t.Errorf("who has no certificate is told %q", said)
		}
		_ = plain.Close()
	}
}

// TestHolder tells who has a sandbox, and asks the store no more often than needed.
func TestHolder(t *testing.T) {
	r := &records{self: "srv_a", owners: map[string]string{"ihere0000000000000000": "srv_a", "ithere000000000000000": "srv_b", "inew00000000000000000": "srv_a"}}
	c := open(t, r, "ihere0000000000000000")
	for _, tt := range []struct {
		id, want string
		asked    int64
	}{
		{"ihere0000000000000000", "", 0}, {"no id", "", 0}, {"ithere000000000000000", "srv_b", 1}, {"ithere000000000000000", "srv_b", 0}, {"inone0000000000000000", "", 1}, {"inew00000000000000000", "", 1},
	} {
		before := r.asked.Load()
		if got, err := c.Holder(t.Context(), tt.id); got != tt.want || err != nil || r.asked.Load()-before != tt.asked {
			t.Errorf("Holder(%q) = %q, %v, after %d questions, want %q after %d", tt.id, got, err, r.asked.Load()-before, tt.want, tt.asked)
		}
	}
	r.fails = errdef.New(errdef.Unavailable, "store_unavailable", "down")
	c.holders["ithere000000000000000"] = holder{server: "srv_b"} // of long ago
	if got, err := c.Holder(t.Context(), "ithere000000000000000"); got != "srv_b" || err != nil {
		t.Errorf("without a database, who had it last is %q, %v", got, err)
	}
	if got, err := c.Holder(t.Context(), "iother000000000000000"); got != "" || errdef.CodeOf(err) != "store_unavailable" {
		t.Errorf("without a database: %q, %v", got, err)
	}
	if _, err := c.Dial(t.Context(), "srv_b", "h2"); err == nil || !strings.Contains(err.Error(), "down") {
		t.Errorf("a connection without a database: %v", err)
	}
}

// TestSilentStore: where the database says nothing, which is no error for long, requests for what was
// known go on to whoever had it last.
func TestSilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_b"}, servers: []store.Server{{ID: "srv_b", Left: time.Minute}}}
		c := openTaking(t, r, func() error { return errors.New("nothing is to be taken over") })
		holds := func() {
			t.Helper()
			began := time.Now()
			if got, err := c.Holder(t.Context(), wanderer); got != "srv_b" || err != nil {
				t.Errorf("Holder is %q, %v", got, err)
			}
			if took := time.Since(began); took > 3*askWithin {
				t.Errorf("that took %s", took)
			}
		}
		holds()
		r.silent.Store(true)
		for range 3 {
			time.Sleep(2 * holderLife)
			var all sync.WaitGroup
			for range 10 * mostLooks {
				all.Go(holds)
			}
			all.Go(func() {
				if c.Stops(t.Context(), "srv_b") {
					t.Error("it stops")
				}
			})
			all.Wait()
			asked := r.asked.Load()
			holds()
			if r.asked.Load() != asked {
				t.Error("it is asked for again at once")
			}
		}
		r.silent.Store(false)
		r.owners[wanderer] = "srv_c"
		r.servers = append(r.servers, store.Server{ID: "srv_c", Left: time.Minute})
		time.Sleep(holderLife)
		if got, err := c.Holder(t.Context(), wanderer); got != "srv_c" || err != nil {
			t.Errorf("then Holder is %q, %v", got, err)
		}
		time.Sleep(readWithin)
	})
}

// TestHolderOfWhatArrives: what is committed to be here, and not yet known here, is waited for.
func TestHolderOfWhatArrives(t *testing.T) { synctest.Test(t, testHolderOfWhatArrives) }

func testHolderOfWhatArrives(t *testing.T) {
	r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_gone"}, servers: []store.Server{{ID: "srv_a", Left: time.Minute}, {ID: "srv_gone"}}}
	committed, arrived := make(chan struct{}), make(chan struct{})
	c := openTaking(t, r, func() error {
		close(committed)
		<-arrived
		return nil
	})
	held := make(chan string, 1)
	r.asks = func() { // another request has it taken over meanwhile
		r.owners[wanderer] = "srv_a"
		go func() {
			server, err := c.takeOver(context.WithoutCancel(t.Context()), wanderer, "srv_gone")
			held <- fmt.Sprint(server, err)
		}()
		<-committed
	}
	got := make(chan string, 1)
	go func() {
		server, err := c.Holder(t.Context(), wanderer)
		got <- fmt.Sprint(server, err)
	}()
	synctest.Wait()
	if len(got) != 0 {
		t.Error("it is not waited for")
	}
	close(arrived)
	if late := <-got; late != "<nil>" || <-held != "<nil>" {
		t.Errorf("Holder is %s", late)
	}
}
