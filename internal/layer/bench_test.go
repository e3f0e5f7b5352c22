package layer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkVerifyLayer is what a wake waits for, beside the check of the memory
// image, with files in the page cache.
func BenchmarkVerifyLayer(b *testing.B) {
	for _, c := range []struct {
		name        string
		files, size int
	}{{"256 MiB in 8 files", 8, 32 << 20}, {"10,000 files of 4 KiB", 10_000, 4 << 10}} {
		b.Run(c.name, func(b *testing.B) {
			s, err := Open(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			data := make([]byte, c.size)
			for i := range data {
				data[i] = byte(i * 31)
			}
			for i := range c.files {
				path := filepath.Join(s.LayerDir("a"), "root", fmt.Sprint(i%100), fmt.Sprint(i))
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(path, data, 0o644); err != nil {
					b.Fatal(err)
				}
			}
			f, err := s.Freeze(b.Context(), "a")
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(c.files) * int64(c.size))
			for b.Loop() {
				if err := s.VerifyLayer(b.Context(), "a", f.Digest); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
