package cli

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/sshd"
)

// sshSuffix may follow an id in what ssh calls a host name, so that the user's
// configuration of ssh can tell sandboxes from other hosts.
const sshSuffix = ".drowse"

type sshCommands struct{ *app }

func (a sshCommands) proxyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ssh-proxy ID [flags]",
		Short: "let ssh, scp, sftp, rsync and git into a sandbox, as their ProxyCommand; wakes it if auto-resume is on",
		Long: `Speak SSH on stdin and stdout, and run in a sandbox what the client asks for.
With this in ~/.ssh/config, "ssh ID.drowse" opens a shell in a sandbox:

  Host *.drowse
    ProxyCommand drowse ssh-proxy %h
    HostKeyAlias drowse
    User user

The server needs no port for this, and the sandbox no SSH server. Who may use the
API key gets in; the user name is that of a user in the sandbox. The key that ssh
knows the sandboxes by is made once, in the user's configuration directory.`,
		Args: exactArgs("ID"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if isTerminal(a.Stdin) {
			return hint(usagef("ssh-proxy: stdin is a terminal"), "to open a shell, use: drowse shell %s; for ssh, see: drowse ssh-proxy --help", args[0])
		}
		return a.proxy(cmd.Context(), strings.TrimSuffix(args[0], sshSuffix))
	}
	return cmd
}

// proxy lets the SSH client on stdin and stdout into a sandbox.
func (a sshCommands) proxy(ctx context.Context, id string) error {
	hostKey, err := loadHostKey(a.Getenv)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	sb, err := a.open(ctx, c, id)
	if err != nil {
		return err
	}
	s := sshd.New(sshd.Options{HostKey: hostKey, Anyone: true, Login: func(_ context.Context, conn ssh.ConnMetadata, _ ssh.PublicKey) (*client.Sandbox, error) {
		return sb.As(conn.User()), nil
	}})
	return s.ServeConn(ctx, &stdioConn{Reader: a.Stdin, Writer: a.Stdout})
}

// loadHostKey returns the key that drowse is known by to this user's ssh. The
// first call makes it.
func loadHostKey(getenv func(string) string) (ssh.Signer, error) {
	dir := getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(home, ".config")
	}
	file := filepath.Join(dir, "drowse", "ssh_host_ed25519_key")
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		data, err = makeHostKey(file)
	}
	if err != nil {
		return nil, fmt.Errorf("host key for ssh: %w", err)
	}
	key, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, hint(fmt.Errorf("host key %s: %w", file, err), "remove it: the next call makes another, and ssh will want its old one removed too: ssh-keygen -R drowse")
	}
	return key, nil
}

// makeHostKey makes a key, and returns the one that is in the file then, which
// another call may have made meanwhile.
func makeHostKey(file string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "drowse")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), ".ssh_host_key-*") // of mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(pem.EncodeToMemory(block))
	if err := errors.Join(err, temp.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(temp.Name(), file); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.ReadFile(file)
}

// stdioConn is a program's input and output as a connection. It has no
// deadlines: ssh has its own.
type stdioConn struct {
	io.Reader
	io.Writer
}

func (c *stdioConn) Close() error {
	var errs []error
	for _, end := range []any{c.Reader, c.Writer} {
		if closer, ok := end.(io.Closer); ok {
			errs = append(errs, closer.Close())
		}
	}
	return errors.Join(errs...)
}

func (*stdioConn) LocalAddr() net.Addr              { return stdioAddr{} }
func (*stdioConn) RemoteAddr() net.Addr             { return stdioAddr{} }
func (*stdioConn) SetDeadline(time.Time) error      { return nil }
func (*stdioConn) SetReadDeadline(time.Time) error  { return nil }
func (*stdioConn) SetWriteDeadline(time.Time) error { return nil }

type stdioAddr struct{}

func (stdioAddr) Network() string { return "stdio" }
func (stdioAddr) String() string  { return "stdio" }
