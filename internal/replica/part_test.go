package replica

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// TestPassedOverAndReadByParts: what a reader passes over is not read from the store, the rest
// is as it was written, and so is each part, in any order.
func TestPassedOverAndReadByParts(t *testing.T) {
	m := newMemory()
	all := [][]byte{noise(1, 100), noise(2, 20*maxPiece+5), make([]byte, 2*maxPiece+7), noise(3, 100)}
	_, x, _ := mustWrite(t, m, nil, all...)
	stream := bytes.Join(all, nil)
	var mu sync.Mutex
	reads := map[string]int{}
	from := spy{m, func(key string) {
		mu.Lock()
		defer mu.Unlock()
		reads[key]++
	}}

	r := Open(t.Context(), from, x)
	defer r.Close()
	head := make([]byte, 90)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	for _, to := range []int64{95, 150, int64(len(stream)) - 50} { // in the piece, in the next one, far
		at, err := r.Seek(0, io.SeekCurrent)
		if err == nil {
			at, err = r.Seek(to-at, io.SeekCurrent)
		}
		next := make([]byte, 20)
		if err == nil {
			_, err = io.ReadFull(r, next)
		}
		if err != nil || at != to || !bytes.Equal(next, stream[to:to+20]) {
			t.Errorf("at %d, which should be %d, there is %x, %v", at, to, next, err)
		}
	}
	if rest, err := io.ReadAll(r); err != nil || !bytes.Equal(rest, stream[len(stream)-30:]) {
		t.Errorf("the rest has %d bytes, %v", len(rest), err)
	}
	if n := len(reads); n > 2*ahead+5 {
		t.Errorf("%d pieces were read, of %d", n, len(x.Pieces))
	}
	for _, bad := range []struct {
		offset int64
		whence int
	}{{-1, io.SeekCurrent}, {0, io.SeekStart}, {0, io.SeekEnd}} {
		if _, err := r.Seek(bad.offset, bad.whence); err == nil {
			t.Errorf("Seek(%d, %d) succeeds", bad.offset, bad.whence)
		}
	}

	for _, of := range []struct{ off, size int64 }{{0, 100}, {100, int64(len(all[1]))}, {50, 5*maxPiece + 1}, {100 + maxPiece - 1, 2}, {100 + int64(len(all[1])), int64(len(all[2]))}} {
		p := r.Part(of.off, of.size)
		got := make([]byte, of.size)
		for n := p.Pieces() - 1; n >= 0; n-- {
			data, err := p.Read(t.Context(), n)
			start, end := p.Bounds(n)
			if err != nil || int64(len(data)) != end-start {
				t.Fatalf("piece %d of the part at %d has %d bytes, from %d to %d: %v", n, of.off, len(data), start, end, err)
			}
			copy(got[start:], data)
			for _, at := range []int64{start, end - 1} {
				if is, from, to := p.PieceAt(at); is != n || from != start || to != end {
					t.Errorf("%d of the part at %d is in piece %d from %d to %d, and should be in %d", at, of.off, is, from, to, n)
				}
			}
		}
		if !bytes.Equal(got, stream[of.off:of.off+of.size]) {
			t.Errorf("the part at %d differs", of.off)
		}
		if err := p.Check(t.Context()); err != nil {
			t.Errorf("the part at %d: %v", of.off, err)
		}
	}

	// A part that lacks a piece, or has a part of one, is known without that it is read.
	p := r.Part(100, int64(len(all[1])))
	key := x.at(x.Pieces[3])
	data, err := m.Get(t.Context(), key, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	clear(reads)
	from2 := r.Part(0, 100)
	for _, damage := range []func() error{
		func() error {
			is := m.blobs[key]
			is.data = data[1:]
			m.blobs[key] = is
			return nil
		},
		func() error { return m.Remove(t.Context(), key) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		err := p.Check(t.Context())
		wantCode(t, err, errdef.Unavailable, "replica_damaged")
		if err != nil && !strings.Contains(err.Error(), key) {
			t.Errorf("it does not say which piece: %v", err)
		}
		if err := from2.Check(t.Context()); err != nil {
			t.Errorf("a part without it: %v", err)
		}
	}
	if len(reads) != 0 {
		t.Errorf("pieces were read: %v", reads)
	}
	_, err = p.Read(t.Context(), 2)
	wantCode(t, err, errdef.Unavailable, "replica_damaged")
}

// spy tells which blobs are read.
type spy struct {
	*memory
	read func(key string)
}

// Get implements blobs.Store.
func (s spy) Get(ctx context.Context, key string, most int64) ([]byte, error) {
	s.read(key)
	return s.memory.Get(ctx, key, most)
}
