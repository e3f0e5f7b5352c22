package cli_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/creack/pty"

	"github.com/drowse-dev/drowse/internal/cli"
)

// TestHelpFitsTheTerminal prints the help of the command with the most flags on
// terminals, and into a pipe, where lines are as long as they are.
func TestHelpFitsTheTerminal(t *testing.T) {
	longest := func(text string) (n int) {
		for line := range strings.Lines(text) {
			n = max(n, utf8.RuneCountInString(strings.TrimRight(line, "\r\n")))
		}
		return n
	}
	var piped bytes.Buffer
	cli.Main(context.Background(), []string{"serve", "--help"}, cli.Options{Stdout: &piped, Stderr: &piped})
	if n := longest(piped.String()); n < 150 {
		t.Errorf("in a pipe the longest line has %d columns: it is wrapped", n)
	}
	for _, columns := range []int{100, 140} {
		ours, theirs, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		if err := pty.Setsize(theirs, &pty.Winsize{Cols: uint16(columns), Rows: 24}); err != nil {
			t.Fatal(err)
		}
		shown := make(chan string)
		go func() {
			var out bytes.Buffer
			_, _ = out.ReadFrom(ours) // it ends with an error when the other end is closed
			shown <- out.String()
		}()
		code := cli.Main(context.Background(), []string{"serve", "--help"}, cli.Options{Stdout: theirs, Stderr: theirs})
		theirs.Close()
		text := <-shown
		if n := longest(text); code != 0 || n > columns || !strings.Contains(text, "--max-key-rate") {
			t.Errorf("on %d columns: exit code %d, and a line of %d:\n%s", columns, code, n, text)
		}
	}
}
