// Package ids makes the names of sandboxes and of their operations, and the times in
// their records.
package ids

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

const alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"

// form is what New makes.
var form = lazyregexp.New(`^i[0-9a-z]{20}$`)

// New returns a name of 21 lower-case letters and digits, as E2B's clients expect
// of a sandbox.
func New() string {
	b := make([]byte, 20)
	rand.Read(b)
	for i := range b {
		b[i] = alphabet[int(b[i])%len(alphabet)]
	}
	return "i" + string(b)
}

// Valid reports whether a name could be of New.
func Valid(id string) bool { return form.MatchString(id) }

// NewOp returns the name of an operation.
func NewOp() string {
	b := make([]byte, 8)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// Now is the time as it is stored: UTC, in microseconds, because that is what
// clients can send back.
func Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
