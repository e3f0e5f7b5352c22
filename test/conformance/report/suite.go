package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// suite is one run of the cases of one version of an SDK, or of the command line,
// whose commands are its methods.
type suite struct {
	registry string            // where the packages are published; only suites of clients of others say
	packages map[string]string // name to version
	methods  []string          // what it offers, as Class.method
	fields   []string          // what bodies can have by its schema: "POST /sandboxes timeout"; only some suites say
	cases    []result
}

// result is what became of one case.
type result struct {
	Area  string   `json:"area"`
	Case  string   `json:"case"`
	OK    bool     `json:"ok"`
	Calls []string `json:"calls"` // the methods that it called
}

// readSuite reads what a suite wrote down. A method of the asynchronous half of
// an SDK is one whose name begins with "async ".
func readSuite(name string) (suite, error) {
	f, err := os.Open(name)
	if err != nil {
		return suite{}, err
	}
	defer f.Close()
	var s suite
	for in := json.NewDecoder(f); ; {
		var line struct {
			Registry string            `json:"registry"`
			Packages map[string]string `json:"packages"`
			Methods  []string          `json:"methods"`
			Fields   []string          `json:"fields"`
			result
		}
		err := in.Decode(&line)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return suite{}, fmt.Errorf("%s: %w", name, err)
		}
		if line.Packages != nil {
			s.registry, s.packages, s.methods, s.fields = line.Registry, line.Packages, line.Methods, line.Fields
			continue
		}
		s.cases = append(s.cases, line.result)
	}
	if len(s.methods) == 0 && !s.ofOthers() || len(s.cases) == 0 {
		return suite{}, fmt.Errorf("%s: no methods or no cases", name)
	}
	return s, nil
}

// ofOthers reports whether a suite is of clients of other servers that speak E2B's
// API. Its cases are counted, and not its methods.
func (s suite) ofOthers() bool { return s.registry != "" }

// versions lists the packages, those with short names first.
func (s suite) versions() string {
	var list []string
	for _, name := range slices.SortedFunc(maps.Keys(s.packages), func(a, b string) int { return cmp.Or(len(a)-len(b), cmp.Compare(a, b)) }) {
		list = append(list, name+" "+s.packages[name])
	}
	return strings.Join(list, ", ")
}

// title names the version by where it is published.
func (s suite) title() string {
	switch {
	case s.ofOthers():
		return s.registry + " " + s.versions()
	case s.packages["@e2b/cli"] != "":
		return "@e2b/cli " + s.packages["@e2b/cli"]
	case s.packages["@e2b/code-interpreter"] != "":
		return "npm " + s.packages["e2b"]
	default:
		return "PyPI " + s.packages["e2b"]
	}
}

// hasAsync says whether the SDK has classes of both kinds.
func (s suite) hasAsync() bool {
	for _, m := range s.methods {
		if strings.HasPrefix(m, "async ") {
			return true
		}
	}
	return false
}
