package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

// logEvery is how often logs -f asks a server, and logPatience how often one that
// does not answer.
const (
	logEvery    = time.Second
	logPatience = 2 * time.Second
)

func logsCommand(a *app) *cobra.Command {
	var follow bool
	var lines int
	cmd := &cobra.Command{
		Use:   "logs ID [-f] [flags]",
		Short: "print the log of a sandbox: commands that began or ended in it, and its own events",
		Long: `Print the log of a sandbox, oldest line first: the commands that were started in it
through the API, how they ended, and the events of the sandbox. What commands print
is not in it; for services, drowse service logs has that. A paused sandbox is not
woken, and a running one is not kept awake.

With -f, new lines follow until the sandbox is terminated. While the server does not
answer, the command waits for it. With -o json and -f each line is one JSON object.`,
		Example: `  drowse logs i0abc
  drowse logs web -f -n 0`,
		Args: exactArgs("ID"),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new lines as they come; this does not keep the sandbox awake")
	cmd.Flags().IntVarP(&lines, "lines", "n", 1000, "`number` of lines to begin with, the last ones, at most 1000; 0 for none with -f")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if lines > 1000 || lines < 0 || lines == 0 && !follow {
			return usagef("--lines %d: want 1 to 1000, or 0 with -f", lines)
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		l := logReader{app: a, diary: client.NewDiary(c, args[0])}
		err = l.run(cmd.Context(), lines, follow)
		return missing(a.explainKey(c.URL(), err))
	}
	return cmd
}

// logReader prints the log of a sandbox.
type logReader struct {
	*app
	diary client.Diary
	gone  bool // the server does not answer
}

func (l *logReader) run(ctx context.Context, lines int, follow bool) error {
	page, err := l.page(ctx, "", max(lines, 1))
	if err != nil {
		return err
	}
	if lines == 0 {
		page.Lines = nil
	}
	if !follow {
		return l.print(page.Lines, func(w io.Writer) { printLog(w, page.Lines) })
	}
	for {
		for _, line := range page.Lines {
			if err := l.printOne(line); err != nil {
				return err
			}
		}
		if len(page.Lines) == 0 {
			if err := pause(ctx, logEvery); err != nil {
				return err
			}
		}
		next, err := l.again(ctx, page.Next)
		if e, ok := errors.AsType[*client.Error](err); ok && e.Context["endedAt"] != nil {
			l.complain(e.Message, "")
			return nil
		}
		if err != nil {
			return err
		}
		page = next
	}
}

// page asks for lines. A server that says nothing is as good as none.
func (l *logReader) page(ctx context.Context, after string, lines int) (client.LogPage, error) {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return l.diary.Log(bounded, after, lines)
}

// again asks for the lines that follow, for as long as it takes.
func (l *logReader) again(ctx context.Context, after string) (client.LogPage, error) {
	for {
		page, err := l.page(ctx, after, 0)
		away := errors.Is(err, client.ErrUnreachable) || errors.Is(err, client.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
		switch {
		case ctx.Err() != nil:
			return page, ctx.Err()
		case err == nil && l.gone:
			l.gone = false
			l.complain("the server answers again", "")
		case away && !l.gone:
			l.gone = true
			l.complain(err.Error(), "waiting for the server; Ctrl-C ends this")
		}
		if !away {
			return page, err
		}
		if err := pause(ctx, logPatience); err != nil {
			return page, err
		}
	}
}

func (l *logReader) printOne(line client.LogLine) error {
	if l.output == "json" {
		text, err := marshal(line)
		if err != nil {
			return err
		}
		_, err = tame(l.app).Write(append(text, '\n'))
		return err
	}
	var text bytes.Buffer
	printLog(&text, []client.LogLine{line})
	_, err := tame(l.app).Write(text.Bytes())
	return err
}

func printLog(w io.Writer, lines []client.LogLine) {
	unfolded(w)
	for _, l := range lines {
		var fields strings.Builder
		for _, name := range slices.Sorted(maps.Keys(l.Fields)) {
			fmt.Fprintf(&fields, "  %s=%s", name, l.Fields[name])
		}
		_, _ = fmt.Fprintf(w, "%s  %-5s  %s%s\n", l.At.Local().Format("2006-01-02 15:04:05.000"), cell(l.Level), cell(l.Message), cell(fields.String()))
	}
}
