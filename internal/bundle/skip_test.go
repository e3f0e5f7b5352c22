package bundle

import (
	"bytes"
	"io"
	"testing"

	"github.com/drowse-dev/drowse/internal/layer"
)

// reads is a bundle that can be passed over in parts, and counts what is read.
type reads struct {
	*bytes.Reader
	n int
}

func (r *reads) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.n += n
	return n, err
}

// TestSkip passes over the data of a file of the image, be it at the end of a block or not: the
// rest is as it was written, and where the data is is told.
func TestSkip(t *testing.T) {
	const large = 1 << 20
	for _, size := range []int{large, large + 1, large + 511, 1, 2} {
		m, c := sample(t)
		for i := range c {
			if c[i].entry.Path == "pages.img" {
				c[i].data = string(bytes.Repeat([]byte("p"), size))
			}
		}
		m.Image.Files[0].Size = int64(size)
		m.Image.Files[0].CRC32C = make([]uint32, (size+layer.ChunkSize-1)/layer.ChunkSize)
		data := written(t, m, c)
		for _, seekable := range []bool{true, false} {
			from := &reads{Reader: bytes.NewReader(data)}
			var r io.Reader = from
			if !seekable {
				r = struct{ io.Reader }{from}
			}
			b, err := NewReader(r)
			if err != nil {
				t.Fatal(err)
			}
			offset := int64(-1)
			b.Skip = func(f layer.File, at int64) bool {
				if f.Name == "pages.img" {
					offset = at
				}
				return offset == at
			}
			var to taker
			if err := b.Extract(&to); err != nil {
				t.Fatalf("%d bytes, %v: %v", size, seekable, err)
			}
			if offset < 0 || !bytes.Equal(data[offset:][:size], bytes.Repeat([]byte("p"), size)) || data[offset-1] == 'p' {
				t.Errorf("%d bytes are said to be at %d", size, offset)
			}
			if len(to.got) != len(c)-1 {
				t.Errorf("%d things were read of %d", len(to.got), len(c))
			}
			for _, x := range to.got {
				if x.layer < 0 && (x.entry.Path != "kernel.img" || x.data != "k") {
					t.Errorf("after what was passed over comes %q with %q", x.entry.Path, x.data)
				}
			}
			if seekable && size > 2 && from.n > len(data)-size {
				t.Errorf("%d bytes were read of %d, of which %d were to be passed over", from.n, len(data), size)
			}
		}
		// What is not passed over is compared as ever, whatever the reader can do.
		data[len(data)-3*blockSize-1-64] ^= 1
		if _, _, err := read(bytes.NewReader(data)); err == nil {
			t.Errorf("a changed bundle was read")
		}
	}
}
