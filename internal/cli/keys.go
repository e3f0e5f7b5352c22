package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

const rolesHelp = `  admin   everything, including keys and imports
  full    all sandboxes, whoever created them
  own     only the sandboxes that were created with the key
  read    view sandboxes, without access to what runs inside`

func (a *app) keysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys create|ls|rename|limit|rotate|revoke",
		Short: "create, list, rename, limit, rotate and revoke API keys",
		Long: `Create, list, rename, limit, rotate and revoke API keys. This needs an admin key, such as the first one,
which the server writes to its state directory. A key has one of four roles:

` + rolesHelp,
		SuggestionsMinimumDistance: 2,
		Args:                       unknownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, sub := range []*cobra.Command{a.keysCreateCommand(), a.keysLsCommand(), keysRenameCommand(a), keysLimitCommand(a), keysRotateCommand(a), a.keysRevokeCommand()} {
		sub.DisableFlagsInUseLine = true
		cmd.AddCommand(sub)
	}
	return cmd
}

var allRoles = []client.Role{client.RoleAdmin, client.RoleFull, client.RoleOwn, client.RoleRead}

func (a *app) keysCreateCommand() *cobra.Command {
	var o client.KeyOptions
	var role string
	cmd := &cobra.Command{
		Use:   "create NAME [flags]",
		Short: "create an API key and print it, once",
		Long: `Create an API key and print it to stdout. It cannot be printed again: the server
stores only a digest. The role is one of

` + rolesHelp + `

The limits apply to all sandboxes made with the key, together. They are checked
at every start and wake of one of these sandboxes, whoever requests it. --max-rate
limits the calls made with the key itself. drowse keys limit changes them later.`,
		Example: `  drowse keys create ci
  drowse keys create alice --role own --max-running 10 --max-memory 8g
  drowse keys create dashboard --role read --expires 30d`,
		Args: exactArgs("NAME"),
	}
	f := cmd.Flags()
	f.StringVar(&role, "role", string(client.RoleFull), "what it may do: admin, full, own or read")
	clockVar(f, &o.For, "expires", 0, "how long the key is valid; none for no limit")
	keyLimitFlags(f, &o.Limits)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Name, o.Role = args[0], client.Role(role)
		if !slices.Contains(allRoles, o.Role) {
			return usagef("--role %s: want admin, full, own or read", role)
		}
		if err := checkKeyLimits(o.Limits); err != nil {
			return err
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			k, err := c.CreateKey(ctx, o)
			if err != nil {
				return err
			}
			if err := a.print(k, func(w io.Writer) { _, _ = fmt.Fprintln(w, k.Text) }); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(a.Stderr, "key %s (%s): it is shown only now\n", k.ID, k.Role)
			return nil
		})
	}
	return cmd
}

// keyLimitFlags adds a flag for each limit of an API key.
func keyLimitFlags(f *pflag.FlagSet, l *client.KeyLimits) {
	f.IntVar(&l.MaxRunning, "max-running", 0, "how many of its sandboxes may run at once; 0 for no limit")
	f.IntVar(&l.MaxSandboxes, "max-sandboxes", 0, "how many sandboxes it may have, paused ones included; 0 for no limit")
	mibVar(f, &l.MaxMemoryMiB, "max-memory", 0, "total memory of its running sandboxes, in MiB or as a `size` such as 2g; 0 for no limit")
	mibVar(f, &l.MaxDiskMiB, "max-disk", 0, "total disk limits of its sandboxes, in MiB or as a `size` such as 2g; 0 for no limit")
	f.IntVar(&l.MaxRate, "max-rate", 0, "how many calls of the API it may make per second; after a pause, ten times as many at once; 0 for the server's --max-key-rate")
}

func checkKeyLimits(l client.KeyLimits) error {
	if l.MaxRunning < 0 || l.MaxSandboxes < 0 || l.MaxRate < 0 {
		return usagef("--max-running, --max-sandboxes and --max-rate: want 0 or more")
	}
	return nil
}

func (a *app) keysLsCommand() *cobra.Command {
	var costs, wide bool
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "list API keys, oldest first, with their roles, limits and use",
		Long: `List API keys, oldest first, with their roles, limits and use. Commands take a key by
its name, its id or the beginning of its id. --wide shows whole ids, the memory
and disk that count against the limits, and how many calls per second a key with a
limit of its own may make.

With --cost, show what their sandboxes and requests cost the server, on a terminal of 80
columns the most of it. DATABASE (bytes written) and CHECKPOINTS (time spent to checksum, sync and verify
them) count since the server started; the other columns are current values.`,
		Args: exactArgs(),
	}
	cmd.Flags().BoolVar(&costs, "cost", false, "show what each key costs the server instead")
	wideVar(cmd, &wide)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			list, err := c.Keys(ctx)
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				if costs {
					tableOfCosts(w, list, wide)
				} else {
					tableOfKeys(w, list, time.Now(), wide)
				}
			})
		})
	}
	return cmd
}

func tableOfCosts(w io.Writer, list []client.Key, wide bool) {
	few := narrow(w, wide)
	rows := [][]string{{"ID", "NAME", "STARTING", "REQUESTS", "DESCRIPTORS", "BUFFERED", "KEPT", "SESSIONS", "LOGS", "DATABASE", "CHECKPOINTS"}}
	for _, k := range list {
		c := k.Cost
		id := k.ID
		if few {
			id = beginning(id)
		}
		rows = append(rows, []string{
			id, k.Name, strconv.Itoa(c.Starting), strconv.Itoa(c.Requests), strconv.Itoa(c.Descriptors),
			human.Bytes(int64(c.BufferedBytes)), human.Bytes(int64(c.KeptBytes)), strconv.Itoa(c.Sessions), human.Bytes(c.LogBytes), human.Bytes(c.DatabaseBytes),
			span(time.Duration(c.CheckpointSeconds * float64(time.Second))),
		})
	}
	if few {
		rows = without(rows, "STARTING", "SESSIONS", "LOGS", "CHECKPOINTS")
	}
	table(w, rows)
}

// beginning is that of the id of a key, as the event log names keys.
func beginning(id string) string {
	short, _, _ := strings.Cut(id, "-")
	return short
}

func tableOfKeys(w io.Writer, list []client.Key, now time.Time, wide bool) {
	row := func(k client.Key, cells ...string) []string {
		if wide {
			return append(cells, outOf(k.Use.MemoryMiB, k.Limits.MaxMemoryMiB), outOf(k.Use.DiskMiB, k.Limits.MaxDiskMiB), rateOf(k.Limits))
		}
		cells[0] = beginning(cells[0])
		return cells
	}
	narrow(w, wide)
	rows := [][]string{{"ID", "NAME", "ROLE", "KEY", "RUNNING", "SANDBOXES", "EXPIRES", "USED"}}
	if wide {
		rows[0] = append(rows[0], "MEMORY MIB", "DISK MIB", "CALLS/S")
	}
	for _, k := range list {
		rows = append(rows, row(k, k.ID, k.Name, string(k.Role), k.Mask,
			outOf(k.Use.Running, k.Limits.MaxRunning), outOf(k.Use.Sandboxes, k.Limits.MaxSandboxes), expiry(k.ExpiresAt, now), lastUse(k.LastUsedAt, now)))
	}
	table(w, rows)
}

// wholeKeyID is the form of the ids of API keys.
var wholeKeyID = lazyregexp.New(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// keyID returns the id of an API key that is named by its name, its id or the beginning
// of that. What is neither stays as it is, for the server to say so.
func keyID(ctx context.Context, c *client.Client, ref string) (string, error) {
	if wholeKeyID.MatchString(ref) {
		return ref, nil
	}
	list, err := c.Keys(ctx)
	if err != nil {
		return "", err
	}
	var named, begin []string
	for _, k := range list {
		switch {
		case k.Name == ref:
			named = append(named, k.ID)
		case strings.HasPrefix(k.ID, ref):
			begin = append(begin, k.ID)
		}
	}
	switch {
	case len(named) == 1:
		return named[0], nil
	case len(named) > 1: // older servers let keys have the same name
		return "", hint(usagef("%q is the name of several API keys: %s", ref, strings.Join(named, ", ")), "give the id, or rename one: drowse keys rename ID NAME")
	case len(begin) == 1 && len(ref) >= shortest:
		return begin[0], nil
	case len(begin) > 0:
		return "", ambiguous(ref, begin)
	}
	return ref, nil
}

// outOf tells how much of a limit is used.
func outOf(used, most int) string {
	if most == 0 {
		return strconv.Itoa(used)
	}
	return fmt.Sprintf("%d/%d", used, most)
}

// rateOf tells the limit on calls per second that a key has of its own.
func rateOf(l client.KeyLimits) string {
	if l.MaxRate == 0 {
		return "-"
	}
	return strconv.Itoa(l.MaxRate)
}

func expiry(t, now time.Time) string {
	switch {
	case t.IsZero():
		return "never"
	case !t.After(now):
		return "expired"
	}
	return "in " + age(t.Sub(now))
}

func lastUse(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return age(now.Sub(t)) + " ago"
}

// listedKeyID is keyID for what a log has of a key, which may be revoked: its name then
// means nothing.
func listedKeyID(ctx context.Context, c *client.Client, ref string) (string, error) {
	id, err := keyID(ctx, c, ref)
	if err == nil && !wholeKeyID.MatchString(id) {
		err = hint(usagef("no API key is called %q", ref), "drowse keys ls lists the keys; for one that was revoked, give its whole id")
	}
	return id, err
}

func keysRenameCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rename KEY NAME",
		Short: "give an API key another name; the key itself stays the same",
		Args:  exactArgs("KEY", "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				id, err := keyID(ctx, c, args[0])
				if err != nil {
					return err
				}
				k, err := client.RenameKey(ctx, c, id, args[1])
				if err != nil {
					return err
				}
				return a.print(k, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s is called %s\n", cell(k.ID), cell(k.Name)) })
			})
		},
	}
}

func keysLimitCommand(a *app) *cobra.Command {
	var l client.KeyLimits
	cmd := &cobra.Command{
		Use:   "limit KEY [flags]",
		Short: "change limits of an API key",
		Long: `Change limits of an API key. Those without a flag stay as they are. New limits hold
from the next call, start and wake on: what runs already stays.`,
		Example: `  drowse keys limit alice --max-running 20
  drowse keys limit ci --max-rate 50    # calls of the API per second
  drowse keys limit ci --max-rate 0     # as many as the server allows every key`,
		Args: exactArgs("KEY"),
	}
	f := cmd.Flags()
	keyLimitFlags(f, &l)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var change client.KeyLimitsChange
		var given bool
		for _, flag := range []struct {
			name  string
			value *int
			to    **int
		}{
			{"max-running", &l.MaxRunning, &change.MaxRunning},
			{"max-sandboxes", &l.MaxSandboxes, &change.MaxSandboxes},
			{"max-memory", &l.MaxMemoryMiB, &change.MaxMemoryMiB},
			{"max-disk", &l.MaxDiskMiB, &change.MaxDiskMiB},
			{"max-rate", &l.MaxRate, &change.MaxRate},
		} {
			if f.Changed(flag.name) {
				*flag.to, given = flag.value, true
			}
		}
		if !given {
			return hint(usagef("limit: no limit is given"), "say which one changes, such as --max-rate 50")
		}
		if err := checkKeyLimits(l); err != nil {
			return err
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			id, err := keyID(ctx, c, args[0])
			if err != nil {
				return err
			}
			k, err := client.LimitKey(ctx, c, id, change)
			if err != nil {
				return err
			}
			return a.print(k, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s has new limits\n", cell(k.ID)) })
		})
	}
	return cmd
}

func keysRotateCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate [KEY]",
		Short: "replace the text of an API key; the key stays the same",
		Long: `Replace the text of an API key and print the new one, once. Its id, name, role,
limits and sandboxes stay. The old text is worthless at once, and streams that
were opened with it end.

Without a KEY it is the key in use. If it is the one in the server's state
directory, the new text is written there instead of printed.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
				id := client.SelfKey
				if len(args) == 1 {
					if id, err = keyID(ctx, c, args[0]); err != nil {
						return err
					}
				}
				if keyIsOfFile(a) {
					return rotateFile(ctx, a, c, id)
				}
				return rotate(ctx, a, c, id)
			})
		},
	}
}

func rotate(ctx context.Context, a *app, c *client.Client, id string) error {
	k, err := client.RotateKey(ctx, c, id, "")
	if err != nil {
		return err
	}
	return a.print(k, func(w io.Writer) { _, _ = fmt.Fprintln(w, k.Text) })
}

// rotateFile is rotate for whom the key in the state directory lets in, which the one
// to rotate may be. The new text is on the disk before the server has it, so that
// whatever ends this, one of two files has the key.
func rotateFile(ctx context.Context, a *app, c *client.Client, id string) error {
	file := keyFile(a)
	secret := make([]byte, 20)
	_, _ = rand.Read(secret) // never fails
	text := "e2b_" + hex.EncodeToString(secret)
	if err := writeSynced(file+".new", text+"\n"); err != nil {
		return err
	}
	k, err := client.RotateKey(ctx, c, id, text)
	if e, answered := errors.AsType[*client.Error](err); answered && e.Status < http.StatusInternalServerError {
		_ = os.Remove(file + ".new")
		return err
	}
	if err != nil {
		return hint(err, "if the key in %s is refused from now on, the server has the new one: mv %[1]s.new %[1]s", file)
	}
	switch _, err := c.Keys(ctx); {
	case err == nil: // it was another
		return errors.Join(a.print(k, func(w io.Writer) { _, _ = fmt.Fprintln(w, text) }), os.Remove(file+".new"))
	case !errors.Is(err, client.ErrUnauthorized):
		return hint(err, "key %s has its new text, which is in %s.new", id, file)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return hint(err, "the new key is in %s.new", file)
	}
	return a.print(map[string]string{"id": k.ID, "file": file}, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s has the new text of key %s\n", file, k.ID) })
}

// writeSynced writes a file for its owner alone, and returns when it is on the disk.
func writeSynced(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func (a *app) keysRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke KEY",
		Short: "revoke an API key at once; its sandboxes are kept",
		Long: `Revoke an API key at once. Event streams that were opened with it end.

Sandboxes made with the key are kept, and their own tokens stay valid: kill the
sandboxes that must not go on. The last admin key that does not expire cannot be
revoked.`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				id, err := keyID(ctx, c, args[0])
				if err != nil {
					return err
				}
				if err := c.RevokeKey(ctx, id); err != nil {
					return err
				}
				return a.print(map[string]string{"id": id}, func(w io.Writer) {
					_, _ = fmt.Fprintf(w, "%s is revoked\n", cell(args[0]))
				})
			})
		},
	}
}
