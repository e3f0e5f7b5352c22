package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBackup loses the state directory of a server and gets it back: the sandbox
// wakes with the memory that it went to sleep with, and with a hostile tree that no
// path leads through.
func TestBackup(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	before := g.ask(ctx)
	if err := g.sb.WriteFile(ctx, "kept", strings.NewReader("kept")); err != nil {
		t.Fatal(err)
	}
	if exit, out := run(ctx, t, g.sb, "python3", "-c", makeHostileTree, "all"); exit.Code != 0 {
		t.Fatalf("%s: %s", exit.Status, out)
	}
	dir := filepath.Join(t.TempDir(), "backup")
	backup := func(wantCode int, wantSaid string, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(ctx, drowseBinary, append([]string{"backup", dir, "--state-dir", s.dir}, args...)...).CombinedOutput()
		code := 0
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			code = e.ExitCode()
		}
		if code != wantCode || !strings.Contains(string(out), wantSaid) {
			t.Fatalf("backup %q ends with %d (%v): %s; want %d, and %q", args, code, err, out, wantCode, wantSaid)
		}
	}
	backup(5, "another drowse server")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	backup(5, "cannot be backed up: "+g.sb.ID)
	if _, err := os.Lstat(dir); err == nil {
		t.Error("a backup that was refused has left something")
	}
	s.start()
	s.pause(ctx, g.sb.ID)
	s.waitGone(g.sb.ID)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	backup(0, "backed up to")
	backup(0, "verified", "--verify")
	backup(5, "is not empty", "--restore")
	lost := s.dir + ".lost"
	if err := os.Rename(s.dir, lost); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.RemoveAll(lost); err != nil {
			t.Error(err)
		}
	}()
	backup(0, "restored to", "--restore")
	if found, code := s.fsck(t); code != 0 {
		t.Errorf("fsck of what was restored ends with %d: %+v", code, found)
	}
	s.start()
	s.connect(ctx, g.sb.ID)
	g.same(before, g.ask(ctx))
	g.checkKept(ctx, "kept")
	if exit, out := run(ctx, t, g.sb, "python3", "-c", checkHostileTree); exit.Code != 0 || strings.TrimSpace(out) != "at the bottom" {
		t.Errorf("the hostile tree is not what it was: %s: %s", exit.Status, out)
	}
}
