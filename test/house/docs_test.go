package house

import (
	"os"
	"regexp"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// TestTroubleshootingNamesCodes holds the codes that the page on what can be wrong
// names to those that there are.
func TestTroubleshootingNamesCodes(t *testing.T) {
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, e := range errdef.Catalogue() {
		known[e.Code] = true
	}
	named := 0
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(string(page), -1) {
		for _, code := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row[1], -1) {
			named++
			if !known[code[1]] {
				t.Errorf("docs/troubleshooting.md names the code %s, which there is not", code[1])
			}
		}
	}
	if named < 10 {
		t.Errorf("%d codes found, want those of the tables", named)
	}
}
