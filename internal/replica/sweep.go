package replica

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// sweepAtOnce is how many blobs are listed before the indexes are asked about them.
const sweepAtOnce = 1 << 17

// Sweep removes what no copy below a prefix needs: uploads that were broken off, and what
// is left of copies that were replaced or are of sandboxes that have ended. needed returns
// all copies there are.
//
// It first lists, and asks what is needed afterwards: an upload that is completed meanwhile
// is needed by then. What is younger than grace at now stays, so that uploads under way are
// safe: from its first piece until its index is committed one must take much less than
// grace, by the clocks of this server and of the store. What is removed cannot be needed
// again: a key has the id of its upload, which is random, and is never written twice; and an
// index that comes later refers to pieces of its own upload, and to those of the copy that
// it replaces, which is among those that are needed.
//
// Many blobs are looked at in parts, so that memory is bounded; of a part nothing is removed
// if an index which may need some of it cannot be read. Blobs that are not of the form of a
// copy stay.
func Sweep(ctx context.Context, in blobs.Store, prefix string, needed func(ctx context.Context) ([]Copy, error), grace time.Duration, now time.Time) (removed int, bytes int64, err error) {
	s := sweep{in: in, needed: needed, atOnce: sweepAtOnce, found: map[string]int64{}}
	err = s.all(ctx, prefix, now.Add(-grace))
	if err != nil {
		err = fmt.Errorf("sweep copies in %s: %w", in, err)
	}
	return s.removed, s.bytes, err
}

type sweep struct {
	in     blobs.Store
	needed func(ctx context.Context) ([]Copy, error)
	atOnce int

	found   map[string]int64 // sizes by key, of what is old and may be needed
	removed int
	bytes   int64
}

func (s *sweep) all(ctx context.Context, prefix string, before time.Time) error {
	for b, err := range s.in.List(ctx, prefix) {
		if err != nil {
			return err
		}
		if !b.At.Before(before) || !ours(b.Key) {
			continue
		}
		s.found[b.Key] = b.Size
		if len(s.found) == s.atOnce {
			if err := s.part(ctx); err != nil {
				return err
			}
		}
	}
	return s.part(ctx)
}

// part removes those of what was found that no index needs.
func (s *sweep) part(ctx context.Context) error {
	if len(s.found) == 0 {
		return nil
	}
	prefixes := map[string]bool{}
	for key := range s.found {
		prefixes[prefixOf(key)] = true
	}
	for try := 0; ; try++ {
		copies, err := s.needed(ctx)
		if err != nil {
			return err
		}
		copies = slices.DeleteFunc(copies, func(c Copy) bool { return !prefixes[prefixOf(c.Index)] }) // they refer to nothing of what was found
		err = s.spare(ctx, copies)
		if err == nil {
			return s.remove(ctx)
		}
		// A copy that is replaced meanwhile has no index any more.
		if errdef.CodeOf(err) != codeDamaged || try == 2 {
			return err
		}
	}
}

// spare takes what copies need out of what was found.
func (s *sweep) spare(ctx context.Context, copies []Copy) error {
	for _, c := range copies {
		x, err := ReadIndex(ctx, s.in, c)
		if err != nil {
			return err
		}
		delete(s.found, c.Index)
		for _, p := range x.Pieces {
			if p.Digest != "" {
				delete(s.found, x.at(p))
			}
		}
	}
	return nil
}

// remove removes what is left of what was found.
func (s *sweep) remove(ctx context.Context) error {
	keys := make([]string, 0, len(s.found))
	for key := range s.found {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	n, err := Remove(ctx, s.in, keys...)
	s.removed += n
	for _, key := range keys[:n] {
		s.bytes += s.found[key]
	}
	clear(s.found)
	return err
}

// ours says whether a key has the form of one that Write puts.
func ours(key string) bool {
	dir, name := path.Split(key)
	return uploadID.MatchString(path.Base(dir)) && prefixOf(key) != "." && (indexName.MatchString(name) || pieceSum.MatchString(name))
}

// Remove removes what is under keys, in parts. After an error it goes on, unless ctx has
// ended. It returns how many of the first keys are gone for certain.
func Remove(ctx context.Context, in blobs.Store, keys ...string) (gone int, err error) {
	for part := range slices.Chunk(keys, removeAtOnce) {
		if ctx.Err() != nil {
			return gone, errors.Join(err, ctx.Err())
		}
		if partErr := in.Remove(ctx, part...); partErr != nil {
			err = errors.Join(err, partErr)
			continue
		}
		if err == nil {
			gone += len(part)
		}
	}
	return gone, err
}
