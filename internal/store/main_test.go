package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/drowse-dev/drowse/internal/store"
)

// TestMain lets the test binary be the process that TestKill kills, and the one
// that TestPowerCut records.
func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		os.Exit(commitForever(path))
	}
	if path := os.Getenv(recordedEnv); path != "" {
		os.Exit(commitRecorded(path))
	}
	os.Exit(m.Run())
}

// open opens the store at path and closes it with the test.
func open(t testing.TB, path string) *store.SQL {
	t.Helper()
	s, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "drowse.db") }
