// Command report makes docs/results/conformance.md of what the SDKs' suites wrote down:
// a line for every public method that an SDK declares, with the SDKs in which a
// case shows that it works, or why there is none.
//
// It fails, and names them, if a method has neither a case nor a reason, if a
// reason is for nothing, or if the document says something else than the run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	write := flag.Bool("write", false, "write the document anew")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: report [-write] DOCUMENT RESULTS...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() < 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Args()[1:], *write); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(document string, files []string, write bool) error {
	var suites []suite
	for _, name := range files {
		s, err := readSuite(name)
		if err != nil {
			return err
		}
		suites = append(suites, s)
	}
	t, err := newTable(suites, gaps)
	if err != nil {
		return err
	}
	text := t.markdown()
	if write {
		return os.WriteFile(document, []byte(text), 0o644)
	}
	old, err := os.ReadFile(document)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if string(old) != text {
		return fmt.Errorf("%s says something else than this run; test/conformance/conformance.sh --write would change\n%s",
			document, changes(string(old), text))
	}
	return nil
}

// changes lists the lines that only one of the texts has.
func changes(before, after string) string {
	var b strings.Builder
	lines := map[string][]string{"-": strings.Split(before, "\n"), "+": strings.Split(after, "\n")}
	for _, line := range lines["-"] {
		if !slices.Contains(lines["+"], line) {
			fmt.Fprintln(&b, "-", line)
		}
	}
	for _, line := range lines["+"] {
		if !slices.Contains(lines["-"], line) {
			fmt.Fprintln(&b, "+", line)
		}
	}
	return b.String()
}
