package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

// An id may be given by its first characters, shortest at least. One that is as long
// as wholeID is taken for whole, and nothing is asked.
const (
	shortest = 4
	wholeID  = 20
)

// takesIDs reports whether the first argument of a command is the id of a sandbox,
// and whether all others are.
func takesIDs(cmd *cobra.Command) (first, all bool) {
	takes := strings.Fields(cmd.Use)
	if len(takes) < 2 || !slices.Contains([]string{"ID", "ID...", "[ID]"}, takes[1]) {
		return false, false
	}
	of := cmd.Parent()
	ofSandbox := of != nil && (!of.HasParent() || of.Name() == "snapshot") // ids of other commands are of keys
	return ofSandbox, ofSandbox && takes[1] == "ID..."
}

// completeIDs replaces what of a command's arguments is the beginning of one
// sandbox's id by that id.
func completeIDs(ctx context.Context, a *app, cmd *cobra.Command, args []string) error {
	first, all := takesIDs(cmd)
	if !first || len(args) == 0 {
		return nil
	}
	if !all {
		args = args[:1]
	}
	return wholeIDs(ctx, a, args, completedStates[cmd.Name()])
}

// wholeIDs replaces beginnings of ids by the ids. What is no beginning stays as it
// is, for the server to say so, and so does everything where no server answers.
func wholeIDs(ctx context.Context, a *app, ids []string, states []client.State) error {
	isShort := func(id string) bool { return len(id) >= shortest && len(id) < wholeID && placeID.MatchString(id) }
	if !slices.ContainsFunc(ids, isShort) {
		return nil
	}
	if !slices.Contains(states, client.Terminated) {
		states = nil // that it is in another state is for the server to say
	}
	var list []client.Info
	err := a.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
		list, err = c.List(ctx, client.ListOptions{States: states})
		return err
	})
	if err != nil {
		return ctx.Err() // the command meets it again, and says it better
	}
	for i, id := range ids {
		if !isShort(id) {
			continue
		}
		var found []string
		for _, sandbox := range idsOf(list) {
			if strings.HasPrefix(sandbox, id) {
				found = append(found, sandbox)
			}
		}
		switch {
		case slices.Contains(found, id), len(found) == 0:
		case len(found) == 1:
			ids[i] = found[0]
		default:
			slices.Sort(found)
			const most = 5
			if shown := found[:min(len(found), most)]; len(shown) < len(found) {
				found = append(shown, fmt.Sprintf("and %d more", len(found)-most))
			}
			return hint(usagef("%s is the beginning of several ids: %s", id, strings.Join(found, ", ")), "give more of the id")
		}
	}
	return nil
}

// ask has whoever sits at the terminal confirm.
func ask(a *app, question string) (bool, error) {
	if _, err := fmt.Fprintf(a.Stderr, "%s [y/N] ", question); err != nil {
		return false, err
	}
	var answer string
	_, _ = fmt.Fscanln(a.Stdin, &answer)
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(answer)), nil
}
