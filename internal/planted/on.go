//go:build plant

// Package planted holds bugs that tests plant into the supervisor. Tests set
// one at a time, while no supervisor is at work.
package planted

// The bugs, as the build without the tag describes them.
var (
	DroppedBarrier   bool
	ReusedGeneration bool
	EarlyAnswer      string
)
