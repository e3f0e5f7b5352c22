// Command report makes docs/results/conformance.md of what the SDKs' suites wrote down:
// a line for every public method that an SDK declares, with the SDKs in which a
// case shows that it works, or why there is none.
//
// It fails, and names them, if a method has neither a case nor a reason, if a
// reason is for nothing, or if the document says something else than the run.
// The same holds for the list of the fields that bodies can have by the SDKs'
// schemas, from which the server's tests know what to send.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	write := flag.Bool("write", false, "write the document and the list of fields anew")
	fields := flag.String("fields", "internal/api/e2b/testdata/published.txt", "`file` with the list of fields")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: report [-write] DOCUMENT RESULTS...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() < 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *fields, flag.Args()[1:], *write); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(document, fields string, files []string, write bool) error {
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
	return errors.Join(hold(document, t.markdown(), write), hold(fields, fieldsOf(suites), write))
}

// fieldsOf lists the fields that any of the suites' schemas has, one to a line.
func fieldsOf(suites []suite) string {
	all := map[string]bool{}
	for _, s := range suites {
		for _, f := range s.fields {
			all[f+"\n"] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), "")
}

// hold wants a file to have a text, or writes it.
func hold(name, text string, write bool) error {
	if write {
		return os.WriteFile(name, []byte(text), 0o644)
	}
	old, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if string(old) != text {
		return fmt.Errorf("%s says something else than this run; test/conformance/conformance.sh --write would change\n%s",
			name, changes(string(old), text))
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
