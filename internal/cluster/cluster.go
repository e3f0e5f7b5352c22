// Package cluster is what a server knows of the others that have their records in the
// same database: which of them has a sandbox, and how it is reached.
//
// Each sandbox, snapshot, volume and built template has one owner, which alone changes
// it (package store has that). A request may come to any server. One for the data plane
// the edge passes on, and one for the control plane the dialects do; either finds the
// owner here. A request is passed on once, or again by a server that has given the sandbox
// away meanwhile.
//
// Servers speak mutual TLS with each other, on a listener of their own.
package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// Store is what is needed of the store.
type Store interface {
	Self() string
	Sandbox(ctx context.Context, id string) (store.Sandbox, error)
	Servers(ctx context.Context) ([]store.Server, error)
	Secret(ctx context.Context, name string) ([]byte, error)
	SetRoom(ctx context.Context, room store.Room) error
}

// Options is what a Cluster works with.
type Options struct {
	Store Store
	// Has reports whether this server has a sandbox, also one that has ended; it must not
	// wait.
	Has func(id string) bool
	// TakeOver makes a sandbox, a snapshot or a built template of a server that is gone this
	// one's; nil for where nothing is taken over.
	TakeOver func(ctx context.Context, id string) error
	// Sandboxes returns those that this server has, ended ones too, and Snapshots all that are known here.
	Sandboxes func(ctx context.Context) ([]store.Sandbox, error)
	Snapshots func() []store.Snapshot
	// Room returns what this server has for more sandboxes.
	Room func() (store.Room, error)
	// Templates returns all that were built, of all servers.
	Templates func(ctx context.Context) ([]store.Template, error)
	// OwnerOf returns the server that has a snapshot or a built template now, and the id under
	// which it is taken over: a result of a build goes with its template. This server knows then
	// what it has of it.
	OwnerOf func(ctx context.Context, id string) (whole, server string, err error)
	// Mover moves sandboxes between servers that live; nil for where nothing moves.
	Mover Mover
	// Patience is how long a request waits for a server to have left that stops.
	Patience time.Duration
	// CatchUp returns when this server knows all that others have changed of what it has
	// in memory.
	CatchUp func(ctx context.Context)
	// Admits reports whether a call of the control plane has a good API key, and AdmitsTo
	// whether it has one that sees what another key has made.
	Admits   func(r *http.Request) bool
	AdmitsTo func(r *http.Request, maker string) bool
	// Relay has a request that goes on to another server count there as it does here, by its header.
	Relay func(h http.Header)
	// Uploads opens what was uploaded to this server for a step of a template.
	Uploads func(template, hash string) (*os.File, error)
	// Transport carries requests to the edge of a server, whose URL has another host.
	Transport func(server string) http.RoundTripper
	Log       *slog.Logger
}

// Cluster is the other servers. It is safe for concurrent use.
type Cluster struct {
	o        Options
	identity identity
	looks    chan struct{} // taken by those who ask the store for a sandbox
	takes    takes
	leaves   takes         // sandboxes that have no room here to wake
	turns    chan struct{} // taken by those who take over
	drain    drain

	mu      sync.Mutex
	holders map[string]holder
	servers map[string]store.Server
	asOf    time.Time // when servers was read
	forgot  time.Time // when something has moved last: what was read before does not count
	silent  time.Time // until then the store, which has not answered, is not asked for what was known
}

// holder is the server that has a sandbox.
type holder struct {
	server string
	asOf   time.Time
}

const (
	// holderLife is how long it counts who has a sandbox, and serversLife where servers are.
	holderLife  = 5 * time.Second
	serversLife = time.Second
	// askWithin is how long the store may take to answer where an older answer is known, which then
	// counts for silentLife. A database whose packets are lost says nothing for much longer. What is read
	// on without being waited for is for readWithin.
	askWithin, silentLife, readWithin = time.Second, time.Second, 15 * time.Second
	// mostHolders bounds how many sandboxes are known.
	mostHolders = 100_000
	// mostLooks is how many ask the store at once, which has as many connections again for
	// others: a stranger can ask for ids that nobody has.
	mostLooks = 2
	// dialPatience is how long another server may take to answer.
	dialPatience = 5 * time.Second
)

// Open returns the others of a server that has claimed its store.
func Open(ctx context.Context, o Options) (*Cluster, error) {
	secret, err := o.Store.Secret(ctx, "servers")
	if err != nil {
		return nil, err
	}
	c := &Cluster{o: o, looks: make(chan struct{}, mostLooks), turns: make(chan struct{}, mostTakes), holders: map[string]holder{}}
	c.drain.Cluster = c
	if c.identity, err = newIdentity(secret, o.Store.Self()); err != nil {
		return nil, err
	}
	return c, nil
}

// Listen returns a listener for the connections that other servers make to ln. Only such
// come out of it, with their handshake done.
func (c *Cluster) Listen(ln net.Listener) net.Listener {
	p := &peerListener{Listener: ln, known: make(chan net.Conn), ended: make(chan struct{}), room: make(chan struct{}, mostStrangers)}
	go p.run(c.identity.listening())
	return p
}

// Holder returns the server that has the sandbox of an id; empty where that is this one,
// or nobody. It implements edge.Peers. Where the database does not answer, whoever had it
// last has it still. Of a server that is gone, this one takes the sandbox over, if it can:
// Holder returns then when it has it.
func (c *Cluster) Holder(ctx context.Context, id string) (server string, err error) {
	server, err = c.owner(ctx, id)
	if err != nil || server == "" || c.o.TakeOver == nil {
		return server, err
	}
	return c.unlessGone(ctx, id, server, func() (string, error) { return c.owner(ctx, id) })
}

// unlessGone returns the server that has something, which is empty for this one. If it is gone,
// this one takes that over. again returns who has it.
func (c *Cluster) unlessGone(ctx context.Context, id, server string, again func() (string, error)) (holder string, err error) {
	for end := time.Now().Add(c.o.Patience); ; {
		srv, err := c.server(ctx, server)
		switch {
		case err == nil && !srv.Alive():
			return c.takeOver(ctx, id, server)
		case err != nil || !srv.Leaving:
			return server, nil
		case time.Now().After(end):
			return "", c.errUnreachable(server, fmt.Errorf("it has not left after %s", c.o.Patience))
		}
		select { // it makes what it has ready for others
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(leavingEvery):
		}
		if server, err = again(); err != nil || server == "" {
			return server, err
		}
	}
}

// Stops implements edge.Peers. What is known of the server is as new as it is for who waits for it.
func (c *Cluster) Stops(ctx context.Context, server string) bool {
	if c.o.TakeOver == nil {
		return false
	}
	if !c.look(ctx, true) {
		return false
	}
	defer func() { <-c.looks }() // who comes next has what this one reads
	all, err := c.all(ctx, server, leavingEvery)
	srv, known := all[server]
	return err == nil && known && !srv.Answers()
}

// leavingEvery is how often it is looked whether a server that leaves has left.
const leavingEvery = 100 * time.Millisecond

// owner returns the server that has the sandbox of an id, gone or not.
func (c *Cluster) owner(ctx context.Context, id string) (server string, err error) {
	if !ids.Valid(id) || c.o.Has(id) {
		return "", nil
	}
	if t := c.takes.of(id); t != nil {
		return t.wait(ctx)
	}
	c.mu.Lock()
	last, known := c.holders[id]
	silent := time.Now().Before(c.silent)
	c.mu.Unlock()
	if known && (silent || time.Since(last.asOf) < holderLife) {
		return last.server, nil
	}
	if !c.look(ctx, known) {
		return last.server, ctx.Err()
	}
	began := time.Now()
	ask, cancel := bounded(ctx, known)
	defer cancel()
	sb, err := c.o.Store.Sandbox(ask, id)
	<-c.looks
	switch {
	case errdef.Is(err, errdef.NotFound):
		return "", nil // it may have just been made here, or forgotten
	case err == nil && sb.Owner == c.o.Store.Self():
		if t := c.takes.of(id); t != nil { // committed, and not yet known here
			return t.wait(ctx)
		}
		return "", nil
	case err != nil && known:
		c.noteSilence(ctx, ask)
		return last.server, nil
	case err != nil:
		return "", err
	}
	c.note(id, sb.Owner, began)
	return sb.Owner, nil
}

// look takes one of looks, unless ctx ends before, or the older answer that is known has to do.
func (c *Cluster) look(ctx context.Context, known bool) bool {
	ctx, cancel := bounded(ctx, known)
	defer cancel()
	select {
	case c.looks <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// bounded returns a context for a question to the store, to which there may be an older answer.
func bounded(ctx context.Context, known bool) (context.Context, context.CancelFunc) {
	if !known {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, askWithin)
}

// noteSilence notes that the store has not answered a question within ctx in time, if so.
func (c *Cluster) noteSilence(ctx, ask context.Context) {
	if ask.Err() != nil && ctx.Err() == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.silent = time.Now().Add(silentLife)
	}
}

// note remembers the server that has a sandbox, or had it at a time.
func (c *Cluster) note(id, server string, asOf time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if asOf.Before(c.forgot) || asOf.Before(c.holders[id].asOf) {
		return
	}
	if len(c.holders) >= mostHolders {
		clear(c.holders)
	}
	c.holders[id] = holder{server, asOf}
}

// Forget forgets which server has what, and where servers are: something has moved.
func (c *Cluster) Forget(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.holders)
	c.asOf, c.forgot, c.silent = time.Time{}, time.Now(), time.Time{}
	return nil
}

// server returns a server by its id, as it was last where the database does not answer.
func (c *Cluster) server(ctx context.Context, id string) (store.Server, error) {
	all, err := c.all(ctx, id, serversLife)
	if err != nil {
		return store.Server{}, err
	}
	srv, ok := all[id]
	if !ok {
		return srv, c.errUnreachable(id, errors.New("the database knows no such server"))
	}
	return srv, nil
}

// all returns all servers by their ids, as they were last where the database does not answer.
// They are read anew if that was longer ago than life, or if the one that is looked for is not among
// them. The result is not to be changed.
func (c *Cluster) all(ctx context.Context, wanted string, life time.Duration) (map[string]store.Server, error) {
	c.mu.Lock()
	last, fresh := c.servers, time.Since(c.asOf) < life || time.Now().Before(c.silent)
	c.mu.Unlock()
	_, known := last[wanted]
	if known && fresh {
		return last, nil
	}
	if !known {
		now, err := readServers(ctx, c)
		if err != nil && last != nil {
			return last, nil
		}
		return now, err
	}
	// A database that is slow may answer later than this waits: what it says counts then.
	read := make(chan map[string]store.Server, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWithin)
		defer cancel()
		now, err := readServers(ctx, c)
		if err != nil {
			now = last
		}
		read <- now
	}()
	ask, cancel := bounded(ctx, known)
	defer cancel()
	select {
	case now := <-read:
		return now, nil
	case <-ask.Done():
		c.noteSilence(ctx, ask)
		return last, nil
	}
}

// readServers returns all servers, by their ids, and notes them.
func readServers(ctx context.Context, c *Cluster) (map[string]store.Server, error) {
	began := time.Now()
	list, err := c.o.Store.Servers(ctx)
	if err != nil {
		return nil, err
	}
	now := map[string]store.Server{}
	for _, srv := range list {
		now[srv.ID] = srv
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if began.Before(c.asOf) { // a later one was faster
		return c.servers, nil
	}
	if !began.Before(c.forgot) {
		c.asOf = began
	}
	c.servers = now
	return now, nil
}

// Dial connects to the listener of another server. It implements edge.Peers. What the
// error says is for clients; what it wraps is the reason, for the log.
func (c *Cluster) Dial(ctx context.Context, server, protocol string) (net.Conn, error) {
	srv, err := c.server(ctx, server)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	var conn net.Conn
	if srv.Address == "" {
		err = errors.New("it was started without --peer-listen")
	} else {
		d := tls.Dialer{NetDialer: &net.Dialer{}, Config: c.identity.dialing(server, protocol)}
		conn, err = d.DialContext(ctx, "tcp", srv.Address)
	}
	if err != nil {
		return nil, c.errUnreachable(server, fmt.Errorf("server on %s: %w", srv.Name, err))
	}
	return conn, nil
}

const codeUnreachable = "server_unreachable"

// errUnreachable says that a server has what a request is for, and does not answer.
func (c *Cluster) errUnreachable(server string, why error) error {
	err := errdef.New(errdef.Unavailable, codeUnreachable, "server %s has what this is for, and cannot be reached", server).With("server", server)
	err.Err = why
	if c.o.TakeOver != nil {
		return err.WithRemedy("send it again: when its lease is over, in 15 s at most, another server goes on with what slept there and was copied; for all else see why it is down and start it again")
	}
	return err.WithRemedy("see why it is down and start it again; what it has asleep is there then")
}
