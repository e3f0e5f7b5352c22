//go:build !plant

// Package planted holds bugs that tests plant into the supervisor, to see that
// the checks of histories find them. Without the build tag plant they are
// constants, and the compiler leaves them out.
package planted

// The bugs.
const (
	// DroppedBarrier lets accesses through while a pause is under way.
	DroppedBarrier = false
	// ReusedGeneration has a resume serve under the number of the generation
	// that was paused.
	ReusedGeneration = false
	// EarlyAnswer is the phase of operations that are answered before anything of
	// them is committed.
	EarlyAnswer = ""
)
