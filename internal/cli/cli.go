// Package cli is the drowse command line.
//
// [Main] runs one command and returns the process's exit code; nothing here
// exits. Everything a command touches comes in through [Options], so tests run
// it as main does. Commands reach a server through the public package client
// and have no other door; what runs a server is handed in.
//
// Results go to stdout, as text or, with -o json, as one JSON value. Everything
// else goes to stderr: an error is one line that says what happened and, where
// there is one, a second with the next step.
package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/internal/serve/settings"
	"github.com/drowse-dev/drowse/internal/version"
)

// Options is what main gives to the command line.
type Options struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Getenv looks up an environment variable, as os.Getenv does.
	Getenv func(string) string
	// Executable is the path of this binary, which "demo" starts as a server.
	Executable string
	// Serve runs a server until ctx ends.
	Serve func(ctx context.Context, o settings.Server) error
	// Doctor writes what this machine can run and why, and whether a server
	// would work.
	Doctor func(ctx context.Context, w io.Writer, json bool, stateDir string) (ok bool, err error)
	// Fsck writes what is wrong in a state directory, and repairs what is safe
	// to, if it shall. It is ok if nothing wrong is left.
	Fsck func(ctx context.Context, w io.Writer, o UpkeepOptions) (ok bool, err error)
	// GC writes what nobody owns in a state directory, and removes it, unless it
	// is a dry run. It is ok unless something could not be removed.
	GC func(ctx context.Context, w io.Writer, o UpkeepOptions) (ok bool, err error)
	// Backup makes, verifies or restores a backup, and writes what was done.
	Backup func(ctx context.Context, w io.Writer, o UpkeepOptions) error
}

// UpkeepOptions is what "drowse fsck" and "drowse gc" were told.
type UpkeepOptions struct {
	StateDir string
	JSON     bool
	Repair   bool // of fsck
	DryRun   bool // of gc

	Backup          string // of backup: its directory
	Verify, Restore bool   // of backup: what is done with one that is there
}

const defaultStateDir = "/var/lib/drowse"

const rootHelp = `drowse runs sandboxes for AI agents that sleep when idle and wake on the first
request with memory, processes and files intact.

  drowse serve      run the server
  drowse demo       watch a sandbox fall asleep and wake up
  drowse why ID     explain why a sandbox is awake, asleep or gone

Commands that talk to a server take its URL and the API key from, in this order:

  1. the flags --url and --api-key
  2. DROWSE_URL or E2B_API_URL, and DROWSE_API_KEY or E2B_API_KEY
  3. the files url and api-key in the server's state directory (--state-dir,
     DROWSE_STATE_DIR), which root can read; that key is sent to that URL and to
     loopback addresses only
  4. http://127.0.0.1:3000

With the flag --state-dir those files come before the variables.

A URL without http:// or https:// is http:// if its host is a loopback address, and
https:// otherwise.

For an ID, commands also take the name that the sandbox was given with --name, or the
first characters of the id, at least 4, if no other sandbox's id begins with them.
A name belongs to the API key that gave it: with another key, use the id.

Results go to stdout, errors to stderr: as text, or with -o json as JSON.

Exit codes:
  0    done
  1    failed
  2    wrong usage, or a request that the server rejected as invalid
  3    no such sandbox, template or file
  4    no valid API key, or its role does not allow this
  5    the sandbox's state does not allow it
  6    no server answers
  7    a limit is reached
  130  interrupted
  141  stdout was closed

run, exec, shell, and hold with a command exit with the command's code, or 128
plus the signal's number if a signal ended it. They exit with 125 if drowse
failed: the command did not run, or how it ended is not known. 126 says that the
command cannot be executed, and 127 that the sandbox has no such command.

get and why show terminated sandboxes for 30 days (exit code 0). Other commands
report "not found" for them (exit code 3).`

// app is one invocation.
type app struct {
	Options
	url        string
	sandboxURL string
	key        string
	cacert     string
	stateDir   string
	output     string
}

// Main runs the command that args name and returns the exit code.
func Main(ctx context.Context, args []string, o Options) int {
	o.Stdout = stdout{o.Stdout}
	a := &app{Options: o}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(o.Stdin)
	root.SetOut(o.Stdout)
	root.SetErr(o.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return a.report(ctx, cmd, err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:                        "drowse",
		Short:                      "sandboxes that sleep when idle and wake on the first request",
		Long:                       rootHelp,
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		Version:                    version.Full(),
		Args:                       unknownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	if columns := columnsOf(a.Stdout); columns > 0 {
		root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", columns)))
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd.HasSubCommands() {
			if wrong := unknownCommand(cmd, cmd.Flags().Args()); wrong != nil {
				return wrong // with flags of its own
			}
		}
		return usagef("%w", err)
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		if err := a.checkOutput(); err != nil {
			return err
		}
		return completeIDs(cmd.Context(), a, cmd, args)
	}

	f := root.PersistentFlags()
	f.StringVar(&a.url, "url", "", "server `URL`")
	f.StringVar(&a.sandboxURL, "sandbox-url", "", "`URL` for requests to sandboxes, if it differs from --url (DROWSE_SANDBOX_URL, E2B_SANDBOX_URL)")
	f.StringVar(&a.key, "api-key", "", "API `key`")
	f.StringVar(&a.cacert, "cacert", "", "PEM `file` with certificate authorities to trust, besides this machine's (DROWSE_CACERT)")
	f.StringVar(&a.stateDir, "state-dir", "", "the server's state `directory` (default "+defaultStateDir+")")
	f.StringVarP(&a.output, "output", "o", "text", "output `format`: text or json")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))

	root.AddGroup(
		&cobra.Group{ID: groupSandbox, Title: "Sandboxes:"},
		&cobra.Group{ID: groupServer, Title: "Server:"},
	)
	a.add(root, groupSandbox, a.runCommand(), a.createCommand(), a.lsCommand(), topCommand(a), a.getCommand(), a.execCommand(),
		a.shellCommand(), attachCommand(a), a.cpCommand(), a.pauseCommand(), a.resumeCommand(), a.whyCommand(), traceCommand(a), a.eventsCommand(), logsCommand(a), statsCommand(a),
		a.exportCommand(), a.importCommand(), moveCommand(a), drainCommand(a), a.volumesCommand(), secretCommands{a}.command(), templateCommands{a}.command(), snapshotCommands{a}.command(), snapshotCommands{a}.restoreCommand(), snapshotCommands{a}.forkCommand(),
		a.timeoutCommand(), a.holdCommand(), a.setCommand(), serviceCommands{a}.command(), a.previewCommand(), sshCommands{a}.proxyCommand(), a.killCommand(), mcpCommand(a))
	a.add(root, groupServer, a.serveCommand(), uiCommand(a), a.keysCommand(), auditCommand(a), serversCommand(a), webhookCommands{a}.command(), sshCommands{a}.keysCommand(), a.doctorCommand(), a.fsckCommand(), a.gcCommand(), backupCommand(a), a.demoCommand(), a.versionCommand())
	return root
}

const (
	groupSandbox = "sandbox"
	groupServer  = "server"
)

func (a *app) add(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		c.DisableFlagsInUseLine = true
		completer{a}.complete(c)
		root.AddCommand(c)
	}
}

func (a *app) checkOutput() error {
	if a.output != "text" && a.output != "json" {
		return usagef("-o %s: want text or json", a.output)
	}
	return nil
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := usagef("unknown command %q", args[0])
	near := elsewhere(cmd, args[0])
	if near == nil {
		near = cmd.SuggestionsFor(args[0])
	}
	if len(near) > 0 {
		of := cmd.CommandPath()
		return hint(err, "did you mean: %s %s", of, strings.Join(near, ", "+of+" "))
	}
	return err
}

// synonyms are what other tools call what a command does. Of the commands for a word,
// those are meant that are there.
var synonyms = map[string][]string{
	"rm": {"kill", "revoke"}, "delete": {"kill", "rm", "revoke"}, "remove": {"kill", "rm", "revoke"}, "destroy": {"kill", "rm", "revoke"}, "terminate": {"kill"}, "del": {"kill", "rm", "revoke"},
	"stop": {"pause", "kill"}, "suspend": {"pause"}, "sleep": {"pause"}, "start": {"resume", "create"}, "wake": {"resume"}, "unpause": {"resume"}, "restart": {"pause", "resume"},
	"ps": {"ls"}, "list": {"ls"}, "inspect": {"get"}, "describe": {"get", "why"}, "show": {"get", "inspect"}, "status": {"get", "why"}, "info": {"get", "inspect"}, "wait": {"events"},
	"ssh": {"shell", "ssh-proxy"}, "console": {"shell"}, "enter": {"shell"}, "login": {"shell"}, "copy": {"cp"}, "port": {"preview"}, "update": {"set"}, "tag": {"template set"},
	"new": {"create", "add"}, "add": {"create"}, "launch": {"run", "create"}, "commit": {"snapshot create"}, "clone": {"fork"}, "rollback": {"restore"},
	"image": {"template"}, "images": {"template ls"}, "pull": {"template pull"}, "build": {"template build"}, "load": {"template load"}, "rmi": {"template rm"},
	"push": {"snapshot push"}, "save": {"snapshot save", "export"}, "volume": {"volumes"}, "secrets": {"secret"}, "key": {"keys"}, "log": {"logs"}, "server": {"serve"}, "dashboard": {"ui"},
}

// elsewhere returns what of a command's own a word of other tools stands for.
func elsewhere(cmd *cobra.Command, word string) (meant []string) {
	for _, name := range synonyms[word] {
		if found, rest, err := cmd.Find(strings.Fields(name)); err == nil && len(rest) == 0 && found != cmd {
			meant = append(meant, name)
		}
	}
	return meant
}

// exactArgs accepts the arguments that names lists.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("%s: missing %s", cmd.Name(), names[len(args)])
		case len(args) > len(names):
			return usagef("%s: too many arguments: %q", cmd.Name(), args[len(names):])
		}
		return nil
	}
}

// minArgs accepts one argument or more for each of names.
func minArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef("%s: missing %s", cmd.Name(), names[len(args)])
		}
		return nil
	}
}
