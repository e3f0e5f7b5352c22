// Package version knows which build of drowse this is.
package version

import "runtime/debug"

// These are set by "make build":
// -ldflags="-X github.com/drowse-dev/drowse/internal/version.linked=1.2.3".
var linked, commit string

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

// commitLength is how much of a commit's hash is shown.
const commitLength = 12

// Commit returns the commit of this build, from "make build" or else from Go; empty if
// neither knows.
func Commit() string {
	hash := commit
	if info, ok := debug.ReadBuildInfo(); ok && hash == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				hash = s.Value
			}
		}
	}
	return hash[:min(len(hash), commitLength)]
}

// Full is the version, with the commit where that is known.
func Full() string {
	if c := Commit(); c != "" {
		return String() + " (commit " + c + ")"
	}
	return String()
}
