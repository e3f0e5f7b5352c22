package replica

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/drowse-dev/drowse/internal/replica/seal"
)

// Size is how many bytes the part has.
func (p Part) Size() int64 { return p.size }

// Pieces is how many pieces have something of it.
func (p Part) Pieces() int { return len(p.starts) }

// PieceAt returns which piece has an offset, and from where to where that goes.
func (p Part) PieceAt(off int64) (n int, start, end int64) {
	n, found := slices.BinarySearch(p.starts, off)
	if !found {
		n--
	}
	start, end = p.Bounds(n)
	return n, start, end
}

// Bounds returns from where to where a piece goes, within the part.
func (p Part) Bounds(n int) (start, end int64) {
	start = p.starts[n]
	return max(start, 0), min(start+p.index.Pieces[p.first+n].Size, p.size)
}

// Zeros reports whether a piece has nothing but zeros.
func (p Part) Zeros(n int) bool { return p.index.Pieces[p.first+n].Digest == "" }

// Read returns what the part has of a piece, as it was written. What cannot be read so is an
// errdef.Unavailable with code "replica_damaged".
func (p Part) Read(ctx context.Context, n int) ([]byte, error) {
	start, end := p.Bounds(n)
	piece := p.index.Pieces[p.first+n]
	if piece.Digest == "" {
		return zeros[:end-start], nil
	}
	data, err := get(ctx, p.from, p.index, piece)
	if err != nil {
		return nil, fmt.Errorf("read piece %d of a copy: %w", p.first+n, err)
	}
	return data[start-p.starts[n]:][:end-start], nil
}

// Check looks whether all pieces are there, with their sizes: it reads none. It is an
// errdef.Unavailable with code "replica_damaged" if not.
func (p Part) Check(ctx context.Context) error {
	missing := map[string]int64{} // sizes, by key
	uploads := map[string]bool{}
	for _, piece := range p.index.Pieces[p.first:][:len(p.starts)] {
		if piece.Digest == "" {
			continue
		}
		key, size := p.index.at(piece), piece.Size
		if p.index.Key != "" {
			size += seal.Overhead
		}
		missing[key], uploads[path.Dir(key)] = size, true
	}
	for upload := range uploads {
		for blob, err := range p.from.List(ctx, upload) {
			if err != nil {
				return fmt.Errorf("look at a copy: %w", err)
			}
			if size, needed := missing[blob.Key]; needed && size == blob.Size {
				delete(missing, blob.Key)
			}
		}
	}
	for key := range missing {
		return damaged("%s is not in %s as it was written, and %d others are not", key, p.from, len(missing)-1)
	}
	return nil
}
