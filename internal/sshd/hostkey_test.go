package sshd

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestHostKey: a server is known by one key, whoever makes it first and however
// often it starts. A file that has none is not replaced.
func TestHostKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	var starts sync.WaitGroup
	keys := make([][]byte, 8)
	for i := range keys {
		starts.Go(func() {
			key, err := HostKey(file)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = key.PublicKey().Marshal()
		})
	}
	starts.Wait()
	again, err := HostKey(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if !bytes.Equal(key, again.PublicKey().Marshal()) {
			t.Errorf("one start has another key")
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("its file: %v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("beside it: %v, %v", left, err)
	}
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := HostKey(file); err == nil {
		t.Error("a damaged file gives a key")
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "damaged" {
		t.Errorf("a damaged file became %q, %v", data, err)
	}
}
