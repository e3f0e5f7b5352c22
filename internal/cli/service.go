package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drowse-dev/drowse/client"
)

// serviceFlag collects the services of a new sandbox.
type serviceFlag struct{ list []client.Service }

func (s *serviceFlag) String() string { return "" }
func (s *serviceFlag) Type() string   { return "name[,option...]:command" }

// maxServiceFile is more than a server takes.
const maxServiceFile = 1 << 20

// Set takes NAME[,OPTION...]:COMMAND, or @FILE with a JSON array. What can be meant
// is for the server to judge.
func (s *serviceFlag) Set(text string) error {
	if file, ok := strings.CutPrefix(text, "@"); ok {
		return s.read(file)
	}
	head, command, ok := strings.Cut(text, ":")
	if !ok || strings.TrimSpace(command) == "" {
		return errors.New("want NAME[,OPTION...]:COMMAND, such as web,port=8000,resume:'python3 -m http.server 8000', or @FILE")
	}
	name, options, _ := strings.Cut(head, ",")
	one := client.Service{Name: name, Shell: strings.TrimSpace(command)}
	flags := serviceFlags{service: &one}
	set := pflag.NewFlagSet("service", pflag.ContinueOnError)
	flags.add(set)
	for option := range strings.SplitSeq(options, ",") {
		if option == "" {
			continue
		}
		key, value, given := strings.Cut(option, "=")
		f := set.Lookup(key)
		if f == nil {
			return fmt.Errorf("%q is no option of a service: see drowse service add --help", key)
		}
		if !given {
			value = "true"
		}
		if err := f.Value.Set(value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	flags.finish()
	s.list = append(s.list, one)
	return nil
}

func (s *serviceFlag) read(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxServiceFile))
	if err != nil {
		return err
	}
	var list []client.Service
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("%s: want a JSON array of services: %w", file, err)
	}
	s.list = append(s.list, list...)
	return nil
}

// serviceFlags are the options of a service, apart from its name and command.
type serviceFlags struct {
	service *client.Service
	env     pairs
	restart string
	none    bool
}

func (s *serviceFlags) add(f *pflag.FlagSet) {
	one := s.service
	f.IntVar(&one.Port, "port", 0, "`port` on which it serves; the process has it in PORT, and requests to it wait until it is ready")
	f.StringVar(&one.Route, "route", "", "`path` at or below which requests to the port are its (default: all)")
	f.Var(&s.env, "env", "environment variable, `name=value`; repeatable")
	f.StringVar(&one.Cwd, "cwd", "", "working `directory` (default: as for commands)")
	f.StringVar(&one.User, "user", "", "run it as `user` (default: as for commands)")
	f.StringVar(&s.restart, "restart", string(client.RestartOnFailure), "when to start it again (`policy`): always, on-failure or never")
	spanVar(f, &one.MaxBackoff, "max-backoff", time.Minute, "the longest wait before it is started again; the first is 1s, and each failure in a row doubles it")
	f.StringArrayVar(&one.After, "after", nil, "start it when `service` is ready; repeatable")
	f.BoolVar(&one.Resume, "resume", false, "let requests to it boot a sandbox that was paused with mode filesystem, if auto-resume is on")
	f.StringVar(&one.Ready.HTTP, "ready-http", "", "ready when a GET of `path` on its port is answered with 2xx or 3xx (default: when its port takes connections)")
	f.StringVar(&one.Ready.Command, "ready-command", "", "ready when this `line` for a shell succeeds")
	f.BoolVar(&s.none, "ready-at-start", false, "ready when its process has run for a second (default without a port)")
	spanVar(f, &one.Ready.Timeout, "ready-timeout", 30*time.Second, "how long it may take to be ready; then it is ended, as a failure")
	spanVar(f, &one.Ready.Interval, "ready-interval", 200*time.Millisecond, "how often it is asked whether it is ready")
}

// finish takes over what needs a look at several flags.
func (s *serviceFlags) finish() {
	s.service.Env, s.service.Restart = s.env.m, client.RestartPolicy(s.restart)
	if s.none {
		s.service.Ready.Port = new(false)
	}
}

// serviceCommands are the commands about services.
type serviceCommands struct{ *app }

func (a serviceCommands) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service ls|add|rm|restart|logs",
		Short: "keep named processes running in a sandbox, and started again when they end",
		Long: `A service is a process that starts with a sandbox and is started again when it
ends. After a wake with memory it runs on; after a wake from files alone it starts
anew, before requests to its port are let through.

A service that keeps ending is started again ever later: after 1s, 2s, 4s, up to
its --max-backoff. drowse why and drowse service ls say so.`,
		Example: `  drowse service add i0abc web --port 8000 --resume -- python3 -m http.server 8000
  drowse service ls i0abc
  drowse service logs i0abc web`,
		SuggestionsMinimumDistance: 2,
		Args:                       unknownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, sub := range []*cobra.Command{a.lsCommand(), a.addCommand(), a.rmCommand(), a.restartCommand(), a.logsCommand()} {
		sub.DisableFlagsInUseLine = true
		cmd.AddCommand(sub)
	}
	return cmd
}

func (a serviceCommands) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls ID",
		Short: "list the services of a sandbox, and how they are",
		Args:  exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := client.NewServices(c, args[0]).List(ctx)
				if err != nil {
					return missing(err)
				}
				return a.print(list, func(w io.Writer) { tableOfServices(w, list, time.Now()) })
			})
		},
	}
}

func tableOfServices(w io.Writer, list []client.ServiceInfo, now time.Time) {
	rows := [][]string{{"NAME", "STATE", "PORT", "STARTS", "COMMAND", "DETAIL"}}
	for _, s := range list {
		port, starts := "-", "-"
		if s.Service.Port != 0 {
			port = strconv.Itoa(s.Service.Port)
		}
		if s.Status != nil {
			starts = strconv.Itoa(s.Status.Starts)
		}
		rows = append(rows, []string{s.Service.Name, serviceState(s), port, starts, shortCommand(commandOf(s.Service)), serviceDetail(s.Status, now)})
	}
	table(w, rows)
}

func serviceState(s client.ServiceInfo) string {
	if s.Status == nil {
		return "not running"
	}
	return string(s.Status.State)
}

func commandOf(s client.Service) string {
	if s.Shell != "" {
		return s.Shell
	}
	return strings.Join(s.Command, " ")
}

// mostCommand is how much of a command a row has room for.
const mostCommand = 40

func shortCommand(text string) string {
	if runes := []rune(text); len(runes) > mostCommand {
		return string(runes[:mostCommand-1]) + "…"
	}
	return text
}

// serviceDetail says why a service is as it is.
func serviceDetail(s *client.ServiceStatus, now time.Time) string {
	switch {
	case s == nil:
		return ""
	case s.State == client.ServiceBackingOff:
		failures := ""
		if s.Failures > 1 {
			failures = fmt.Sprintf(", %d failures in a row", s.Failures)
		}
		return fmt.Sprintf("%s%s; started again in %s", s.LastEnd, failures, span(max(s.NextAt.Sub(now), 0)))
	case s.State == client.ServiceWaiting && s.WaitsFor != "":
		return "waits for " + s.WaitsFor
	case s.State == client.ServiceDone, s.State == client.ServiceFailed:
		return s.LastEnd + "; not started again"
	case s.State == client.ServiceReady, s.State == client.ServiceStarting:
		return "for " + span(now.Sub(s.Since))
	}
	return ""
}

func (a serviceCommands) addCommand() *cobra.Command {
	var one client.Service
	flags := serviceFlags{service: &one}
	cmd := &cobra.Command{
		Use:   "add ID NAME [flags] -- COMMAND [ARG...]",
		Short: "add a service to a sandbox, running or paused, or replace the one of that name",
		Long: `Add a service to a sandbox, or replace the one of that name. A COMMAND of one word
is a line for a shell. The command must stay in the foreground; what it prints is
kept for drowse service logs.`,
		Example: `  drowse service add i0abc web --port 8000 --ready-http / --resume -- python3 -m http.server 8000
  drowse service add i0abc worker --after web -- 'while sleep 10; do date; done'`,
		Args: minArgs("ID", "NAME", "COMMAND"),
	}
	cmd.Flags().SetInterspersed(true)
	flags.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		flags.finish()
		one.Name = args[1]
		if one.Command = args[2:]; len(one.Command) == 1 {
			one.Shell, one.Command = one.Command[0], nil
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			made, err := client.NewServices(c, args[0]).Set(ctx, one)
			if err != nil {
				return missing(err)
			}
			return a.print(made, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s is %s\n", one.Name, serviceState(made)) })
		})
	}
	return cmd
}

func (a serviceCommands) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID NAME...",
		Short: "end services, and remove them",
		Args:  minArgs("ID", "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				for _, name := range args[1:] {
					if err := client.NewServices(c, args[0]).Remove(ctx, name); err != nil {
						return missing(err)
					}
				}
				return a.print(map[string]any{"removed": args[1:]}, func(w io.Writer) {
					_, _ = fmt.Fprintf(w, "removed: %s\n", strings.Join(args[1:], ", "))
				})
			})
		},
	}
}

func (a serviceCommands) restartCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "restart ID NAME",
		Short: "end what runs of a service, and start it at once, also if it backs off or has failed",
		Args:  exactArgs("ID", "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				one, err := client.NewServices(c, args[0]).Restart(ctx, args[1])
				if err != nil {
					return missing(err)
				}
				return a.print(one, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s is started again\n", args[1]) })
			})
		},
	}
}

// followEvery is how often logs -f asks.
const followEvery = 500 * time.Millisecond

func (a serviceCommands) logsCommand() *cobra.Command {
	var follow, times bool
	var lines int
	cmd := &cobra.Command{
		Use:   "logs ID NAME [flags]",
		Short: "print the last lines that a service has written since the sandbox booted",
		Args:  exactArgs("ID", "NAME"),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what it writes; this does not keep the sandbox awake")
	cmd.Flags().BoolVar(&times, "times", false, "begin lines with the time")
	cmd.Flags().IntVarP(&lines, "lines", "n", 0, "`number` of lines, the last ones (default: all that are kept, 1000 at most)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if lines < 0 {
			return usagef("--lines %d: want 1 or more", lines)
		}
		after := int64(0)
		show := func(ctx context.Context, c *client.Client) error {
			list, err := client.NewServices(c, args[0]).Log(ctx, args[1], after, lines)
			if err != nil {
				return missing(err)
			}
			if len(list) > 0 {
				after = list[len(list)-1].Seq
			}
			lines = 0
			return a.print(list, func(w io.Writer) { printLines(w, list, times) })
		}
		for {
			if err := a.call(cmd.Context(), show); err != nil || !follow {
				return err
			}
			if err := pause(cmd.Context(), followEvery); err != nil {
				return err
			}
		}
	}
	return cmd
}

func printLines(w io.Writer, list []client.ServiceLine, times bool) {
	unfolded(w)
	for _, l := range list {
		text := harmless(l.Text)
		if times {
			text = l.At.Local().Format("15:04:05.000") + " " + text
		}
		_, _ = fmt.Fprintln(w, text)
	}
}

// explainServices tells how services are, for why.
func explainServices(w io.Writer, list []client.ServiceInfo, now time.Time) {
	rows := make([][]string, len(list))
	for i, s := range list {
		port := ""
		if s.Service.Port != 0 {
			port = "port " + strconv.Itoa(s.Service.Port)
		}
		rows[i] = []string{"  " + s.Service.Name, serviceState(s), port, serviceDetail(s.Status, now)}
	}
	table(w, rows)
}
