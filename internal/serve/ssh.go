package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/sshd"
)

// newSSHServer returns what lets SSH clients in. Each is a client of server like
// any other, in the name of the API key that its own key belongs to. catchUp returns when
// this server knows what others have changed.
func newSSHServer(o Options, keys *auth.Keys, sshKeys *auth.SSHKeys, calls *audit.Log, server *edge.Server, room *held.Room, catchUp func()) (*sshd.Server, error) {
	hostKey, err := sshd.HostKey(filepath.Join(o.StateDir, "ssh_host_ed25519_key"))
	if err != nil {
		return nil, err
	}
	o.Log.Info("SSH clients are served", "addr", o.SSHListen, "hostKey", ssh.FingerprintSHA256(hostKey.PublicKey()))
	l := sshLogins{keys: keys, sshKeys: sshKeys, calls: calls, connect: server.Connect, catchUp: catchUp}
	return sshd.New(sshd.Options{HostKey: hostKey, Known: l.known, Login: l.login, Room: room, PerClient: o.MaxClientConnections, AliveWithin: o.SSHKeepalive, Log: o.Log}), nil
}

// sshLogins finds out where SSH clients may go.
type sshLogins struct {
	keys    *auth.Keys
	sshKeys *auth.SSHKeys
	calls   *audit.Log
	connect func(client net.Addr) (net.Conn, error)
	catchUp func() // returns when this server knows what others have changed
}

func (l sshLogins) known(key ssh.PublicKey) bool {
	if len(l.sshKeys.Holders(key)) == 0 {
		l.catchUp() // it may have just been added at another server
	}
	return len(l.sshKeys.Holders(key)) > 0
}

// login finds the sandbox of a user name, which is its id, or USER+ID for another
// user in it than the usual one.
func (l sshLogins) login(ctx context.Context, conn ssh.ConnMetadata, key ssh.PublicKey) (sshd.Grant, error) {
	user, id, both := strings.Cut(conn.User(), "+")
	if !both {
		user, id = "", conn.User()
	}
	l.catchUp() // the key may have just been removed at another server
	err := errors.New("the SSH key has been removed")
	for _, h := range l.sshKeys.Holders(key) {
		var grant sshd.Grant
		grant, err = l.enter(ctx, conn.RemoteAddr(), h, user, id)
		l.calls.Login(audit.Actor{ID: h.Key.ID, Name: h.Key.Name, Role: string(h.Key.Role)}, conn.RemoteAddr(), id, err == nil)
		if err == nil {
			return grant, nil
		}
	}
	return sshd.Grant{}, fmt.Errorf("%w; the user name is the id of a sandbox, or USER+ID", err)
}

// enter lets the holder of an API key into a sandbox, as a user of it.
func (l sshLogins) enter(ctx context.Context, from net.Addr, h auth.Holder, user, id string) (sshd.Grant, error) {
	if err := auth.Require(h.Key, auth.Use); err != nil {
		return sshd.Grant{}, err
	}
	bound, unbind := l.keys.Bind(ctx, h.Key.ID)
	context.AfterFunc(h.Life, unbind)
	sb, err := l.open(bound, from, h.Key.ID, id)
	if err != nil {
		unbind()
		return sshd.Grant{}, err
	}
	return sshd.Grant{Sandbox: sb.As(user), Key: h.Key.ID, Until: bound}, nil
}

// open returns a sandbox in the name of an API key, for as long as ctx.
func (l sshLogins) open(ctx context.Context, from net.Addr, key, id string) (*client.Sandbox, error) {
	way := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return l.connect(from) }}
	context.AfterFunc(ctx, way.CloseIdleConnections)
	c, err := client.New(client.Options{APIKey: l.keys.Lend(ctx, key), HTTPClient: &http.Client{Transport: way}})
	if err != nil {
		return nil, err
	}
	sb, _, err := c.Open(ctx, id)
	return sb, err
}
