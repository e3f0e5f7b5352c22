//go:build !plant

package planted

// In reports whether this build has a bug: none has.
func In(Bug) bool { return false }
