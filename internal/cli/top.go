package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/top"
)

func topCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "top",
		Short: "watch sandboxes on a terminal; pause, wake, end and enter them by keys",
		Long: `Watch sandboxes on a terminal, live: their states, what each of them waits for,
and how many wake and fall asleep in a minute. Keys pause, wake and end the
selected one, open a shell in it, show its log, or explain it as drowse why does;
? lists them. Watching wakes no sandbox and keeps none awake.`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !isTerminal(a.Stdin) || !isTerminal(a.Stdout) {
				return hint(usagef("top: stdin and stdout must be a terminal"), "without a terminal, use: drowse ls --watch, or drowse events -f")
			}
			if a.output == "json" {
				return usagef("top: there is no -o json; drowse ls --watch -o json prints lists")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			// By the terminal's own name: on stdin no key arrives after a shell.
			screen, err := tcell.NewScreen()
			if err != nil {
				return usagef("cannot use this terminal: %w", err)
			}
			return a.explainKey(c.URL(), top.Run(cmd.Context(), screen, topOptions(a, c)))
		},
	}
}

// topOptions has top say the same as ls and why.
func topOptions(a *app, c *client.Client) top.Options {
	return top.Options{
		Server:  c,
		URL:     cell(c.URL()),
		Columns: listColumns,
		Row: func(i client.Info, now time.Time) []string {
			cells := listCells(i, now)
			for n, text := range cells {
				cells[n] = cell(text)
			}
			return cells
		},
		Why: func(ctx context.Context, id string) (string, error) {
			x, info, err := explained(ctx, c, id)
			if err != nil {
				return "", err
			}
			var text strings.Builder
			why(&text, x, info, time.Now())
			return harmless(text.String()), nil
		},
		Spare: []string{"SLEEP", "TEMPLATE", "WAKES ON", "AGE", "ACTIVE", "ENDS"},
		Log:   func(id string) func(context.Context) (string, error) { return followLog(c, id) },
		Shell: func(ctx context.Context, id string) error { return shellBeside(ctx, a, id) },
	}
}

// logLines is how many lines of a log are shown.
const logLines = 1000

// followLog reads the log of a sandbox: its newest lines, and at each further call those
// that have come since.
func followLog(c *client.Client, id string) func(context.Context) (string, error) {
	diary := client.NewDiary(c, id)
	var lines []client.LogLine
	after := ""
	return func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		page, err := diary.Log(ctx, after, logLines)
		if err == nil {
			after = page.Next
			lines = append(lines, page.Lines...)
			lines = lines[max(len(lines)-logLines, 0):]
		}
		var text strings.Builder
		printLog(&text, lines)
		if text.Len() == 0 && err == nil {
			return "nothing has been logged\n", nil
		}
		return harmless(text.String()), err
	}
}

// shellBeside runs "drowse shell" on the terminal. In a process of its own, because
// whoever reads a terminal for a shell that has ended takes the next key as well.
func shellBeside(ctx context.Context, a *app, id string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	key, _ := a.apiKey(a.serverURL())
	var said strings.Builder // by drowse: what runs in the sandbox has the terminal
	cmd := exec.CommandContext(ctx, self, "shell", id)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, os.Stdout, &said
	cmd.Env = append(os.Environ(), "DROWSE_URL="+a.serverURL(), "DROWSE_API_KEY="+key)
	if a.sandboxURL != "" {
		cmd.Env = append(cmd.Env, "DROWSE_SANDBOX_URL="+a.sandboxURL)
	}
	err = cmd.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); ended {
		if said.Len() == 0 {
			return nil // as the last command in it ended
		}
		return errors.New(strings.Join(strings.Fields(said.String()), " "))
	}
	return err
}
