//go:build plant

package planted

import "os"

var planted = Bug(os.Getenv(Env))

// In reports whether this process has a bug.
func In(b Bug) bool { return b == planted }
