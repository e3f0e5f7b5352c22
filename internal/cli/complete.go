package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	"trace":   allStates,
}

// A completer tells shells what may follow.
type completer struct{ app *app }

// offer is something that can be named: what it is called, and what tells it from
// others.
type offer struct{ name, about string }

// source returns what may be named.
type source func(ctx context.Context, c *client.Client) ([]offer, error)

// named are the commands that name something other than a sandbox alone, and what
// they name at each place. The last place may be repeated where the command takes
// several.
var named = map[string][]source{
	"restore":             {nil, offerSnapshots},
	"snapshot set":        {offerSnapshots},
	"snapshot push":       {offerSnapshots},
	"snapshot save":       {offerSnapshots},
	"snapshot rm":         {offerSnapshots},
	"template inspect":    {offerTemplates},
	"template set":        {offerTemplates, offerTemplates},
	"template rm":         {offerTemplates},
	"volumes rm":          {offerVolumes},
	"secret rotate":       {offerSecrets},
	"secret rm":           {offerSecrets},
	"keys limit":          {offerKeys},
	"keys rename":         {offerKeys},
	"keys revoke":         {offerKeys},
	"keys rotate":         {offerKeys},
	"ssh-keys rm":         {offerSSHKeys},
	"webhooks rm":         {offerWebhooks},
	"webhooks enable":     {offerWebhooks},
	"webhooks disable":    {offerWebhooks},
	"webhooks deliveries": {offerWebhooks},
	"webhooks retry":      {offerWebhooks},
}

// complete has shells offer what cmd, and each command below it, can be given, and
// the words of its flags.
func (c completer) complete(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		c.complete(below)
	}
	takes := strings.Fields(cmd.Use)
	several := len(takes) > 1 && strings.Contains(takes[1], "...")
	ofSandboxes := len(takes) > 1 && slices.Contains([]string{"ID", "ID...", "[ID]", "[ID...]"}, takes[1])
	if !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			sources, other := named[strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")]
			switch place := len(args); {
			case cmd.Name() == "cp" && place < 2:
				return c.ends(cmd.Context(), prefix)
			case !other && !ofSandboxes, cmd.Name() == "export" && place == 1:
				return nil, cobra.ShellCompDirectiveDefault
			case place == 0 && (!other || sources[0] == nil), several && !other:
				return c.sandboxes(cmd.Context(), completedStates[cmd.Name()], prefix, args), cobra.ShellCompDirectiveNoFileComp
			case other && several:
				return c.from(cmd.Context(), sources[0], prefix, args), cobra.ShellCompDirectiveNoFileComp
			case place < len(sources):
				return c.from(cmd.Context(), sources[place], prefix, nil), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
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
	if cmd.Flags().Lookup("volume") != nil {
		_ = cmd.RegisterFlagCompletionFunc("volume", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return c.from(cmd.Context(), before(":/", offerVolumes), prefix, nil), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
		})
	}
	if cmd.Flags().Lookup("sandbox") != nil {
		_ = cmd.RegisterFlagCompletionFunc("sandbox", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return c.sandboxes(cmd.Context(), allStates, prefix, nil), cobra.ShellCompDirectiveNoFileComp
		})
	}
	for flag, from := range map[string]source{"template": offerTemplates, "snapshot": offerSnapshots, "secret": offerSecrets, "key": offerKeys} {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
				return c.from(cmd.Context(), from, prefix, nil), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
}

// from returns what a source has that begins with prefix and is not among those
// given. A server that does not answer offers none: an error would be printed into
// the line that is being typed.
func (c completer) from(ctx context.Context, s source, prefix string, given []string) (words []string) {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	_ = c.app.call(ctx, func(ctx context.Context, server *client.Client) error {
		all, err := s(ctx, server)
		for _, o := range all {
			if o.name != "" && strings.HasPrefix(o.name, prefix) && !slices.Contains(given, o.name) {
				words = append(words, cobra.CompletionWithDesc(harmless(o.name), harmless(o.about)))
			}
		}
		return err
	})
	return words
}

// before has what a source offers end in a text that goes on.
func before(text string, s source) source {
	return func(ctx context.Context, c *client.Client) ([]offer, error) {
		all, err := s(ctx, c)
		for i := range all {
			if all[i].name != "" {
				all[i].name += text
			}
		}
		return all, err
	}
}

// mostFiles is how many files of this machine are offered.
const mostFiles = 200

// ends returns what may be an end of a copy: a path here, or a sandbox with a colon
// after it. Its own paths are not offered: to ask for them would wake it.
func (c completer) ends(ctx context.Context, prefix string) (words []string, then cobra.ShellCompDirective) {
	then = cobra.ShellCompDirectiveNoFileComp
	here, _ := filepath.Glob(globbed.Replace(prefix) + "*")
	for _, path := range here[:min(len(here), mostFiles)] {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path += "/"
			then |= cobra.ShellCompDirectiveNoSpace // it goes on
		}
		words = append(words, harmless(path))
	}
	boxes := c.from(ctx, before(":", c.offerSandboxes(nil)), prefix, nil)
	if len(boxes) > 0 {
		then |= cobra.ShellCompDirectiveNoSpace
	}
	return append(words, boxes...), then
}

// globbed takes their meaning from the characters that a pattern has.
var globbed = strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, `\`, `\\`)

// sandboxes returns the ids and names of sandboxes in some states.
func (c completer) sandboxes(ctx context.Context, states []client.State, prefix string, given []string) []string {
	return c.from(ctx, c.offerSandboxes(states, given...), prefix, nil)
}

func (completer) offerSandboxes(states []client.State, given ...string) source {
	return func(ctx context.Context, server *client.Client) (all []offer, err error) {
		list, err := server.List(ctx, client.ListOptions{States: states})
		for _, i := range list {
			if slices.Contains(given, i.ID) || i.Name != "" && slices.Contains(given, i.Name) {
				continue
			}
			about := fmt.Sprintf("%s, %s, %s old", stateOf(i.State, i.Phase), templateName(i), span(time.Since(i.CreatedAt)))
			all = append(all, offer{i.ID, about}, offer{i.Name, about})
		}
		return all, err
	}
}

// offers turns a list into what may be named.
func offers[T any](list []T, err error, of func(T) []offer) (all []offer, _ error) {
	for _, item := range list {
		all = append(all, of(item)...)
	}
	return all, err
}

func offerSnapshots(ctx context.Context, c *client.Client) ([]offer, error) {
	list, err := client.NewSnapshots(c).List(ctx, "")
	return offers(list, err, func(s client.Snapshot) []offer {
		return []offer{{s.ID, "of " + s.Sandbox}, {s.Name, "snapshot " + s.ID}}
	})
}

func offerTemplates(ctx context.Context, c *client.Client) ([]offer, error) {
	list, err := client.NewTemplates(c).List(ctx)
	return offers(list, err, func(t client.Template) (all []offer) {
		for _, name := range t.Names {
			all = append(all, offer{name, "template " + t.ID})
		}
		return append(all, offer{t.ID, t.Source})
	})
}

func offerVolumes(ctx context.Context, c *client.Client) ([]offer, error) {
	list, err := c.Volumes(ctx)
	return offers(list, err, func(v client.Volume) []offer { return []offer{{v.Name, "volume " + v.ID}} })
}

func offerSecrets(ctx context.Context, c *client.Client) ([]offer, error) {
	list, err := client.NewSecrets(c).List(ctx)
	return offers(list, err, func(s client.Secret) []offer { return []offer{{s.Name, "secret " + s.ID}} })
}

func offerKeys(ctx context.Context, c *client.Client) ([]offer, error) {
	list, err := c.Keys(ctx)
	return offers(list, err, func(k client.Key) []offer {
		return []offer{{k.Name, string(k.Role) + ", " + k.ID}, {k.ID, k.Name + ", " + string(k.Role)}}
	})
}

func offerSSHKeys(ctx context.Context, c *client.Client) ([]offer, error) {
	list, err := client.NewSSHKeys(c).List(ctx)
	return offers(list, err, func(k client.SSHKey) []offer { return []offer{{k.ID, k.Name}} })
}

func offerWebhooks(ctx context.Context, c *client.Client) ([]offer, error) {
	list, err := client.NewWebhooks(c).List(ctx)
	return offers(list, err, func(w client.Webhook) []offer { return []offer{{w.ID, w.Name + " " + w.URL}} })
}
