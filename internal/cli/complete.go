package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

// completeTimeout bounds how long a shell waits for ids after a press of Tab.
const completeTimeout = 2 * time.Second

// completedStates are the states in which a command can do something with a
// sandbox. Other commands take every one that has not ended.
var completedStates = map[string][]client.State{
	"pause":   {client.Running},
	"resume":  {client.Paused},
	"timeout": {client.Running},
	"get":     allStates,
	"why":     allStates,
	"events":  allStates,
}

// A completer tells shells what may follow.
type completer struct{ app *app }

// complete has shells offer ids where cmd takes one, and the words of its flags.
func (c completer) complete(cmd *cobra.Command) {
	takes := strings.Fields(cmd.Use)
	if len(takes) > 1 && slices.Contains([]string{"ID", "ID...", "[ID]"}, takes[1]) {
		several := takes[1] == "ID..."
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 && !several {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return c.ids(cmd.Context(), completedStates[cmd.Name()], prefix, args), cobra.ShellCompDirectiveNoFileComp
		}
	}
	for flag, words := range map[string][]cobra.Completion{
		"state":      {"pending", "running", "paused", "terminated"},
		"mode":       {"memory", "filesystem"},
		"on-timeout": {"kill", "pause"},
		"on-idle":    {"kill", "pause"},
		"role":       {"admin", "full", "own", "read"},
	} {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

// ids returns the ids that begin with prefix and are not among those named, each
// with what tells it from others. A server that does not answer offers none: an
// error would be printed into the line that is being typed.
func (c completer) ids(ctx context.Context, states []client.State, prefix string, named []string) (ids []string) {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	_ = c.app.call(ctx, func(ctx context.Context, server *client.Client) error {
		list, err := server.List(ctx, client.ListOptions{States: states})
		for _, i := range list {
			if strings.HasPrefix(i.ID, prefix) && !slices.Contains(named, i.ID) {
				about := fmt.Sprintf("%s, %s, %s old", stateOf(i.State, i.Phase), templateName(i), span(time.Since(i.CreatedAt)))
				ids = append(ids, cobra.CompletionWithDesc(i.ID, harmless(about)))
			}
		}
		return err
	})
	return ids
}
