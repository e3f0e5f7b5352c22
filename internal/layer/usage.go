package layer

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/drowse-dev/drowse/internal/tree"

	"golang.org/x/sys/unix"
)

// Usage is what something takes of a disk: bytes of blocks, and names. A file
// with several names takes its bytes once, but each name counts: to list, verify
// and merge it costs as much as a file.
type Usage struct {
	Bytes     int64
	Files     int64 // names of files and directories
	NameBytes int64 // of all names together
}

// Unbounded is more than anything takes.
var Unbounded = Usage{math.MaxInt64, math.MaxInt64, math.MaxInt64}

// Plus returns the sum of both, as far as there are numbers.
func (u Usage) Plus(v Usage) Usage {
	return Usage{plus(u.Bytes, v.Bytes), plus(u.Files, v.Files), plus(u.NameBytes, v.NameBytes)}
}

func plus(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Most returns the greater of each of both.
func (u Usage) Most(v Usage) Usage {
	return Usage{max(u.Bytes, v.Bytes), max(u.Files, v.Files), max(u.NameBytes, v.NameBytes)}
}

// Minus returns what u has more than v.
func (u Usage) Minus(v Usage) Usage {
	return Usage{u.Bytes - v.Bytes, u.Files - v.Files, u.NameBytes - v.NameBytes}
}

// Least returns the lesser of each of both.
func (u Usage) Least(v Usage) Usage {
	return Usage{min(u.Bytes, v.Bytes), min(u.Files, v.Files), min(u.NameBytes, v.NameBytes)}
}

// Exceeds reports whether u has more of anything than most.
func (u Usage) Exceeds(most Usage) bool {
	return u.Bytes > most.Bytes || u.Files > most.Files || u.NameBytes > most.NameBytes
}

// Usage returns what a layer takes, or, once that is more than enough, what has
// been counted of it. The layer may be a top that a sandbox is changing: it is
// not left on the way, whatever takes the place of a directory meanwhile.
// whiteouts is the part of it that does nothing but hide names of the layers below.
func (s *Store) Usage(ctx context.Context, id string, enough Usage) (u, whiteouts Usage, err error) {
	u, whiteouts, err = usageOf(ctx, s.LayerDir(id), enough)
	if err != nil {
		return Usage{}, Usage{}, fmt.Errorf("usage of layer %s: %w", id, err)
	}
	return u, whiteouts, nil
}

// usageTries is how often a tree is counted in which directories are moved from
// above the one at hand.
const usageTries = 3

// UsageOf returns what any directory takes.
func UsageOf(ctx context.Context, path string, enough Usage) (Usage, error) {
	u, _, err := usageOf(ctx, path, enough)
	return u, err
}

func usageOf(ctx context.Context, path string, enough Usage) (u, whiteouts Usage, err error) {
	for range usageTries {
		if u, whiteouts, err = countUsage(ctx, path, enough); !errors.Is(err, tree.ErrMoved) {
			return u, whiteouts, err
		}
	}
	return u, whiteouts, err
}

// errEnough ends a walk that has counted enough.
var errEnough = errors.New("enough")

func countUsage(ctx context.Context, path string, enough Usage) (u, whiteouts Usage, err error) {
	linked := map[uint64]bool{} // inodes with several names whose bytes have been counted
	err = tree.WalkLive(ctx, path, func(e *tree.Entry) error {
		if e.Depth == 0 {
			return nil
		}
		one := Usage{Files: 1, NameBytes: int64(len(e.Name))}
		if several := e.Stat.Nlink > 1 && e.Kind() != unix.S_IFDIR; !several || !linked[e.Stat.Ino] {
			one.Bytes = e.Stat.Blocks * 512
			if several {
				linked[e.Stat.Ino] = true
			}
		}
		if tree.IsWhiteout(&e.Stat) {
			whiteouts = whiteouts.Plus(one)
		}
		if u = u.Plus(one); u.Exceeds(enough) {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return u, whiteouts, err
}
