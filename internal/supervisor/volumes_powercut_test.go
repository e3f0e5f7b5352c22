package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/powercut"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
	"github.com/drowse-dev/drowse/internal/volume"
)

// What the recorded process says of volumes: before something, and when it has
// returned.
const (
	saidMade      = "made %s"
	saidWriting   = "writing %d"
	saidWrote     = "wrote %d"
	saidClearing  = "clearing"
	saidCleared   = "cleared"
	saidDiscard   = "deleting %s"
	saidDiscarded = "deleted %s"
)

func sayLine(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// The volume that stays, the one that is deleted, and the files in them.
const (
	keptVolume, goneVolume = "kept", "gone"
	keptFile, clearedDir   = "/dir/below/file", "/cleared"
)

// edition is what is written to the file the nth time.
func edition(n int) string { return strings.Repeat(fmt.Sprint(n, " "), 400*n) }

const editions = 4

// useRecordedVolumes makes volumes, writes and removes files in them as the API
// does it, and deletes one.
func useRecordedVolumes(ctx context.Context, dir string) error {
	s, shut, err := openRecorded(ctx, dir, fake.NewMachine(bootRecorded))
	if err != nil {
		return err
	}
	for _, name := range []string{keptVolume, goneVolume} {
		if _, err := s.CreateVolume(ctx, name, 0); err != nil {
			return err
		}
		sayLine(saidMade, name)
	}
	kept, gone := mustNamed(s, keptVolume), mustNamed(s, goneVolume)
	for n := 1; n <= editions; n++ {
		sayLine(saidWriting, n)
		if err := errors.Join(writeIn(s, kept, keptFile, edition(n)), writeIn(s, gone, keptFile, edition(n))); err != nil {
			return err
		}
		sayLine(saidWrote, n)
	}
	files, err := s.VolumeFiles(kept)
	if err != nil {
		return err
	}
	defer files.Close()
	if _, err := files.Write(clearedDir+"/file", strings.NewReader("x"), volume.Attributes{}, volume.MakeParents); err != nil {
		return err
	}
	sayLine(saidClearing)
	if err := files.Remove(clearedDir); err != nil {
		return err
	}
	sayLine(saidCleared)
	sayLine(saidDiscard, goneVolume)
	if err := s.DeleteVolume(ctx, gone); err != nil {
		return err
	}
	sayLine(saidDiscarded, goneVolume)
	return shut()
}

// mustNamed returns the id of a volume that there is.
func mustNamed(s *Supervisor, name string) string {
	for _, v := range s.Known() {
		if v.Name == name {
			return v.ID
		}
	}
	panic("there is no volume " + name)
}

func writeIn(s *Supervisor, id, path, text string) error {
	files, err := s.VolumeFiles(id)
	if err != nil {
		return err
	}
	defer files.Close()
	_, err = files.Write(path, strings.NewReader(text), volume.Attributes{}, volume.MakeParents)
	return err
}

// textIn returns what a file of a volume has; empty if there is none.
func textIn(files *volume.Files, path string) (string, error) {
	file, _, err := files.Open(path)
	if errdef.Is(err, errdef.NotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	return string(data), err
}

// TestVolumesPowerCut cuts the power wherever a server may be that makes and
// deletes volumes, and changes files in them. A volume is there whole or not at
// all, and so is what a file was told to have; nothing is left of what is gone.
func TestVolumesPowerCut(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), recordedEnv+"="+dir, recordedVolumesEnv+"=1")
	powercut.Record(t, dir, child).Replay(t, 150, func(t *testing.T, dir string, said []string) {
		s, shut, err := openRecorded(t.Context(), dir, fake.NewMachine(bootRecorded))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := shut(); err != nil {
				t.Error(err)
			}
		}()
		list, err := s.Volumes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		has := map[string]bool{}
		dirs := []string{".writing"}
		for _, v := range list {
			has[v.Name] = true
			dirs = append(dirs, v.ID)
			checkVolume(t, s, v.ID, v.Name, said)
		}
		if saidOf(said, saidMade, keptVolume) && !has[keptVolume] {
			t.Error("a volume is gone that was made")
		}
		if saidOf(said, saidMade, goneVolume) && !saidOf(said, saidDiscard, goneVolume) && !has[goneVolume] {
			t.Error("a volume is gone that was not deleted")
		}
		if saidOf(said, saidDiscarded, goneVolume) && has[goneVolume] {
			t.Error("a volume is there that was deleted")
		}
		entries, err := os.ReadDir(filepath.Join(dir, "volumes"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !slices.Contains(dirs, e.Name()) {
				t.Errorf("%s is nobody's", e.Name())
			}
		}
		if half, err := os.ReadDir(filepath.Join(dir, "volumes", ".writing")); err != nil || len(half) > 0 {
			t.Errorf("left of files that were being written: %v, %v", half, err)
		}
	})
}

func saidOf(said []string, format string, args ...any) bool {
	return slices.Contains(said, fmt.Sprintf(format, args...))
}

// checkVolume checks what is in a volume against what was said of it.
func checkVolume(t *testing.T, s *Supervisor, id, name string, said []string) {
	t.Helper()
	files, err := s.VolumeFiles(id)
	if err != nil {
		t.Error(err)
		return
	}
	defer files.Close()
	got, err := textIn(files, keptFile)
	if err != nil {
		t.Error(err)
	}
	var may []string
	for n := range editions + 1 {
		switch {
		case n > 0 && !saidOf(said, saidWriting, n):
		case n > 0 && saidOf(said, saidWrote, n), n == 0:
			may = []string{edition(n)}
		default:
			may = append(may, edition(n))
		}
	}
	if !slices.Contains(may, got) {
		t.Errorf("the file in %s has %d bytes, %.20q…; it may be one of %d others", name, len(got), got, len(may))
	}
	if name != keptVolume {
		return
	}
	switch text, err := textIn(files, clearedDir+"/file"); {
	case err != nil:
		t.Error(err)
	case saidOf(said, saidCleared) && text != "", saidOf(said, saidClearing) && text != "" && text != "x":
		t.Errorf("what was removed has %q", text)
	}
	if _, err := files.Stat(clearedDir); saidOf(said, saidCleared) && !errdef.Is(err, errdef.NotFound) {
		t.Errorf("what was removed is there: %v", err)
	}
}
