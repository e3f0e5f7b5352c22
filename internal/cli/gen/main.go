// Command gen writes docs/cli.md, the reference of the command line.
package main

import (
	"fmt"
	"os"

	"github.com/drowse-dev/drowse/internal/cli"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: gen <file>")
	}
	return os.WriteFile(args[0], cli.Reference(), 0o644)
}
