//go:build plant

package planted

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPlantedBugs holds that each bug is found by the test that the catalogue
// names, and that this test finds nothing else.
func TestPlantedBugs(t *testing.T) {
	binaries := map[string]string{}
	sound := map[string]bool{} // tests that pass without a bug
	for _, p := range Catalogue() {
		if binaries[p.Package] == "" {
			binaries[p.Package] = build(t, p.Package)
		}
		run := func(t *testing.T, b Bug) (string, error) {
			cmd := exec.CommandContext(t.Context(), binaries[p.Package], append(p.Args, "-test.short", "-test.timeout=5m", "-test.run=^"+p.Test+"$")...)
			cmd.Dir = filepath.Join("..", p.Package)
			cmd.Env = append(os.Environ(), Env+"="+string(b), "TMPDIR="+t.TempDir()) // for what is drawn of a bug
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if test := p.Package + "." + p.Test; !sound[test] {
			if out, err := run(t, ""); err != nil || strings.Contains(out, "no tests to run") {
				t.Fatalf("%s does not pass without a bug: %v\n%s", test, err, out)
			}
			sound[test] = true
		}
		t.Run(string(p.Bug), func(t *testing.T) {
			t.Parallel()
			out, err := run(t, p.Bug)
			if err == nil || !strings.Contains(out, "--- FAIL: "+p.Test) {
				t.Errorf("%s.%s does not find that %s: %v\n%s", p.Package, p.Test, p.What, err, out)
			}
		})
	}
}

// build makes the test binary of a package.
func build(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(pkg)+".test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags=plant", "-o", path, "../"+pkg).CombinedOutput()
	if err != nil {
		t.Fatalf("build the tests of %s: %v\n%s", pkg, err, out)
	}
	return path
}
