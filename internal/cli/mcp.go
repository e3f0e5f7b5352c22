package cli

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/mcp"
)

func mcpCommand(a *app) *cobra.Command {
	var listen string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "give sandboxes to AI agents, as a Model Context Protocol server",
		Long: `Serve the Model Context Protocol (MCP), so that an AI agent can create sandboxes,
run commands and code in them, and move files. An agent starts this command by
itself, and talks to it over stdin and stdout: docs/mcp.md says how to add it to
Claude Code, Claude Desktop, Cursor, VS Code and Codex.

It works with the server and API key that every command takes, so the key's role
and limits bound what the agent can do.

With --http it serves many agents over HTTP instead, at http://ADDRESS/mcp. Each
sends an API key of its own as a bearer token, and works with the rights of that
key. There is no TLS: for other machines put a proxy in front that adds it, and
name the host that they ask for with --allow-host.`,
		Example: `  claude mcp add drowse -- drowse mcp
  drowse mcp --http 127.0.0.1:3001`,
		Args: exactArgs(),
	}
	cmd.Flags().StringVar(&listen, "http", "", "serve HTTP at this `address`, such as 127.0.0.1:3001, instead of stdin and stdout; one that other machines reach needs --allow-host")
	cmd.Flags().StringArrayVar(&hosts, "allow-host", nil, "answer HTTP requests for this host `name` too (default: only localhost and loopback addresses); repeatable")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if listen == "" && len(hosts) > 0 {
			return usagef("mcp: --allow-host is for --http")
		}
		if listen == "" {
			c, err := a.connect()
			if err != nil {
				return err
			}
			if isTerminal(a.Stdin) {
				notice(a.Stderr, "waiting for an MCP client on stdin", "an agent starts this command by itself: docs/mcp.md says how; Ctrl-C ends it")
			}
			return mcp.New(mcp.Options{Client: c, Version: readVersions().Drowse}).ServeStdio(cmd.Context(), a.Stdin, a.Stdout)
		}
		host, _, err := net.SplitHostPort(listen)
		if err != nil {
			return usagef("mcp: --http: %w", err)
		}
		if !mcp.IsLoopback(host) && len(hosts) == 0 {
			return hint(usagef("mcp: --http %s: other machines reach this address, in plain text", listen),
				"listen on 127.0.0.1, or say by which name clients ask for it: --allow-host NAME")
		}
		ln, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", listen)
		if err != nil {
			return err
		}
		notice(a.Stderr, fmt.Sprintf("serving MCP at http://%s%s; clients send an API key as a bearer token", ln.Addr(), mcp.Path), "")
		return mcp.New(mcp.Options{Version: readVersions().Drowse}).ServeListener(cmd.Context(), ln, mcp.HTTPOptions{
			Hosts:   hosts,
			Connect: func(key string) (*client.Client, error) { return connectWith(a, key) },
		})
	}
	return cmd
}
