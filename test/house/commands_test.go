package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// notCommands are the words that follow the name of the program where no command is meant.
var notCommands = strings.Fields("and any are as certificate does ends from goes has knows listing must of or outside reads refused runs sandbox sandboxes server that was")

// TestCommandsInTexts: a text that tells somebody to run a command names one that there
// is. The reference of the command line knows all of them.
func TestCommandsInTexts(t *testing.T) {
	reference, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	known := notCommands
	for _, m := range regexp.MustCompile(`(?m)^#+ drowse ([a-z-]+)`).FindAllStringSubmatch(string(reference), -1) {
		known = append(known, m[1])
	}
	named := regexp.MustCompile(`\bdrowse ([a-z][a-z-]*)`)
	seen := 0
	err = filepath.WalkDir("../../internal", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Error(err)
			}
			for _, m := range named.FindAllStringSubmatch(text, -1) {
				seen++
				if !slices.Contains(known, m[1]) {
					t.Errorf("%s names a command %q, which there is not", files.Position(n.Pos()), m[0])
				}
			}
			return true
		})
		return nil
	})
	if err != nil || seen < 50 {
		t.Errorf("%d commands are named: %v", seen, err)
	}
}
