// Package testmode says how much the tests of this run do, and what the random ones
// among them begin with, which script/test sets by environment. It has what tests of
// many packages do: wait, look into a directory, and keep what a program says.
package testmode

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
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

// Patience is how long a test waits, at most, for what must happen: a minute, and
// longer on a busy machine. It polls, or is told, so that it rarely takes as long.
func Patience() time.Duration { return Scaled(time.Minute) }

// Scaled returns d as a busy machine needs it: times DROWSE_TEST_PATIENCE, which
// script/test takes from the load at its start. Without that it is d.
func Scaled(d time.Duration) time.Duration {
	text := os.Getenv("DROWSE_TEST_PATIENCE")
	if text == "" {
		return d
	}
	times, err := strconv.ParseUint(text, 10, 8)
	if err != nil || times == 0 {
		panic(fmt.Sprintf("DROWSE_TEST_PATIENCE is no number from 1 to 255: %q", text))
	}
	return d * time.Duration(times)
}

// Eventually waits until something holds, and ends the test with what it is if that
// takes longer than Patience. It looks every few milliseconds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	patience := Patience()
	for end := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// Names returns what is in a directory, sorted.
func Names(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Output keeps what is written, as by a program or a logger that goes on while the test
// reads it.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String returns all that was written.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Rand is a source of random numbers for one goroutine of a test. Those of another
// stream are others; both are the same in each run that begins with the same seed.
func Rand(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(Seed(), stream)) }

// N is rand.N of a source.
func N[T ~int | ~int64](r *rand.Rand, n T) T { return T(r.Int64N(int64(n))) }
