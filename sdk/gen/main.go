// Command gen writes what the SDKs do not have by hand: the models of both, made
// of docs/api/openapi.json; the synchronous half of Python's, made of the
// asynchronous one; and the version, from sdk/VERSION. What it writes is
// committed, and a test keeps it current.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// It runs after the generator of the description, which is where people change
// what is generated here.
//
//go:generate go run . ../..

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: gen <root of the repository>")
	}
	files, err := generate(args[0])
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Where things are, below the root of the repository.
const (
	description = "docs/api/openapi.json"
	versionFile = "sdk/VERSION"
	python      = "sdk/python/src/drowse/"
	typescript  = "sdk/typescript/"
)

// generate returns the text of each generated file, by its path below root.
func generate(root string) (map[string]string, error) {
	read := func(name string) string { b, _ := os.ReadFile(filepath.Join(root, name)); return string(b) }
	var doc document
	if err := json.Unmarshal([]byte(read(description)), &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", description, err)
	}
	api, err := readModels(doc)
	if err != nil {
		return nil, err
	}
	version := strings.TrimSpace(read(versionFile))
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(version) {
		return nil, fmt.Errorf("%s: %q is no version", versionFile, version)
	}
	files := map[string]string{
		python + "models.py":          pythonModels(api),
		python + "_version.py":        "# Generated from sdk/VERSION. Do not edit.\n\n__version__ = \"" + version + "\"\n",
		typescript + "src/models.ts":  typescriptModels(api),
		typescript + "src/version.ts": "// Generated from sdk/VERSION. Do not edit.\n\nexport const version = \"" + version + "\";\n",
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		if text := read(typescript + name); text != "" {
			files[typescript+name] = withVersion(text, version)
		}
	}
	halves, err := filepath.Glob(filepath.Join(root, python, "_async", "*.py"))
	if err != nil || len(halves) == 0 {
		return nil, fmt.Errorf("%s_async: no modules (%v)", python, err)
	}
	for _, file := range halves {
		name := filepath.Base(file)
		files[python+"_sync/"+name] = synchronous(name, read(python+"_async/"+name))
	}
	return files, nil
}

var aVersion = regexp.MustCompile(`"version": "[^"]*"`)

// withVersion puts the version into a package.json, or into its lock file, where it
// is twice. Those of dependencies come after it.
func withVersion(text, version string) string {
	places := 1
	if strings.Contains(text, `"lockfileVersion"`) {
		places = 2
	}
	return aVersion.ReplaceAllStringFunc(text, func(old string) string {
		if places--; places < 0 {
			return old
		}
		return fmt.Sprintf(`"version": "%s"`, version)
	})
}

// words are what the asynchronous half of Python's SDK says otherwise.
var words = []struct {
	of *regexp.Regexp
	by string
}{
	{regexp.MustCompile(`\basync (def|with|for)\b`), "$1"},
	{regexp.MustCompile(`\bawait `), ""},
	{regexp.MustCompile(`\bAsyncGenerator\[(.*), None\]`), "Generator[$1, None, None]"},
	{regexp.MustCompile(`\bAsync(\w+)`), "$1"},
	{regexp.MustCompile(`\b__a(enter|exit|iter|next)__`), "__${1}__"},
	{regexp.MustCompile(`\ba(iter_bytes|iter_lines|read|close)\b`), "$1"},
	{regexp.MustCompile(`\b_async\b`), "_sync"},
	{regexp.MustCompile(`\basynchronous\b`), "synchronous"},
}

// synchronous turns a module of the asynchronous half into one of the other.
func synchronous(name, text string) string {
	for _, w := range words {
		text = w.of.ReplaceAllString(text, w.by)
	}
	return "# Generated from _async/" + name + ". Do not edit.\n" + text
}
