package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// An id may be given by its first characters, shortest at least, of fewer than
// longest.
const (
	shortest = 4
	longest  = 20
)

var (
	// wholeID is the form of the ids that servers make: nothing is asked about one.
	wholeID = lazyregexp.New(`^i[0-9a-z]{20}$`)
	// shortID is the form of what an id may begin with.
	shortID = lazyregexp.New(`^[a-z0-9]+(-[a-z0-9]+)?$`)
	// sandboxName is the form of the names of sandboxes.
	sandboxName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
)

// takesIDs reports whether the first argument of a command is the id of a sandbox,
// and whether all others are.
func takesIDs(cmd *cobra.Command) (first, all bool) {
	takes := strings.Fields(cmd.Use)
	if len(takes) < 2 || !slices.Contains([]string{"ID", "ID...", "[ID]", "[ID...]"}, takes[1]) {
		return false, false
	}
	of := cmd.Parent()
	ofSandbox := of != nil && (!of.HasParent() || of.Name() == "snapshot" || of.Name() == "service") // ids of other commands are of keys
	return ofSandbox, ofSandbox && strings.Contains(takes[1], "...")
}

// completeIDs replaces what of a command's arguments is the name of a sandbox, or the
// beginning of one's id, by the id.
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

// wholeIDs replaces names and beginnings of ids by the ids. What is neither stays as
// it is, for the server to say so, and so does everything where no server answers.
func wholeIDs(ctx context.Context, a *app, ids []string, states []client.State) error {
	if !slices.Contains(states, client.Terminated) {
		states = nil // that it is in another state is for the server to say
	}
	for i, id := range ids {
		if wholeID.MatchString(id) || !sandboxName.MatchString(id) {
			continue
		}
		named, err := list(ctx, a, client.ListOptions{Name: id, States: states})
		if err != nil {
			return ctx.Err() // the command meets it again, and says it better
		}
		if len(named) > 0 {
			ids[i] = lasting(named).ID
		}
	}
	return expand(ctx, a, ids, states)
}

func list(ctx context.Context, a *app, o client.ListOptions) (found []client.Info, err error) {
	err = a.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
		found, err = c.List(ctx, o)
		return err
	})
	return found, err
}

// lasting returns the sandbox that has a name: of several that had it one after the
// other, newest first, the one that has not ended, or else the newest.
func lasting(named []client.Info) client.Info {
	for _, i := range named {
		if i.State != client.Terminated {
			return i
		}
	}
	return named[0]
}

// expand replaces beginnings of ids by the ids.
func expand(ctx context.Context, a *app, ids []string, states []client.State) error {
	isShort := func(id string) bool { return len(id) < longest && shortID.MatchString(id) }
	if !slices.ContainsFunc(ids, isShort) {
		return nil
	}
	all, err := list(ctx, a, client.ListOptions{States: states})
	if err != nil {
		return ctx.Err()
	}
	for i, id := range ids {
		if !isShort(id) {
			continue
		}
		var found []string
		for _, sandbox := range idsOf(all) {
			if strings.HasPrefix(sandbox, id) {
				found = append(found, sandbox)
			}
		}
		switch {
		case slices.Contains(found, id), len(found) == 0:
		case len(found) == 1 && len(id) >= shortest:
			ids[i] = found[0]
		default:
			return ambiguous(id, found)
		}
	}
	return nil
}

// ambiguous refuses the beginning of an id that does not say enough.
func ambiguous(id string, found []string) error {
	slices.Sort(found)
	what := "the beginning of several ids"
	if len(found) == 1 {
		what = "too short to stand for an id"
	}
	const most = 5
	if shown := found[:min(len(found), most)]; len(shown) < len(found) {
		found = append(shown, fmt.Sprintf("and %d more", len(found)-most))
	}
	return hint(usagef("%s is %s: %s", id, what, strings.Join(found, ", ")), "give more characters, at least %d", max(len(id)+1, shortest))
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
