package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// source is where the archive of a layer comes from.
type source struct {
	diffID v1.Hash // of the uncompressed archive
	digest v1.Hash // of what open returns; zero where it is not known
	size   int64   // likewise; 0 where it is not known
	// open returns the bytes from an offset on.
	open func(ctx context.Context, offset int64) (io.ReadCloser, error)
}

// name is what the image calls the layer.
func (l source) name() string {
	if l.digest.Hex != "" {
		return l.digest.String()
	}
	return l.diffID.String()
}

// Patience with a connection that breaks.
const (
	fetchTries = 6 // without a byte in between
	firstRetry = 500 * time.Millisecond
)

// resuming reads on from where a connection broke.
type resuming struct {
	ctx    context.Context
	open   func(ctx context.Context, offset int64) (io.ReadCloser, error)
	in     io.ReadCloser // nil when a new one is needed
	offset int64
	size   int64 // 0 where it is not known
	fails  int   // since the last byte
}

// Read implements io.Reader.
func (r *resuming) Read(p []byte) (int, error) {
	if r.size > 0 { // what comes after it is not read: there may be no end of it
		if p = p[:min(int64(len(p)), r.size-r.offset)]; len(p) == 0 {
			return 0, io.EOF
		}
	}
	for {
		n, err := r.try(p)
		if n > 0 {
			r.offset += int64(n)
			r.fails = 0
			return n, nil
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) && (r.size == 0 || r.offset >= r.size) {
			return 0, io.EOF
		}
		r.drop()
		if r.fails++; r.fails >= fetchTries || !passing(err) || r.ctx.Err() != nil {
			return 0, brokenOff(r.offset, err)
		}
		wait := time.NewTimer(firstRetry << (r.fails - 1))
		select {
		case <-wait.C:
		case <-r.ctx.Done():
			wait.Stop()
			return 0, r.ctx.Err()
		}
	}
}

// brokenOff is the error of a stream that cannot be read on.
func brokenOff(offset int64, err error) error {
	if _, ok := errors.AsType[*errdef.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errdef.New(errdef.Unavailable, "image_unavailable", "a layer broke off after %d bytes: %w", offset, err).
		WithRemedy("try again; layers that were finished are not fetched again")
}

// passing reports whether another try may succeed.
func passing(err error) bool {
	e, ok := errors.AsType[*errdef.Error](err)
	return !ok || e.Class == errdef.Unavailable
}

func (r *resuming) try(p []byte) (int, error) {
	if r.in == nil {
		in, err := r.open(r.ctx, r.offset)
		if err != nil {
			return 0, err
		}
		r.in = in
	}
	return r.in.Read(p)
}

func (r *resuming) drop() {
	if r.in != nil {
		r.in.Close()
	}
	r.in = nil
}

// Close implements io.Closer.
func (r *resuming) Close() error {
	r.drop()
	return nil
}

// expanding is an archive without its compression. It is bounded, and ends with its
// context: work for a client that has gone goes on for one read.
type expanding struct {
	ctx    context.Context
	limits Limits
	what   string // that it is, for errors

	compressed *metered
	plain      io.Reader
	closePlain func()
	n          int64

	check   func() error // whether there is room on the disk; nil for no check
	checked int64        // how much had been read at the last check
}

// checkEvery is how many bytes are unpacked between two looks at the disk.
const checkEvery = 16 << 20

// expand begins to read an archive. in is closed with the result, or here if this
// fails.
func (s *Store) expand(ctx context.Context, what string, in *metered) (*expanding, error) {
	plain, closePlain, err := decompress(bufio.NewReaderSize(in, 256<<10))
	if err != nil {
		in.in.Close()
		return nil, err
	}
	return &expanding{ctx: ctx, limits: s.limits, what: what, compressed: in, plain: plain, closePlain: closePlain, check: s.Check}, nil
}

// Read implements io.Reader.
func (r *expanding) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.plain.Read(p)
	r.n += int64(n)
	if r.check != nil && r.n >= r.checked+checkEvery {
		r.checked = r.n
		if err := r.check(); err != nil {
			return n, err
		}
	}
	switch {
	case r.n > r.limits.Bytes:
		return n, tooLarge("%s has more than %d MiB", r.what, r.limits.Bytes>>20)
	case r.n > RatioFrom && r.n > r.limits.Ratio*r.compressed.n:
		return n, tooLarge("%s of %d bytes expands to more than %d times as many", r.what, r.compressed.n, r.limits.Ratio)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.undecodable(err)
	}
	return n, err
}

// undecodable gives an error of the decompression its class; those of the
// connection keep theirs.
func (r *expanding) undecodable(err error) error {
	if r.compressed.err != nil {
		return r.compressed.err
	}
	return damaged("%s cannot be decompressed: %v", r.what, err)
}

// Close implements io.Closer.
func (r *expanding) Close() error {
	r.closePlain()
	return r.compressed.in.Close()
}

// layerReader is the archive of a layer. finish checks it against its digests.
type layerReader struct {
	*expanding
	l   source
	sum hash.Hash
}

// open begins to fetch a layer.
func (s *Store) open(ctx context.Context, l source, progress func(Progress)) (*layerReader, error) {
	m := &metered{in: &resuming{ctx: ctx, open: l.open, size: l.size}, sum: sha256.New(), told: time.Now(), tell: func(done int64) {
		progress(Progress{Layer: l.name(), State: Fetching, Done: done, Size: l.size})
	}}
	m.tell(0)
	in, err := s.expand(ctx, "a layer", m)
	if err != nil {
		return nil, err
	}
	return &layerReader{expanding: in, l: l, sum: sha256.New()}, nil
}

// decompress finds out by the first bytes what a stream is, whatever its
// manifest says.
func decompress(in *bufio.Reader) (plain io.Reader, end func(), err error) {
	head, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, damaged("a layer cannot be decompressed: %v", err)
		}
		return z, func() { _ = z.Close() }, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, damaged("a layer cannot be decompressed: %v", err)
		}
		return z, z.Close, nil
	}
	return in, func() {}, nil
}

// Read implements io.Reader.
func (r *layerReader) Read(p []byte) (int, error) {
	n, err := r.expanding.Read(p)
	r.sum.Write(p[:n])
	return n, err
}

// finish reads what follows the archive, and checks the digests.
func (r *layerReader) finish() error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, r.compressed); err != nil {
		return err
	}
	if got := fmt.Sprintf("%x", r.sum.Sum(nil)); got != r.l.diffID.Hex {
		return damaged("the contents of layer %s have the digest sha256:%s, and the image's configuration says %s", r.l.name(), got, r.l.diffID)
	}
	if got := fmt.Sprintf("%x", r.compressed.sum.Sum(nil)); r.l.digest.Hex != "" && got != r.l.digest.Hex {
		return damaged("layer %s was received with the digest sha256:%s", r.l.name(), got)
	}
	return nil
}

// metered counts what is read, takes its digest, and tells of it.
type metered struct {
	in   io.ReadCloser
	sum  hash.Hash
	n    int64
	err  error // but io.EOF
	told time.Time
	tell func(done int64) // nil for nobody
}

// Read implements io.Reader.
func (m *metered) Read(p []byte) (int, error) {
	n, err := m.in.Read(p)
	m.sum.Write(p[:n])
	m.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		m.err = err
	}
	if now := time.Now(); m.tell != nil && now.Sub(m.told) >= progressEvery {
		m.told = now
		m.tell(m.n)
	}
	return n, err
}
