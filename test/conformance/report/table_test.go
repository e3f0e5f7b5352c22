package main

import (
	"strings"
	"testing"
)

// suiteOf is a suite whose cases call the methods.
func suiteOf(methods []string, calls ...string) suite {
	return suite{
		packages: map[string]string{"e2b": "1.0.0"},
		methods:  methods,
		cases:    []result{{Area: "area", Case: "a case", OK: true, Calls: calls}},
	}
}

func TestTable(t *testing.T) {
	refused := []gap{{[]string{"Box.fork*"}, true, "not built"}}
	client := []gap{{[]string{"Box.print"}, false, "in the client"}}
	failed := suiteOf([]string{"Box.run"}, "Box.run")
	failed.cases[0].OK = false
	for name, c := range map[string]struct {
		suite suite
		gaps  []gap
		want  string // of the error, or of the document
		fails bool
	}{
		"a case":                   {suite: suiteOf([]string{"Box.run"}, "Box.run"), want: "| `run` | ✓ |"},
		"no case":                  {suite: suiteOf([]string{"Box.run", "Box.stop"}, "Box.run"), want: "Box.stop has no case and no reason", fails: true},
		"a case that failed":       {suite: failed, want: "area: a case failed", fails: true},
		"a case of the other half": {suite: suiteOf([]string{"Box.run", "async Box.run"}, "Box.run"), want: "PyPI 1.0.0, async: Box.run has no case", fails: true},
		"a refusal":                {suite: suiteOf([]string{"Box.fork_all"}, "Box.fork_all"), gaps: refused, want: "| `fork_all` | refused (1) |"},
		"a refusal without a case": {suite: suiteOf([]string{"Box.fork", "Box.run"}, "Box.run"), gaps: refused, want: "Box.fork has no case", fails: true},
		"in the client":            {suite: suiteOf([]string{"Box.run", "Box.print"}, "Box.run"), gaps: client, want: "| `Box.print` | not run | in the client |"},
		"a gap of nothing":         {suite: suiteOf([]string{"Box.run"}, "Box.run"), gaps: client, want: "the gap Box.print is of no method", fails: true},
		"a client of another server": {suite: suite{registry: "PyPI", packages: map[string]string{"box": "2", "a-box": "1"},
			cases: []result{{Area: "Box", Case: "test_it_runs", OK: true}}}, want: "### Box\n\n| case | PyPI box 2, a-box 1 |\n| --- | --- |\n| it runs | ✓ |"},
		"two gaps": {suite: suiteOf([]string{"Box.fork"}, "Box.fork"), gaps: []gap{refused[0], {[]string{"Box.fork"}, true, ""}}, want: "Box.fork is in two gaps", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := newTable([]suite{c.suite}, c.gaps)
			var got string
			if err != nil {
				got = err.Error()
			} else {
				got = table.markdown()
			}
			if (err != nil) != c.fails || !strings.Contains(got, c.want) {
				t.Errorf("got %s\nwant %q", got, c.want)
			}
		})
	}
}

func TestCaseKey(t *testing.T) {
	for js, python := range map[string]string{
		"a non-zero exit code is a CommandExitError": "test_a_non_zero_exit_code_is_a_CommandExitError",
		"kill: true, then false":                     "test_kill_true_then_false[sync]",
	} {
		if got, want := caseKey(caseName(python)), caseKey(caseName(js)); got != want {
			t.Errorf("%s: got %q, want %q", python, got, want)
		}
	}
}
