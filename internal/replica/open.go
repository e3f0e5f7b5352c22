package replica

import (
	"bytes"
	"context"
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
func Open(ctx context.Context, from blobs.Store, x Index) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{ctx: ctx, cancel: cancel, queue: make(chan chan fetched, ahead-1)}
	r.running.Go(func() { r.fetch(from, x) })
	return r
}

// reader is the stream of a copy, for one goroutine at a time.
type reader struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	queue   chan chan fetched // of the pieces in their order; closed after the last
	piece   []byte            // what is left of the one that is being read
	err     error             // what every further Read returns
}

// fetched is a piece that was read, or why it was not.
type fetched struct {
	data []byte
	err  error
}

// fetch reads the pieces, each in a goroutine that begins when there is a place in the
// queue: so no more are in memory than the queue has, one before and one after it.
func (r *reader) fetch(from blobs.Store, x Index) {
	defer close(r.queue)
	for i, p := range x.Pieces {
		slot := make(chan fetched, 1)
		select {
		case r.queue <- slot:
		case <-r.ctx.Done():
			return
		}
		if p.Digest == "" {
			slot <- fetched{data: zeros[:p.Size]}
			continue
		}
		r.running.Go(func() {
			data, err := get(r.ctx, from, x, p)
			if err != nil {
				err = fmt.Errorf("read piece %d of a copy: %w", i, err)
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
func (r *reader) Read(p []byte) (int, error) {
	for len(r.piece) == 0 && r.err == nil {
		r.err = r.next()
	}
	if r.err != nil {
		return 0, r.err
	}
	n := copy(p, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

// next waits for the next piece.
func (r *reader) next() error {
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
func (r *reader) WriteTo(w io.Writer) (n int64, err error) {
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
		r.piece, n = r.piece[some:], n+some
		if err != nil {
			return n, err
		}
	}
}

// Close ends the stream, and returns when nothing of it runs any more.
func (r *reader) Close() error {
	r.cancel()
	r.running.Wait()
	r.piece, r.err = nil, os.ErrClosed
	return nil
}
