package e2e

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestUnreadableImage has a server find a memory image of another gVisor, as
// after an upgrade. The sandbox stays asleep, until its owner lets it boot
// afresh from its files; one that is of this gVisor wakes as it was.
func TestUnreadableImage(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	g, other := s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper)
	before := other.ask(ctx)
	if err := g.sb.WriteFile(ctx, "kept", strings.NewReader("kept")); err != nil {
		t.Fatal(err)
	}
	for _, guest := range []*guest{g, other} {
		s.pause(ctx, guest.sb.ID)
		s.waitGone(guest.sb.ID)
	}
	image := s.checkpointOf(ctx, g.sb.ID)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	writtenBy(t, s.dir(), g.sb.ID, image, "gvisor v0.0.0-20200101000000-000000000000")

	s.start()
	s.checkStaysAsleep(ctx, g, "of another gVisor", "checkpoint_unreadable", "cannot read")
	if _, err := s.client.Patch(ctx, g.sb.ID, client.PatchOptions{FilesystemFallback: new(true)}); err != nil {
		t.Fatal(err)
	}
	s.connect(ctx, g.sb.ID)
	g.checkKept(ctx, "kept")
	if _, out := run(ctx, t, g.sb, "pgrep", "-x", "guest"); out != "" {
		t.Errorf("the guest still runs, as %s", out)
	}
	other.same(before, other.ask(ctx))
}

// writtenBy has the memory image of a sandbox be one that another runtime wrote,
// in the state directory of a server that does not run.
func writtenBy(t *testing.T, dir, id, image, runtime string) {
	t.Helper()
	path := filepath.Join(image, "manifest.json")
	manifest, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := regexp.MustCompile(`"runtime":"[^"]*"`).ReplaceAll(manifest, []byte(`"runtime":"`+runtime+`"`))
	if bytes.Equal(changed, manifest) {
		t.Fatalf("no runtime in %s", manifest)
	}
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(changed)
	db, err := sql.Open("sqlite", filepath.Join(dir, "drowse.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.ExecContext(t.Context(), `UPDATE sandboxes SET data = json_set(data, '$.record.checkpoint.digest', ?) WHERE id = ?`,
		hex.EncodeToString(digest[:]), id)
	if err != nil {
		t.Fatal(err)
	}
}
