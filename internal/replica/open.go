package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/replica/seal"
)

// ahead is how many pieces are read at once, before they are asked for.
const ahead = 4

// Open returns the stream of a copy. What cannot be read as it was written is an
// errdef.Unavailable with code "replica_damaged". Close must be called; reading ends with
// ctx, too.
func Open(ctx context.Context, from blobs.Store, x Index) *Reader {
	r := &Reader{parent: ctx, from: from, index: x}
	r.start(0)
	return r
}

// Reader is the stream of a copy, for one goroutine at a time.
type Reader struct {
	parent context.Context
	from   blobs.Store
	index  Index
	at     int64 // of what is read next

	// Of the pieces from one on.
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	queue   chan chan fetched // of the pieces in their order; closed after the last
	piece   []byte            // what is left of the one that is being read
	err     error             // what every further Read returns
}

// start has the pieces read from the n-th on.
func (r *Reader) start(n int) {
	ctx, cancel := context.WithCancel(r.parent)
	queue := make(chan chan fetched, ahead-1)
	r.ctx, r.cancel, r.queue, r.piece = ctx, cancel, queue, nil
	r.running.Go(func() { r.fetch(ctx, queue, n) })
}

// Seek implements io.Seeker for offsets ahead, from what is read next. What is skipped is not
// read from the store.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekCurrent || offset < 0 {
		return r.at, errors.New("internal error: a copy is read from its begin to its end")
	}
	if r.err != nil || offset <= int64(len(r.piece)) {
		offset = min(offset, int64(len(r.piece)))
		r.piece, r.at = r.piece[offset:], r.at+offset
		return r.at, nil
	}
	r.cancel()
	r.running.Wait()
	r.at += offset
	n, start := r.index.pieceAt(r.at)
	r.start(n)
	if skip := r.at - start; skip > 0 {
		if r.err = r.next(); r.err != nil {
			return r.at, r.err
		}
		r.piece = r.piece[skip:]
	}
	return r.at, nil
}

// pieceAt returns which piece has an offset of the stream, and where it begins.
func (x Index) pieceAt(off int64) (n int, start int64) {
	for n < len(x.Pieces) && start+x.Pieces[n].Size <= off {
		start += x.Pieces[n].Size
		n++
	}
	return n, start
}

// Part returns a part of the stream, which may be read when the Reader is closed.
func (r *Reader) Part(off, size int64) Part {
	n, start := r.index.pieceAt(off)
	p := Part{from: r.from, index: r.index, first: n, size: size}
	for end := off + size; start < end && n < len(r.index.Pieces); n++ {
		p.starts = append(p.starts, start-off)
		start += r.index.Pieces[n].Size
	}
	return p
}

// Part is a part of the stream of a copy, of which each piece is read by itself, in any order.
type Part struct {
	from   blobs.Store
	index  Index
	first  int     // piece of the index that it begins in
	starts []int64 // where each piece begins; of the first it may be below 0
	size   int64
}

// fetched is a piece that was read, or why it was not.
type fetched struct {
	data []byte
	err  error
}

// fetch reads the pieces, each in a goroutine that begins when there is a place in the
// queue: so no more are in memory than the queue has, one before and one after it.
func (r *Reader) fetch(ctx context.Context, queue chan<- chan fetched, first int) {
	defer close(queue)
	for i, p := range r.index.Pieces[first:] {
		slot := make(chan fetched, 1)
		select {
		case queue <- slot:
		case <-ctx.Done():
			return
		}
		if p.Digest == "" {
			slot <- fetched{data: zeros[:p.Size]}
			continue
		}
		r.running.Go(func() {
			data, err := get(ctx, r.from, r.index, p)
			if err != nil {
				err = fmt.Errorf("read piece %d of a copy: %w", first+i, err)
			}
			slot <- fetched{data, err}
		})
	}
}

// get reads one piece, and returns it if it is what was written.
func get(ctx context.Context, from blobs.Store, x Index, p Piece) ([]byte, error) {
	key := x.at(p)
	data, err := from.Get(ctx, key, maxPiece+seal.Overhead)
	switch {
	case errdef.Is(err, errdef.NotFound):
		return nil, damaged("%s is not in %s", key, from)
	case errdef.CodeOf(err) == codeLarge:
		return nil, damaged("a piece of it is larger than any that is written: %w", err)
	case err != nil:
		return nil, err
	}
	data, err = x.Key.Open(key, data)
	if err != nil || int64(len(data)) != p.Size || x.Key.Digest(data) != p.Digest {
		return nil, damaged("%s in %s is not what was written", key, from)
	}
	return data, nil
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	for len(r.piece) == 0 && r.err == nil {
		r.err = r.next()
	}
	if r.err != nil {
		return 0, r.err
	}
	n := copy(p, r.piece)
	r.piece, r.at = r.piece[n:], r.at+int64(n)
	return n, nil
}

// next waits for the next piece.
func (r *Reader) next() error {
	select {
	case slot, ok := <-r.queue:
		if !ok {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			return io.EOF
		}
		select {
		case f := <-slot:
			r.piece = f.data
			return f.err
		case <-r.ctx.Done():
		}
	case <-r.ctx.Done():
	}
	return r.ctx.Err()
}

// WriteTo implements io.WriterTo, without a copy of each piece.
func (r *Reader) WriteTo(w io.Writer) (n int64, err error) {
	for {
		for len(r.piece) == 0 && r.err == nil {
			r.err = r.next()
		}
		if r.err == io.EOF { //nolint:errorlint // it is exactly that
			return n, nil
		}
		if r.err != nil {
			return n, r.err
		}
		some, err := io.Copy(w, bytes.NewReader(r.piece))
		r.piece, r.at, n = r.piece[some:], r.at+some, n+some
		if err != nil {
			return n, err
		}
	}
}

// Close ends the stream, and returns when nothing of it runs any more.
func (r *Reader) Close() error {
	r.cancel()
	r.running.Wait()
	r.piece, r.err = nil, os.ErrClosed
	return nil
}
