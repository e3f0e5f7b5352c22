package imageserver

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
)

// counting counts how often each offset of a file is read from.
type counting struct {
	io.ReaderAt
	mu    sync.Mutex
	reads map[int64]int
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	c.mu.Lock()
	c.reads[off]++
	c.mu.Unlock()
	return c.ReaderAt.ReadAt(p, off)
}

// TestCacheReadsOnce: two workers in turn, whose reads go from the middle of a chunk to
// the middle of the next, in several files, read and check each chunk once.
func TestCacheReadsOnce(t *testing.T) {
	const files, chunks, size = 5, 20, 4096
	c := newCache(files)
	var all []*File
	var counts []*counting
	var datas [][]byte
	for i := range files {
		data, f := image(chunks*size+i*100, size)
		n := &counting{ReaderAt: bytes.NewReader(data), reads: map[int64]int{}}
		all, counts, datas = append(all, &File{f, n}), append(counts, n), append(datas, data)
	}
	views := []*view{{c: c}, {c: c}}
	for off := int64(0); off < chunks*size; off += size / 2 {
		for i, f := range all {
			v := views[off/(size/2)%2]
			for at := off; at < off+size/2+100 && at < f.Size; { // over the border
				part, err := v.at(f, at)
				if err != nil || !bytes.Equal(part, datas[i][at:][:len(part)]) {
					t.Fatalf("file %d at %d: %v", i, at, err)
				}
				at += int64(len(part))
			}
		}
	}
	for i, n := range counts {
		for off, times := range n.reads {
			if times != 1 {
				t.Errorf("file %d was read %d times at %d", i, times, off)
			}
		}
	}
	if len(c.held) > c.most {
		t.Errorf("it holds %d chunks, and should hold %d", len(c.held), c.most)
	}
}

// TestCacheOfMany has more readers than it has room for, everywhere at once.
func TestCacheOfMany(t *testing.T) {
	const readers = 12
	data, f := image(100<<10, 4096)
	n := &counting{ReaderAt: bytes.NewReader(data), reads: map[int64]int{}}
	c, from := newCache(1), &File{f, n}
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			random, v := rand.New(rand.NewPCG(1, uint64(i))), view{c: c}
			for range 2000 {
				off := random.Int64N(f.Size)
				if part, err := v.at(from, off); err != nil || !bytes.Equal(part, data[off:][:len(part)]) {
					t.Errorf("at %d: %v", off, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if len(c.held) > c.most+readers {
		t.Errorf("it holds %d chunks", len(c.held))
	}
	if _, err := (&view{c: c}).at(from, f.Size); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// TestCacheForgetsDamage: all who wait for a damaged chunk hear of it, and get nothing of
// it. It is not kept: when the file is put back, it is read again.
func TestCacheForgetsDamage(t *testing.T) {
	data, f := image(8192, 4096)
	c, from := newCache(1), &File{f, bytes.NewReader(data)}
	data[5000] ^= 1
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			v := view{c: c}
			for range 100 {
				part, err := v.at(from, 4096)
				if d, ok := errors.AsType[*Damage](err); !ok || d.Offset != 4096 || part != nil {
					t.Errorf("%d bytes, %v", len(part), err)
				}
				if _, err := v.at(from, 10); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	data[5000] ^= 1
	if part, err := (&view{c: c}).at(from, 4096); err != nil || !bytes.Equal(part, data[4096:]) {
		t.Errorf("put back: %v", err)
	}
}
