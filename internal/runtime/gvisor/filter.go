package gvisor

import (
	_ "unsafe" // for linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"
)

//go:generate go run ./filtergen sentryfilter_$GOARCH.go

// sentryFilters are filters of system calls compiled ahead, which the sentry
// otherwise does while a start or a wake waits. They are the same,
// instruction by instruction. One of other options than the sentry's is not
// used.
var sentryFilters []precompiledseccomp.Program

// precompiled is where gVisor looks for them. Its own build fills it; there is
// no other way in.
//
//go:linkname precompiled gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var precompiled map[string]precompiledseccomp.Program

// registerFilters makes gVisor find them.
func registerFilters() {
	filter.ListPrecompiled() // makes the map
	for _, f := range sentryFilters {
		precompiled[f.Name] = f
	}
}
