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
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/client"
)

// Bounds of one connection.
const (
	// handshakeTime is how long a client may take to log in.
	handshakeTime = 30 * time.Second
	// maxChannels is how many sessions and forwarded connections it may have
	// at once, each a program in the sandbox.
	maxChannels = 100
	// A client is asked whether it is there, and may take so long to answer.
	aliveWithin = 40 * time.Second
	// hangUpTime bounds the last call for a program whose client has gone.
	hangUpTime = 5 * time.Second
)

// Options says who gets where.
type Options struct {
	// HostKey is what the server is known by.
	HostKey ssh.Signer
	// Login returns the sandbox that a user name stands for, with the user in it
	// whom commands run as. Key is what the client has shown to have; nil if
	// Anyone. An error refuses the client, which does not learn it.
	Login func(ctx context.Context, conn ssh.ConnMetadata, key ssh.PublicKey) (*client.Sandbox, error)
	// Anyone says that who connects has been let in before.
	Anyone bool
	// Log gets a line for each client; nil for none.
	Log *slog.Logger
}

// Server speaks SSH with clients. Use New.
type Server struct {
	o   Options
	log *slog.Logger
}

// New returns a server.
func New(o Options) *Server {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{o: o, log: log}
}

// ServeConn speaks with the client at the other end of c until it goes, or ctx
// ends. It closes c, and ends what the client left running.
func (s *Server) ServeConn(ctx context.Context, c net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()

	login := &login{ctx: ctx, o: s.o}
	_ = c.SetDeadline(time.Now().Add(handshakeTime))
	conn, channels, requests, err := ssh.NewServerConn(c, login.config())
	if err != nil {
		return fmt.Errorf("SSH client %s: %w", c.RemoteAddr(), err)
	}
	_ = c.SetDeadline(time.Time{})
	guest, err := login.guest(conn)
	if err != nil {
		return fmt.Errorf("SSH client %s: %w", c.RemoteAddr(), err)
	}
	begin := time.Now()
	s.log.Info("SSH client connected", "sandbox", guest.ID, "client", c.RemoteAddr().String())
	defer func() {
		s.log.Info("SSH client has gone", "sandbox", guest.ID, "client", c.RemoteAddr().String(), "dur", time.Since(begin))
	}()
	go refuseRequests(requests)
	go keepAlive(ctx, conn)

	var running sync.WaitGroup
	defer running.Wait()
	defer cancel() // before the wait: what runs ends with its client
	room := make(chan struct{}, maxChannels)
	for offer := range channels {
		select {
		case room <- struct{}{}:
		default:
			_ = offer.Reject(ssh.ResourceShortage, fmt.Sprintf("this connection has %d sessions and forwarded connections already", maxChannels))
			continue
		}
		running.Go(func() {
			defer func() { <-room }()
			serveChannel(ctx, guest, offer)
		})
	}
	return nil
}

func serveChannel(ctx context.Context, guest *client.Sandbox, offer ssh.NewChannel) {
	switch offer.ChannelType() {
	case "session":
		serveSession(ctx, guest, offer)
	case "direct-tcpip":
		forward(ctx, guest, offer)
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
func keepAlive(ctx context.Context, conn *ssh.ServerConn) {
	tick := time.NewTicker(aliveWithin)
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

// login finds out whose sandbox a client asks for.
type login struct {
	ctx context.Context
	o   Options

	mu     sync.Mutex
	guests map[string]*client.Sandbox // by the fingerprints of keys that are let in
}

var errRefused = errors.New("no sandbox for this user name and key")

func (l *login) config() *ssh.ServerConfig {
	c := &ssh.ServerConfig{ServerVersion: "SSH-2.0-drowse", MaxAuthTries: 20}
	if l.o.Anyone {
		c.NoClientAuth = true
		c.NoClientAuthCallback = func(conn ssh.ConnMetadata) (*ssh.Permissions, error) { return l.let(conn, nil) }
	} else {
		c.PublicKeyCallback = l.let
	}
	c.AddHostKey(l.o.HostKey)
	return c
}

const extensionGuest = "drowse-guest"

// let is asked for every key that a client offers; what the client goes in with
// is then the permissions' matter.
func (l *login) let(conn ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	guest, err := l.o.Login(l.ctx, conn, key)
	if err != nil {
		return nil, errors.Join(errRefused, err)
	}
	print := ""
	if key != nil {
		print = ssh.FingerprintSHA256(key)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.guests == nil {
		l.guests = map[string]*client.Sandbox{}
	}
	l.guests[print] = guest
	return &ssh.Permissions{Extensions: map[string]string{extensionGuest: print}}, nil
}

func (l *login) guest(conn *ssh.ServerConn) (*client.Sandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if guest := l.guests[conn.Permissions.Extensions[extensionGuest]]; guest != nil {
		return guest, nil
	}
	return nil, errRefused
}

// hangUp ends a program whose client has gone.
func hangUp(ctx context.Context, p *client.Process, terminal bool) {
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

// onlyReader hides the other methods of a channel from who copies from it.
type onlyReader struct{ io.Reader }

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
