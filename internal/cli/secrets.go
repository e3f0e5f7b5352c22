package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

type secretCommands struct{ *app }

func (a secretCommands) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secret set|rotate|ls|rm",
		Short: "manage secrets that sandboxes use without having them",
		Long: `Manage secrets that sandboxes use without having them. A program in the sandbox
sees a placeholder; the server puts the value into requests to the secret's hosts:

  drowse secret set GITHUB_TOKEN --host api.github.com --header 'Authorization: Bearer {}' < token
  drowse create --secret GITHUB_TOKEN

The value is read from stdin and never shown again. A secret belongs to the API
key that sets it. A new value, and a removal, count at once in every sandbox.`,
		SuggestionsMinimumDistance: 2,
		Args:                       unknownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, sub := range []*cobra.Command{a.setCommand(), a.rotateCommand(), a.lsCommand(), a.rmCommand()} {
		sub.DisableFlagsInUseLine = true
		cmd.AddCommand(sub)
	}
	return cmd
}

func (a secretCommands) setCommand() *cobra.Command {
	var o client.SecretOptions
	var headers headerFlag
	var query pairs
	var keep bool
	cmd := &cobra.Command{
		Use:   "set NAME --host HOST [flags]",
		Short: "make a secret of the value on stdin, or replace the one of that name",
		Example: `  drowse secret set GITHUB_TOKEN --host api.github.com --header 'Authorization: Bearer {}' < token
  drowse secret set maps --host maps.example.com --query 'key={}' < key
  drowse secret set OPENAI_API_KEY --host api.openai.com < key
  drowse secret set GITHUB_TOKEN --keep --host api.github.com --host '*.githubusercontent.com'`,
		Args: exactArgs("NAME"),
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Hosts, "host", nil, "a `host` that the value is for: api.example.com, or *.example.com for all below it, either with a port (default: 443); repeatable")
	f.Var(&headers, "header", "set a header in every request to the hosts (`'Name: text'`), with {} for the value; repeatable")
	f.Var(&query, "query", "set a parameter of the query string, `name={}`; repeatable")
	f.StringVar(&o.Env, "env", "", "the `variable` with the placeholder (default: NAME in capitals)")
	f.BoolVar(&o.Plain, "plain", false, "let the value go out over HTTP without TLS")
	f.BoolVar(&keep, "keep", false, "keep the value of a secret that exists, and read nothing from stdin")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(o.Hosts) == 0 {
			return usagef("secret set: give at least one --host")
		}
		o.Headers, o.Query = headers.m, query.m
		if !keep {
			value, err := a.readValue()
			if err != nil {
				return err
			}
			o.Value = value
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			x, err := client.NewSecrets(c).Set(ctx, args[0], o)
			if err != nil {
				return err
			}
			return a.print(x, func(w io.Writer) {
				_, _ = fmt.Fprintf(w, "%s is set for %s (version %d); sandboxes see a placeholder in $%s\n", cell(x.Name), cell(strings.Join(x.Hosts, ", ")), x.Version, cell(x.Env))
			})
		})
	}
	return cmd
}

// maxSecretValue is as much as the server takes, and one more.
const maxSecretValue = 64<<10 + 1

// readValue reads a value from stdin: it must not be among the arguments, which
// every user of the machine can see.
func (a secretCommands) readValue() (string, error) {
	if isTerminal(a.Stdin) {
		return "", hint(usagef("the value is read from stdin, which is a terminal here"), "give it a file, or pipe it: drowse secret set NAME ... < file")
	}
	data, err := io.ReadAll(io.LimitReader(a.Stdin, maxSecretValue+1))
	if err != nil {
		return "", err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case value == "":
		return "", hint(errors.New("stdin is empty"), "give the value there: drowse secret set NAME ... < file")
	case len(value) >= maxSecretValue:
		return "", usagef("the value on stdin has more than %d bytes", maxSecretValue-1)
	}
	return value, nil
}

func (a secretCommands) rotateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rotate NAME",
		Short: "replace the value of a secret by the one on stdin, in every sandbox",
		Args:  exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := a.readValue()
			if err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				x, err := client.NewSecrets(c).Rotate(ctx, args[0], value)
				if err != nil {
					return err
				}
				return a.print(x, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s has a new value (version %d)\n", cell(x.Name), x.Version) })
			})
		},
	}
}

func (a secretCommands) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "list the secrets of your API key, oldest first, without their values",
		Args:  exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := client.NewSecrets(c).List(ctx)
				if err != nil {
					return err
				}
				return a.print(list, func(w io.Writer) {
					rows := [][]string{{"NAME", "ENV", "HOSTS", "VERSION", "CHANGED"}}
					for _, x := range list {
						rows = append(rows, []string{x.Name, x.Env, strings.Join(x.Hosts, " "), fmt.Sprint(x.Version), span(time.Since(x.UpdatedAt)) + " ago"})
					}
					table(w, rows)
				})
			})
		},
	}
}

func (a secretCommands) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME",
		Short: "remove a secret; sandboxes are left with a placeholder that is worth nothing",
		Args:  exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := client.NewSecrets(c).Remove(ctx, args[0]); err != nil {
					return err
				}
				return a.print(map[string]string{"name": args[0]}, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s is removed\n", args[0]) })
			})
		},
	}
}

// headerFlag is a flag that collects "Name: text".
type headerFlag struct{ m map[string]string }

func (h *headerFlag) String() string { return "" }
func (h *headerFlag) Type() string   { return "'Name: text'" }

func (h *headerFlag) Set(text string) error {
	name, value, ok := strings.Cut(text, ":")
	if name, value = strings.TrimSpace(name), strings.TrimSpace(value); !ok || name == "" || value == "" {
		return errors.New("want a header with {} for the value, such as 'Authorization: Bearer {}'")
	}
	if h.m == nil {
		h.m = map[string]string{}
	}
	h.m[name] = value
	return nil
}

// secretsFlag is a flag that collects secrets, each perhaps with a variable.
type secretsFlag struct{ m map[string]string }

func (s *secretsFlag) String() string { return "" }
func (s *secretsFlag) Type() string   { return "NAME[=VARIABLE]" }

func (s *secretsFlag) Set(text string) error {
	name, env, _ := strings.Cut(text, "=")
	if name == "" {
		return errors.New("want the name of a secret, such as GITHUB_TOKEN")
	}
	if s.m == nil {
		s.m = map[string]string{}
	}
	s.m[name] = env
	return nil
}
