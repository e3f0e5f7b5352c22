// Package sshd lets SSH clients into sandboxes. A session, a file transfer or a
// forwarded connection becomes a program in the sandbox, which the public client
// starts: so it wakes the sandbox, keeps it awake and ends as any other stream.
//
// Sessions have a terminal of the client's size or none, environment variables,
// and the subsystem sftp, which scp uses too. Connections may be forwarded into
// the sandbox (-L, -D, -J), but none out of it (-R), and neither the client's agent nor
// its display is let in: what runs in a sandbox must not reach what is its user's.
package sshd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/held"
)

// Bounds of one connection.
const (
	// handshakeTime is how long a client may take to log in.
	handshakeTime = 30 * time.Second
	// maxChannels is how many sessions and forwarded connections it may have
	// at once, each a program in the sandbox.
	maxChannels = 100
	// hangUpTime bounds the last call for a program whose client has gone.
	hangUpTime = 5 * time.Second
)

// Options says who gets where.
type Options struct {
	// HostKey is what the server is known by.
	HostKey ssh.Signer
	// Known reports whether a client with a key may get in anywhere. Nil lets in
	// who connects, without a key: something else has let it in before.
	Known func(key ssh.PublicKey) bool
	// Login returns the sandbox that a user name stands for, with the user in it
	// whom commands run as. The client has shown to have the key; nil without
	// Known. The client is told the error. The context ends with the connection.
	Login func(ctx context.Context, conn ssh.ConnMetadata, key ssh.PublicKey) (Grant, error)
	// Room is where clients count, with what they send and do not read; nil for one
	// of this server's own.
	Room *held.Room
	// PerClient is how many connections an address may have; 0 for no bound.
	PerClient int
	// AliveWithin is how often a client is asked whether it is there, and how long it
	// may take to answer; 0 for the constant AliveWithin.
	AliveWithin time.Duration
	// Log gets a line for each client; nil for none.
	Log *slog.Logger
}

// AliveWithin is how long a client may take to answer whether it is there.
const AliveWithin = 40 * time.Second

// Grant is where a client may go.
type Grant struct {
	Sandbox *client.Sandbox
	Key     string          // the id of the API key for which the client counts; "" for none
	Until   context.Context // ends the connection; nil for never
}

// who is for whom a client counts.
func (g Grant) who(c net.Conn) held.Who {
	who := held.Who{Key: g.Key}
	if addr := addrOf(c); addr.IsValid() {
		who.Address = addr.String()
	}
	return who
}

// errGone says why what a client has started ends: not because this server does.
var errGone = errors.New("the client has gone")

// Server speaks SSH with clients. Use New.
type Server struct {
	o   Options
	log *slog.Logger

	all    clients // who is connected
	logins logins

	patience time.Duration // see intakePatience
}

// clients counts clients by their addresses.
type clients struct {
	mu sync.Mutex
	of map[netip.Addr]int
}

// enter counts a client, if there are fewer than most of its address; 0 is no bound.
func (c *clients) enter(addr netip.Addr, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if most > 0 && c.of[addr] >= most {
		return false
	}
	if c.of == nil {
		c.of = map[netip.Addr]int{}
	}
	c.of[addr]++
	return true
}

func (c *clients) leave(addr netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[addr]--; c.of[addr] == 0 {
		delete(c.of, addr)
	}
}

// New returns a server.
func New(o Options) *Server {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if o.Room == nil {
		o.Room = held.New()
	}
	return &Server{o: o, log: log, patience: intakePatience}
}

// Serve speaks with the clients that connect to ln until ctx ends. It closes ln.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	for wait := time.Duration(0); ; {
		c, err := ln.Accept()
		switch {
		case err == nil:
			wait = 0
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return ctx.Err()
		default: // out of descriptors, most likely: others must end first
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			s.log.Warn("SSH connection not accepted", "err", err, "retry", wait)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
			continue
		}
		addr := addrOf(c)
		if !s.all.enter(addr, s.o.PerClient) {
			c.Close()
			continue
		}
		running.Go(func() {
			defer s.all.leave(addr)
			if err := s.ServeConn(ctx, c); err != nil {
				s.log.Debug("SSH client refused", "err", err)
			}
		})
	}
}

func addrOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// ServeConn speaks with the client at the other end of c until it goes, or ctx
// ends. It closes c. What a client that goes has running ends with it; where ctx
// ends first, it runs on.
func (s *Server) ServeConn(ctx context.Context, c net.Conn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errGone)
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()

	from := &intake{Conn: c, ctx: ctx, patience: s.patience}
	conn, channels, requests, err := s.handshake(ctx, from)
	if err != nil {
		return fmt.Errorf("SSH client %s: %w", c.RemoteAddr(), err)
	}
	grant := conn.Permissions.ExtraData[grantKey{}].(Grant)
	guest, who := grant.Sandbox, grant.who(c)
	leave, err := s.o.Room.Session(who)
	if err != nil {
		return fmt.Errorf("SSH client %s: %w", c.RemoteAddr(), err)
	}
	defer leave()
	share := s.o.Room.Lasting(who)
	defer share.Free()
	from.admit(share)
	if grant.Until != nil {
		stop := context.AfterFunc(grant.Until, func() { c.Close() })
		defer stop()
	}
	begin := time.Now()
	s.log.Info("SSH client connected", "sandbox", guest.ID, "client", c.RemoteAddr().String())
	defer func() {
		s.log.Info("SSH client has gone", "sandbox", guest.ID, "client", c.RemoteAddr().String(), "dur", time.Since(begin))
	}()
	go refuseRequests(requests)
	go keepAlive(ctx, conn, cmp.Or(s.o.AliveWithin, AliveWithin))

	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(errGone) // before the wait
	room := make(chan struct{}, maxChannels)
	for offer := range channels {
		select {
		case room <- struct{}{}:
		default:
			_ = offer.Reject(ssh.ResourceShortage, fmt.Sprintf("this connection has %d sessions and forwarded connections already", maxChannels))
			continue
		}
		leave, err := s.o.Room.Session(who)
		if err != nil {
			<-room
			_ = offer.Reject(ssh.ResourceShortage, err.Error())
			continue
		}
		running.Go(func() {
			defer func() { <-room }()
			defer leave()
			serveChannel(ctx, guest, from, offer)
		})
	}
	return nil
}

// handshake lets a client log in.
func (s *Server) handshake(ctx context.Context, c *intake) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	l := s.logins.enter(c.Conn, time.Now())
	if l == nil {
		return nil, nil, nil, errors.New("too many others are logging in")
	}
	defer s.logins.leave(l)
	c.Conn = l
	_ = c.SetDeadline(time.Now().Add(handshakeTime))
	conn, channels, requests, err := ssh.NewServerConn(c, s.config(ctx))
	if err == nil {
		_ = c.SetDeadline(time.Time{})
	}
	return conn, channels, requests, err
}

func serveChannel(ctx context.Context, guest *client.Sandbox, from *intake, offer ssh.NewChannel) {
	switch offer.ChannelType() {
	case "session":
		serveSession(ctx, guest, from, offer)
	case "direct-tcpip":
		forward(ctx, guest, from, offer)
	default:
		_ = offer.Reject(ssh.UnknownChannelType, fmt.Sprintf("drowse has no channels of type %.40q", offer.ChannelType()))
	}
}

// refuseRequests answers what a client asks of the whole connection, such as to
// forward a port of the sandbox to the client.
func refuseRequests(requests <-chan *ssh.Request) {
	for r := range requests {
		if r.WantReply {
			_ = r.Reply(false, nil)
		}
	}
}

// keepAlive ends a connection whose client does not answer any more.
func keepAlive(ctx context.Context, conn *ssh.ServerConn, within time.Duration) {
	tick := time.NewTicker(within)
	defer tick.Stop()
	for {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_, _, _ = conn.SendRequest("keepalive@openssh.com", true, nil) // a refusal is an answer too
		}()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		select {
		case <-answered:
		default:
			conn.Close()
			return
		}
	}
}

// grantKey is where a client may go, among its permissions.
type grantKey struct{}

func (s *Server) config(ctx context.Context) *ssh.ServerConfig {
	c := &ssh.ServerConfig{ServerVersion: "SSH-2.0-drowse", MaxAuthTries: 20}
	c.AddHostKey(s.o.HostKey)
	login := func(conn ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		grant, err := s.o.Login(ctx, conn, key)
		if err != nil {
			return nil, &ssh.BannerError{Err: err, Message: "drowse: " + printable(err.Error()) + "\r\n"}
		}
		return &ssh.Permissions{ExtraData: map[any]any{grantKey{}: grant}}, nil
	}
	if s.o.Known == nil {
		c.NoClientAuth = true
		c.NoClientAuthCallback = func(conn ssh.ConnMetadata) (*ssh.Permissions, error) { return login(conn, nil) }
		return c
	}
	// A client may offer keys that it has not: what they are good for, it learns
	// once it has shown to have one.
	c.PublicKeyCallback = func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !s.o.Known(key) {
			return nil, errors.New("unknown key")
		}
		return &ssh.Permissions{}, nil
	}
	c.VerifiedPublicKeyCallback = func(conn ssh.ConnMetadata, key ssh.PublicKey, _ *ssh.Permissions, _ string) (*ssh.Permissions, error) {
		return login(conn, key)
	}
	return c
}

// hangUp ends a program if its client has gone.
func hangUp(ctx context.Context, p *client.Process, terminal bool) {
	if !errors.Is(context.Cause(ctx), errGone) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpTime)
	defer cancel()
	if terminal {
		_ = p.Kill(ctx) // a shell at a terminal ignores SIGTERM; its children get SIGHUP
	} else {
		_ = p.Terminate(ctx)
	}
}

// finish closes a channel, whose reader may be at work.
func finish(ch ssh.Channel) {
	_ = ch.CloseWrite()
	_ = ch.Close()
}

// printable is text for a user's terminal, which text of a sandbox must not
// command.
func printable(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text))
}
