package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/powercut"
)

// recordedEnv holds the directory of the store that the recorded child uses.
const recordedEnv = "DROWSE_LAYER_TEST_RECORDED"

// TestMain lets the test binary be the process that TestPowerCut records.
func TestMain(m *testing.M) {
	if dir := os.Getenv(recordedEnv); dir != "" {
		if err := useRecorded(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(sharedEnv); dir != "" {
		if err := makeShared(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// What the child says: what was made durable, and what it begins to remove.
const (
	saidSealed   = "sealed %s %s"
	saidFrozen   = "frozen %s %s"
	saidRemoving = "removing %s"
)

// recordedFiles is what the child writes, by image or layer and path.
var recordedFiles = map[string]map[string][]byte{
	"image1": {"memory": bytes.Repeat([]byte("memory "), 100_000), "state": []byte("state"), "empty": nil},
	"image2": {"memory": bytes.Repeat([]byte("other "), 10_000)},
	"few":    {"root/etc/name": []byte("changed"), "root/log": bytes.Repeat([]byte("line\n"), 1000), "usr/empty": nil},
	"many":   many(),
	"last":   {"root/file": []byte("file")},
}

// many is so many files that one sync of the whole file system makes them
// durable.
func many() map[string][]byte {
	all := map[string][]byte{}
	for n := range maxSingleSyncs {
		all[fmt.Sprintf("root/many/%d", n)] = []byte(strings.Repeat("x", n))
	}
	return all
}

// useRecorded makes images and layers and removes some, as a server does.
func useRecorded(dir string) error {
	s, err := Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(s.sealRecorded("image1"), s.freezeRecorded("few"),
		s.sealRecorded("image2"), s.removeRecorded("image1", s.RemoveImage),
		s.freezeRecorded("many"), s.removeRecorded("few", s.RemoveLayer),
		s.freezeRecorded("last"), s.FinishRemovals())
}

func (s *Store) sealRecorded(id string) error {
	dir, err := s.NewImage(id)
	if err != nil {
		return err
	}
	if err := writeContents(dir, id); err != nil {
		return err
	}
	digest, _, err := s.Seal(Manifest{ID: id, Runtime: "test"}, nil)
	fmt.Printf(saidSealed+"\n", id, digest)
	return err
}

func (s *Store) freezeRecorded(id string) error {
	if err := writeContents(s.LayerDir(id), id); err != nil {
		return err
	}
	if err := os.Symlink("to/nowhere", filepath.Join(s.LayerDir(id), "root", "link")); err != nil {
		return err
	}
	frozen, err := s.Freeze(context.Background(), id)
	fmt.Printf(saidFrozen+"\n", id, frozen.Digest)
	return err
}

func (s *Store) removeRecorded(id string, remove func(id string) error) error {
	fmt.Printf(saidRemoving+"\n", id)
	return remove(id)
}

func writeContents(dir, id string) error {
	for path, data := range recordedFiles[id] {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o640)); err != nil {
			return err
		}
	}
	return nil
}

// TestPowerCut cuts the power wherever a process may be that makes images and
// layers and removes them. What was sealed or frozen is good, until its removal
// begins; and whatever is taken for good is what was written.
func TestPowerCut(t *testing.T) {
	cutPower(t, recordedEnv, func(t *testing.T, s *Store, line string, said []string) {
		if !strings.HasPrefix(line, "removing") {
			s.checkRecorded(t, line, said)
		}
	})
}

// cutPower has this program work in a directory, as env tells it to, and cuts the
// power wherever it may be. After each cut it checks every line that the program says
// when nothing stops it; said are those it had said by then.
func cutPower(t *testing.T, env string, check func(t *testing.T, s *Store, line string, said []string)) {
	t.Helper()
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), env+"="+dir)
	recording := powercut.Record(t, dir, child)
	all := recording.Said()
	recording.Replay(t, 200, func(t *testing.T, dir string, said []string) {
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range all {
			check(t, s, line, said)
		}
	})
}

// checkRecorded checks what line says to be durable, if it has been said.
func (s *Store) checkRecorded(t *testing.T, line string, said []string) {
	t.Helper()
	words := strings.Fields(line)
	kind, id, digest := words[0], words[1], words[2]
	dir, err := s.LayerDir(id), error(nil)
	if kind == "sealed" {
		dir = s.ImageDir(id)
		_, err = s.Verify(id, digest)
	} else {
		err = s.VerifyLayer(t.Context(), id, digest)
	}
	removing := fmt.Sprintf(saidRemoving, id)
	if err != nil {
		if slices.Contains(said, line) && !slices.Contains(said, removing) {
			t.Errorf("%s was %s: %v", id, kind, err)
		}
		return
	}
	for path, want := range recordedFiles[id] {
		if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is taken for good and has %d bytes in %s instead of %d, %v", id, len(got), path, len(want), err)
		}
	}
}
