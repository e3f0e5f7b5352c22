package cli

import (
	"bytes"
	"context"
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
		id := []string{strings.TrimSuffix(args[0], sshSuffix)}
		if err := wholeIDs(cmd.Context(), a.app, id, nil); err != nil {
			return err
		}
		return a.proxy(cmd.Context(), id[0])
	}
	return cmd
}

func (a sshCommands) keysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ssh-keys add|ls|rm",
		Short: "say which SSH keys get into sandboxes through the server's --ssh-listen",
		Long: `Say which SSH keys get into sandboxes through the server's --ssh-listen. Each
belongs to the API key that adds it, and may go where that may:

  drowse ssh-keys add ~/.ssh/id_ed25519.pub
  ssh -p 2222 ID@host
  ssh -p 2222 root+ID@host`,
		SuggestionsMinimumDistance: 2,
		Args:                       unknownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, sub := range []*cobra.Command{a.addCommand(), a.lsCommand(), a.rmCommand()} {
		sub.DisableFlagsInUseLine = true
		cmd.AddCommand(sub)
	}
	return cmd
}

func (a sshCommands) addCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "add FILE [flags]",
		Short: "add the public key in a file, such as ~/.ssh/id_ed25519.pub; - is stdin",
		Args:  exactArgs("FILE"),
	}
	cmd.Flags().StringVar(&name, "name", "", "a `name` for it (default: the comment in the file)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, err := a.publicKey(args[0])
		if err != nil {
			return err
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			k, err := client.NewSSHKeys(c).Add(ctx, name, text)
			if err != nil {
				return err
			}
			return a.print(k, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s is added (%s)\n", k.Fingerprint, k.ID) })
		})
	}
	return cmd
}

// maxPublicKey is more than any key takes.
const maxPublicKey = 16 << 10

func (a sshCommands) publicKey(file string) (string, error) {
	from := a.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", usagef("%w", err)
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxPublicKey))
	if bytes.Contains(text, []byte("PRIVATE KEY")) { // it must not leave the machine
		return "", hint(usagef("%s is a private key", file), "give the file beside it that ends in .pub")
	}
	return string(text), err
}

func (a sshCommands) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "list the SSH keys of your API key, oldest first",
		Args:  exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := client.NewSSHKeys(c).List(ctx)
				if err != nil {
					return err
				}
				return a.print(list, func(w io.Writer) {
					rows := [][]string{{"ID", "NAME", "FINGERPRINT", "CREATED"}}
					for _, k := range list {
						rows = append(rows, []string{k.ID, k.Name, k.Fingerprint, span(time.Since(k.CreatedAt)) + " ago"})
					}
					table(w, rows)
				})
			})
		},
	}
}

func (a sshCommands) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID",
		Short: "remove an SSH key; its connections end",
		Args:  exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := client.NewSSHKeys(c).Remove(ctx, args[0]); err != nil {
					return err
				}
				return a.print(map[string]string{"id": args[0]}, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s is removed\n", args[0]) })
			})
		},
	}
}

// proxy lets the SSH client on stdin and stdout into a sandbox.
func (a sshCommands) proxy(ctx context.Context, id string) error {
	key, err := hostKey(a.Getenv)
	if err != nil {
		return err
	}
	sb, err := a.open(ctx, id)
	if err != nil {
		return err
	}
	s := sshd.New(sshd.Options{HostKey: key, Login: func(_ context.Context, conn ssh.ConnMetadata, _ ssh.PublicKey) (sshd.Grant, error) {
		return sshd.Grant{Sandbox: sb.As(conn.User())}, nil
	}})
	return s.ServeConn(ctx, &stdioConn{Reader: a.Stdin, Writer: a.Stdout})
}

// hostKey returns the key that drowse is known by to this user's ssh. The first
// call makes it.
func hostKey(getenv func(string) string) (ssh.Signer, error) {
	dir := getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(home, ".config")
	}
	dir = filepath.Join(dir, "drowse")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "ssh_host_ed25519_key")
	key, err := sshd.HostKey(file)
	if err != nil {
		return nil, hint(err, "remove %s: the next call makes another; then: ssh-keygen -R drowse", file)
	}
	return key, nil
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
