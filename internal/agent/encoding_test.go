package agent

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
)

// writes notes how much each write had.
type writes struct {
	bytes.Buffer
	sizes []int
}

func (w *writes) Write(p []byte) (int, error) {
	w.sizes = append(w.sizes, len(p))
	return w.Buffer.Write(p)
}

// pieces reads a few bytes at a time.
type pieces struct {
	r   io.Reader
	rng *rand.Rand
}

func (p pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), 1+p.rng.IntN(64<<10))]) }

func TestCopyFull(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, 2*copyChunk+leastWrite+17)
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	for _, size := range []int{0, 1, leastWrite, copyChunk, len(content)} {
		want := content[:size]
		for name, r := range map[string]io.Reader{
			"whole":             bytes.NewReader(want),
			"in pieces":         pieces{bytes.NewReader(want), rng},
			"end with the last": iotest.DataErrReader(pieces{bytes.NewReader(want), rng}),
		} {
			var w writes
			if err := copyFull(&w, r); err != nil || !bytes.Equal(w.Bytes(), want) {
				t.Errorf("%d bytes, %s: got %d, %v", size, name, w.Len(), err)
			}
			for i, n := range w.sizes {
				if n < leastWrite && i < len(w.sizes)-1 {
					t.Errorf("%d bytes, %s: write %d of %d had %d bytes, want %d at least", size, name, i+1, len(w.sizes), n, leastWrite)
				}
			}
		}
	}
	broken := errors.New("broken")
	if err := copyFull(io.Discard, io.MultiReader(bytes.NewReader(content), iotest.ErrReader(broken))); err != broken {
		t.Errorf("a reader that breaks: %v", err)
	}
	r, w := io.Pipe()
	r.CloseWithError(broken)
	if err := copyFull(w, bytes.NewReader(content)); err != broken {
		t.Errorf("a writer that breaks: %v", err)
	}
}
