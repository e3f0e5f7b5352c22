package supervisor

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// TestStrangersHaveTime starts a server over the layer of a sandbox that has
// ended, which goes at once, and over that of one it has never heard of, which
// is left for the grace period.
func TestStrangersHaveTime(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		st := w.openSQLite(t)
		ended := store.Sandbox{ID: ids.New(), Record: lifecycle.Record{
			State: lifecycle.Terminated, Launches: 1, CreatedAt: ids.Now(), Tombstone: &lifecycle.Tombstone{Reason: lifecycle.Killed, At: ids.Now()},
		}}
		if err := st.Commit(t.Context(), ended, nil); err != nil {
			t.Fatal(err)
		}
		for _, dir := range subdirs {
			if err := os.MkdirAll(filepath.Join(w.dir, "left", dir), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		layer := func(in, sandbox string) string { return filepath.Join(in, "layers", sweep.RuntimeID(sandbox, 1)) }
		unknown := ids.New()
		for _, id := range []string{ended.ID, unknown} {
			if err := os.Mkdir(layer(filepath.Join(w.dir, "left"), id), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		srv := w.mustOpen(t)
		known, stranger := layer(srv.dir, ended.ID), layer(srv.dir, unknown)
		defer func() {
			if err := srv.s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		if isThere(known) || !isThere(stranger) {
			t.Errorf("at the start: of one that ended %t, of a stranger %t; want only the latter", isThere(known), isThere(stranger))
		}
		time.Sleep(sweep.Grace - time.Second)
		synctest.Wait()
		if !isThere(stranger) {
			t.Error("a stranger's layer was removed before its time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if isThere(stranger) {
			t.Errorf("a stranger's layer is left %s after the start", sweep.Grace+time.Second)
		}
	})
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
