package template

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/drowse-dev/drowse/internal/powercut"
)

// recordedEnv holds the directory in which the recorded child builds a base.
const recordedEnv = "DROWSE_TEMPLATE_TEST_RECORDED"

// TestMain lets the test binary be the process that TestPowerCut records.
func TestMain(m *testing.M) {
	if dir := os.Getenv(recordedEnv); dir != "" {
		if err := buildRecorded(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func buildRecorded(dir string) error {
	s, err := Open(filepath.Join(dir, "templates"))
	if err != nil {
		return err
	}
	s.packages = dir // none: thousands of files of one kind make no other cuts
	base, err := s.BuildBase(agentOf("agent"))
	fmt.Println(base.ID)
	return err
}

// TestPowerCut cuts the power wherever a process may be that builds a base. One
// that was built is there; and what has the name of one is all of it.
func TestPowerCut(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), recordedEnv+"="+dir)
	recording := powercut.Record(t, dir, child)
	id := recording.Said()[0]
	want := digest(t, filepath.Join(dir, "templates", id))
	recording.Replay(t, 40, func(t *testing.T, dir string, said []string) {
		s, err := Open(filepath.Join(dir, "templates"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Resolve(id); err != nil {
			if len(said) > 0 {
				t.Errorf("the base was built: %v", err)
			}
			return
		}
		if got := digest(t, s.Dir(id)); got != want {
			t.Error("the base is not whole")
		}
	})
}

// digest is of the trees of a base.
func digest(t *testing.T, dir string) string {
	t.Helper()
	all := ""
	for _, tree := range []string{"root", "usr"} {
		sum, err := hashTree(filepath.Join(dir, tree))
		if err != nil {
			t.Fatal(err)
		}
		all += sum
	}
	return all
}
