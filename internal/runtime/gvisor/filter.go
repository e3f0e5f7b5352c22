package gvisor

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	_ "unsafe" // for linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"
)

//go:generate go run ./filtergen sentryfilter_$GOARCH.json

// sentryFilter is the filter of system calls of this architecture, compiled
// ahead, which the sentry otherwise does while a start or a wake waits. It is
// the same, instruction by instruction. One of other options than the sentry's
// is not used. filtergen writes the file.
type sentryFilter struct {
	Name     string           `json:"name"`     // the options that it is for
	Bytecode []byte           `json:"bytecode"` // 32-bit words, the lowest byte first
	Offsets  map[string][]int `json:"offsets"`  // of variables, among the words
}

// program returns the filter as gVisor keeps it.
func (f sentryFilter) program() precompiledseccomp.Program {
	p := precompiledseccomp.Program{Name: f.Name, VarOffsets: f.Offsets}
	for words := f.Bytecode; len(words) >= 4; words = words[4:] {
		p.Bytecode32 = append(p.Bytecode32, binary.LittleEndian.Uint32(words))
	}
	return p
}

// precompiled is where gVisor looks for them. Its own build fills it; there is
// no other way in.
//
//go:linkname precompiled gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var precompiled map[string]precompiledseccomp.Program

// registerFilters makes gVisor find it.
func registerFilters() {
	var f sentryFilter
	if err := json.Unmarshal(sentryFilterFile, &f); err != nil {
		panic(fmt.Sprintf("internal error: gvisor: filter of system calls: %v", err))
	}
	filter.ListPrecompiled() // makes the map
	precompiled[f.Name] = f.program()
}
