package replica

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/replica/seal"
)

const (
	uploads = 4 // pieces that are put at once; so many and one more are in memory
	// tidyFor is for how long an upload that failed removes what it has put.
	tidyFor = 10 * time.Second
	// removeAtOnce is how many keys a store is asked to remove at once.
	removeAtOnce = 1000
)

// zeros are what a piece of zeros has.
var zeros = make([]byte, maxPiece)

// Write makes a copy below a prefix of what write writes. Pieces that base has, a copy below
// the same prefix that is encrypted too, are not put again, but referred to; nil for none.
// sent is how many bytes were put. After an error nothing is left, unless the store does not
// answer.
func Write(ctx context.Context, to blobs.Store, prefix string, base *Index, write func(io.Writer) error) (c Copy, x Index, sent int64, err error) {
	upload := prefix + "/" + strings.ToLower(rand.Text())
	group, putting := errgroup.WithContext(ctx)
	group.SetLimit(uploads)
	w := &writer{ctx: putting, group: group, to: to, upload: upload, index: Index{Uploads: []string{upload}, Key: seal.New()}}
	w.known, w.used, w.free = map[string]Piece{}, map[int]int{}, make(chan []byte, uploads+1)
	w.refer(base, prefix)
	err = write(w)
	if err == nil {
		err = w.Cut()
	}
	if putErr := group.Wait(); putErr != nil {
		err = putErr // write was told of it at most
	}
	if err == nil {
		c, err = w.finish(ctx)
	}
	if err != nil {
		w.tidy(ctx)
		return Copy{}, Index{}, w.sent, fmt.Errorf("copy checkpoint to %s: %w", to, err)
	}
	return c, w.index, w.sent, nil
}

// writer cuts what is written to it into pieces, and puts them. It is a bundle.Cutter.
type writer struct {
	ctx    context.Context
	group  *errgroup.Group
	to     blobs.Store
	upload string
	index  Index
	base   []string         // uploads of the base
	used   map[int]int      // those of base that the index has, by their number there
	known  map[string]Piece // by digest: in index, or in base and then with Upload below 0
	put    []string         // keys
	sent   int64

	buf  []byte
	free chan []byte // buffers that nothing uses now
}

var _ bundle.Cutter = (*writer)(nil)

// refer notes what base has, as pieces of upload -1 for the first of base and so on, and has
// its key used.
func (w *writer) refer(base *Index, prefix string) {
	if base == nil || base.Key == "" {
		return
	}
	w.base, w.index.Key = base.Uploads, base.Key
	for _, p := range base.Pieces {
		if p.Digest != "" && strings.HasPrefix(base.Uploads[p.Upload], prefix+"/") {
			w.known[p.Digest] = Piece{Size: p.Size, Digest: p.Digest, Upload: -1 - p.Upload}
		}
	}
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if w.buf == nil {
			w.buf = w.buffer()
		}
		some := copy(w.buf[len(w.buf):maxPiece], p)
		w.buf = w.buf[:len(w.buf)+some]
		n, p = n+some, p[some:]
		if len(w.buf) == maxPiece {
			if err := w.Cut(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (w *writer) buffer() []byte {
	select {
	case b := <-w.free:
		return b[:0]
	default:
		return make([]byte, 0, maxPiece+seal.Overhead)
	}
}

// Cut ends the piece that is being written.
func (w *writer) Cut() error {
	if err := context.Cause(w.ctx); err != nil {
		return err
	}
	if len(w.buf) == 0 {
		return nil
	}
	if len(w.index.Pieces) == maxPieces {
		return tooLarge()
	}
	w.index.Pieces = append(w.index.Pieces, w.piece())
	return nil
}

// piece returns what the buffer is in the index, and puts it if it is not anywhere yet.
func (w *writer) piece() Piece {
	p := Piece{Size: int64(len(w.buf))}
	if allZero(w.buf) {
		w.buf = w.buf[:0]
		return p
	}
	p.Digest = w.index.Key.Digest(w.buf)
	if is, ok := w.find(p); ok {
		w.buf = w.buf[:0]
		return is
	}
	w.known[p.Digest] = p
	at, data := w.index.at(p), w.buf
	w.put, w.sent, w.buf = append(w.put, at), w.sent+p.Size, nil
	w.group.Go(func() error { // waits for its turn
		err := w.to.Put(w.ctx, at, w.index.Key.Seal(at, data))
		w.free <- data
		return err
	})
	return p
}

// find returns a piece that is there already. A copy does not refer to more uploads than
// it may.
func (w *writer) find(p Piece) (Piece, bool) {
	is, ok := w.known[p.Digest]
	if !ok || is.Size != p.Size || is.Upload >= 0 {
		return is, ok && is.Size == p.Size
	}
	base := -1 - is.Upload
	n, used := w.used[base]
	if !used {
		if n = len(w.index.Uploads); n == maxUploads {
			return is, false
		}
		w.index.Uploads = append(w.index.Uploads, w.base[base])
		w.used[base] = n
	}
	is.Upload = n
	w.known[p.Digest] = is
	return is, true
}

func allZero(data []byte) bool { return string(data) == string(zeros[:len(data)]) }

// finish puts the index, which makes the copy complete.
func (w *writer) finish(ctx context.Context) (Copy, error) {
	data, err := w.index.encode()
	if err != nil {
		return Copy{}, err
	}
	c := Copy{Index: indexKey(w.upload, w.index.Key, data), Key: w.index.Key}
	w.put = append(w.put, c.Index)
	return c, w.to.Put(ctx, c.Index, c.Key.Seal(c.Index, data))
}

// tidy removes what was put, as far as that goes: Sweep removes what is left.
func (w *writer) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyFor)
	defer cancel()
	_, _ = Remove(ctx, w.to, w.put...)
}
