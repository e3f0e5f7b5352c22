// Package version knows which build of drowse this is.
package version

import "runtime/debug"

// linked is set by "make build":
// -ldflags="-X github.com/drowse-dev/drowse/internal/version.linked=1.2.3".
var linked string

// String returns the version of this build: the one that "make build" and the packages
// give it, or else what Go knows of the module and the commit.
func String() string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
