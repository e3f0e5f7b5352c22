// Package testmode says how much the tests of this run do, and what the random ones
// among them begin with. script/test sets both by environment.
package testmode

import (
	"fmt"
	"os"
	"strconv"
)

// All says whether everything is tested, for a release: DROWSE_TEST_ALL is set.
// Otherwise a test that can do more or less does what a change needs.
func All() bool { return os.Getenv("DROWSE_TEST_ALL") != "" }

// Choose returns the first where a change is tested, and the second where All says so.
func Choose[T any](change, all T) T {
	if All() {
		return all
	}
	return change
}

// Seed is what random tests begin with, from DROWSE_TEST_SEED. Without that it is
// always the same: what a test finds, or does not, is due to the change.
func Seed() uint64 {
	text := os.Getenv("DROWSE_TEST_SEED")
	if text == "" {
		return 1
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("DROWSE_TEST_SEED is no number: %v", err))
	}
	return seed
}
