package quota

import (
	"fmt"
	"math"

	"github.com/drowse-dev/drowse/internal/layer"
)

const (
	// BytesPerName is how many bytes of a limit allow for one name, as many as
	// on a disk of that size formatted for general use.
	BytesPerName = 16 << 10
	// LeastSlack is what a sandbox that woke past its limit may write at least,
	// so that it can be helped from inside: programs that it runs may be copied.
	LeastSlack = 32 << 20
)

// OfDisk is what a limit allows; zero if there is none.
func OfDisk(diskMiB int) layer.Usage {
	if diskMiB == 0 {
		return layer.Usage{}
	}
	bytes := int64(diskMiB) << 20
	return layer.Usage{Bytes: bytes, Files: bytes / BytesPerName, NameBytes: math.MaxInt64}
}

// OfSandbox is what a sandbox may have: also one without a limit has one on
// its names, half of those that a layer may have, so that it can still be paused
// when it is found past them.
func OfSandbox(diskMiB int) layer.Usage {
	limit := OfDisk(diskMiB)
	if diskMiB == 0 {
		limit = layer.Unbounded
	}
	limit.Files = min(limit.Files, layer.MaxNames/2)
	limit.NameBytes = layer.MaxNameBytes / 2
	return limit
}

// Slack is how much may be had where there was too much before.
func Slack(had, limit layer.Usage) layer.Usage {
	bytes := max(limit.Bytes/64, LeastSlack)
	files := bytes / BytesPerName
	return had.Most(limit).Plus(layer.Usage{Bytes: bytes, Files: min(files, layer.MaxNames/64), NameBytes: layer.MaxNameBytes / 64})
}

// Describe says what is past the limit, and the limit, which is whose.
func Describe(taken, limit layer.Usage, whose string) string {
	switch {
	case taken.Bytes > limit.Bytes:
		return fmt.Sprintf("%d MiB, and %s limit is %d MiB", taken.Bytes>>20, whose, limit.Bytes>>20)
	case taken.Files > limit.Files && limit.Files == limit.Bytes/BytesPerName:
		return fmt.Sprintf("%d names, one for each %d KiB, and %s limit is %d MiB", taken.Files, BytesPerName>>10, whose, limit.Bytes>>20)
	case taken.Files > limit.Files:
		return fmt.Sprintf("%d names, and no sandbox may have more than %d", taken.Files, limit.Files)
	}
	return fmt.Sprintf("%d MiB of names, and no sandbox may have more than %d MiB", taken.NameBytes>>20, limit.NameBytes>>20)
}
