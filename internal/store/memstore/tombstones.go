package memstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// CommitEnd implements store.Store.
func (s *Store) CommitEnd(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry) (forgotten []string, err error) {
	if !sb.Ended() {
		return nil, s.commit(ctx, sb, entries, beside{})
	}
	err = s.commit(ctx, sb, entries, beside{also: func() { forgotten = s.d.forgetOldest(s.d.boxes[sb.ID].given) }})
	return forgotten, err
}

// forgetOldest forgets what has ended of an API key and is too much on a server beside the
// sandbox that has just ended there, and returns the ids.
func (d *Data) forgetOldest(sb store.Sandbox) (forgotten []string) {
	var all []stored
	for _, x := range d.boxes {
		if x.given.Owner == sb.Owner && x.given.Config.Key == sb.Config.Key && x.given.Ended() && x.given.ID != sb.ID {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b stored) int {
		return cmp.Or(endOf(a).Compare(endOf(b)), cmp.Compare(a.given.ID, b.given.ID))
	})
	count, size := len(all)+1, len(d.boxes[sb.ID].data)
	for _, x := range all {
		size += len(x.data)
	}
	for _, x := range all {
		if count > store.MostTombstones || size > store.MostTombstoneBytes {
			count, size = count-1, size-len(x.data)
			d.forget(x.given)
			forgotten = append(forgotten, x.given.ID)
		}
	}
	return forgotten
}

func endOf(x stored) time.Time {
	if t := x.given.Record.Tombstone; t != nil {
		return t.At
	}
	return x.given.Record.CreatedAt
}
