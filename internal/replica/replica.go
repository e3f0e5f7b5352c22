// Package replica keeps copies of checkpoints in object storage. A copy is a bundle (see
// package bundle) that is cut into pieces, and an index that lists them.
//
// Every copy that is made is an upload with an id of its own, which is random. Below a
// prefix, the one of the sandbox, there are
//
//   - PREFIX/UPLOAD/index-HEX, by the digest of what is in it, which is put last: an upload
//     without one is not complete, and
//   - PREFIX/UPLOAD/HEX, a piece by its digest.
//
// An index may refer to pieces of earlier uploads below its prefix, and to no others. So no
// key is ever written twice, and one that nothing needs and no upload under way has just put
// is never needed again.
//
// What is read is what was written, or an error: the database has the key of the index, and
// with it the digest of the index, which has those of the pieces; each is compared before a
// byte is handed on. So whoever can write to the object storage can remove or damage a copy,
// and not put another memory image in its place.
//
// Indexes and pieces are encrypted (see package seal) with a random key that the database
// has too. A copy has that of the copy whose pieces it refers to; one that refers to none has
// a new one. Copies that were made before that are plain, and have no key: they are read, and
// not referred to. Nothing is compressed.
package replica

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/replica/seal"
)

const (
	// version numbers the form of an index. It rises with every change that a program made
	// for the old form would refuse or misread.
	version = 1

	codeDamaged = "replica_damaged"
	codeLarge   = "blob_too_large" // of a store
)

// What a copy is bounded by.
const (
	maxPiece  = 4 << 20
	maxPieces = 1 << 18
	maxIndex  = 32 << 20
	// maxUploads is how many uploads may have pieces of one copy.
	maxUploads = 4096
)

var (
	uploadID  = lazyregexp.New(`^[a-z2-7]{26}$`)
	pieceSum  = lazyregexp.New(`^[0-9a-f]{64}$`)
	indexName = lazyregexp.New(`^index-[0-9a-f]{64}$`)
)

// Copy is what the database knows of a copy, and nobody reads it without.
type Copy struct {
	Index string   // what its index is under
	Key   seal.Key // empty for one that is not encrypted
}

// Index lists the pieces of a copy in the order of the stream.
type Index struct {
	// Uploads are the prefixes of what it refers to, "PREFIX/UPLOAD".
	Uploads []string
	Pieces  []Piece
	Key     seal.Key // of the copy
}

// Piece is a part of the stream.
type Piece struct {
	Size   int64
	Digest string // by the key of the copy; "" for a piece of zeros, which is nowhere
	Upload int    // of Index.Uploads, whose it is
}

// Size is how many bytes the stream has.
func (x Index) Size() (n int64) {
	for _, p := range x.Pieces {
		n += p.Size
	}
	return n
}

// Keys returns what the pieces are under, sorted.
func (x Index) Keys() []string {
	keys := make([]string, 0, len(x.Pieces))
	for _, p := range x.Pieces {
		if p.Digest != "" {
			keys = append(keys, x.at(p))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// at returns what a piece is under.
func (x Index) at(p Piece) string { return x.Uploads[p.Upload] + "/" + p.Digest }

// Unshared returns the keys that only the old copy needs, the one of its index among them.
func Unshared(old, current Index, oldKey string) []string {
	needed := current.Keys()
	keys := slices.DeleteFunc(old.Keys(), func(k string) bool {
		_, found := slices.BinarySearch(needed, k)
		return found
	})
	return append(keys, oldKey)
}

// indexForm is an index as it is written.
type indexForm struct {
	Version int         `json:"version"`
	Uploads []string    `json:"uploads"`
	Pieces  []pieceForm `json:"pieces"`
}

type pieceForm struct {
	Size   int64  `json:"size"`
	Digest string `json:"sha256,omitempty"`
	Upload int    `json:"upload,omitempty"`
}

// encode returns an index as it is written.
func (x Index) encode() ([]byte, error) {
	f := indexForm{Version: version, Uploads: x.Uploads, Pieces: make([]pieceForm, len(x.Pieces))}
	for i, p := range x.Pieces {
		f.Pieces[i] = pieceForm(p)
	}
	data, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	if len(x.Pieces) > maxPieces || len(x.Uploads) > maxUploads || len(data) > maxIndex {
		return nil, tooLarge()
	}
	return data, nil
}

func tooLarge() error {
	return errdef.New(errdef.Unsupported, "not_portable", "the sandbox is too large for a copy of it, which can have %d pieces of %d MiB", maxPieces, maxPiece>>20).
		WithRemedy("remove what is not needed inside the sandbox, and pause it again")
}

// indexKey returns what an index is under, which says what is in it.
func indexKey(upload string, key seal.Key, data []byte) string {
	return upload + "/index-" + key.Digest(data)
}

// ReadIndex reads the index of a copy. One that is not what was written is an
// errdef.Unavailable with code "replica_damaged", and one of a newer version an
// errdef.Unsupported with code "replica_too_new".
func ReadIndex(ctx context.Context, from blobs.Store, c Copy) (Index, error) {
	key := c.Index
	data, err := from.Get(ctx, key, maxIndex+seal.Overhead)
	switch {
	case errdef.Is(err, errdef.NotFound):
		return Index{}, damaged("its index %s is not in %s", key, from)
	case errdef.CodeOf(err) == codeLarge:
		return Index{}, damaged("its index is larger than any that is written: %w", err)
	case err != nil:
		return Index{}, fmt.Errorf("read index of a copy: %w", err)
	}
	data, err = c.Key.Open(key, data)
	if err != nil || key != indexKey(path.Dir(key), c.Key, data) {
		return Index{}, damaged("its index %s in %s is not what was written", key, from)
	}
	x, err := decode(data, key)
	x.Key = c.Key
	return x, err
}

// decode reads the index that is under a key. That a server wrote it does not mean that it
// is of this form.
func decode(data []byte, key string) (Index, error) {
	var form struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &form); err != nil {
		return Index{}, damaged("its index %s: %w", key, err)
	}
	if form.Version > version {
		return Index{}, errdef.New(errdef.Unsupported, "replica_too_new", "the copy of the checkpoint has format %d and this server reads format %d", form.Version, version).
			WithRemedy("use the version that wrote it, or a newer one")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var f indexForm
	if err := dec.Decode(&f); err != nil {
		return Index{}, damaged("its index %s: %w", key, err)
	}
	if dec.InputOffset() != int64(len(data)) {
		return Index{}, damaged("its index %s goes on after its end", key)
	}
	return f.index(key)
}

// index returns the index that f is, if it is within all bounds and refers to nothing that
// is not of the same sandbox.
func (f indexForm) index(key string) (Index, error) {
	if f.Version != version || len(f.Pieces) == 0 || len(f.Pieces) > maxPieces || len(f.Uploads) > maxUploads {
		return Index{}, damaged("its index %s has version %d, %d pieces and %d uploads", key, f.Version, len(f.Pieces), len(f.Uploads))
	}
	prefix := prefixOf(key)
	for _, u := range f.Uploads {
		if id, below := strings.CutPrefix(u, prefix+"/"); !below || !uploadID.MatchString(id) {
			return Index{}, damaged("its index %s refers to %.200q", key, u)
		}
	}
	x := Index{Uploads: f.Uploads, Pieces: make([]Piece, len(f.Pieces))}
	for i, p := range f.Pieces {
		zeros := p.Digest == ""
		if p.Size < 1 || p.Size > maxPiece || zeros && p.Upload != 0 || !zeros && (!pieceSum.MatchString(p.Digest) || p.Upload < 0 || p.Upload >= len(f.Uploads)) {
			return Index{}, damaged("piece %d in its index %s is %.200q of upload %d and has %d bytes", i, key, p.Digest, p.Upload, p.Size)
		}
		x.Pieces[i] = Piece(p)
	}
	return x, nil
}

// prefixOf returns the prefix of the upload that a key is of.
func prefixOf(key string) string { return path.Dir(path.Dir(key)) }

// damaged says that a copy is not what was written.
func damaged(format string, args ...any) error {
	return errdef.New(errdef.Unavailable, codeDamaged, "the copy of the checkpoint is damaged: %w", fmt.Errorf(format, args...)).
		WithRemedy("start the server that had the sandbox: its checkpoint is there")
}
