// Command filtergen writes, as JSON, the filter of system calls that gVisor's
// sentry has as drowse runs it, for the architecture that it is built for. gVisor's own build compiles its
// filters ahead; its Go module comes without them, and compiling one takes a
// good part of a wake.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "filtergen:", err)
		os.Exit(1)
	}
}

// systrap is gVisor's platform with other values of its variables.
type systrap struct {
	platform.SeccompInfo
	variables precompiledseccomp.Values
}

// Variables implements platform.SeccompInfo.
func (s systrap) Variables() precompiledseccomp.Values { return s.variables }

// controllerFD is what gVisor calls the variable for Options.ControllerFD.
const controllerFD = "controller_fd"

func run(file string) error {
	constructor, err := platform.Lookup("systrap")
	if err != nil {
		return err
	}
	info := constructor.PrecompiledSeccompInfo()[0]
	options := config.Options{Platform: info, HostFilesystem: true}
	// What gVisor takes on every kernel since 4.14. It would ask this machine's,
	// which an emulator of another architecture does not answer.
	programOptions := config.SeccompOptions(options)
	programOptions.DefaultAction, programOptions.BadArchAction = seccomp.KillProcess, seccomp.KillProcess
	variables := append(slices.Collect(maps.Keys(info.Variables())), controllerFD)
	program, err := precompiledseccomp.Precompile(options.ConfigKey(), variables, func(v precompiledseccomp.Values) *seccomp.Program {
		o := options
		o.ControllerFD = v[controllerFD]
		o.Platform = systrap{SeccompInfo: info, variables: v}
		allow, deny := config.Rules(o)
		return &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: deny, Action: seccomp.KillProcess}, {Rules: allow, Action: seccomp.Allow}},
			Options:  programOptions,
		}
	})
	if err != nil {
		return err
	}
	if err := markPID(&program); err != nil {
		return err
	}
	bytecode := make([]byte, 0, 4*len(program.Bytecode32))
	for _, word := range program.Bytecode32 {
		bytecode = binary.LittleEndian.AppendUint32(bytecode, word)
	}
	text, err := json.MarshalIndent(map[string]any{"name": program.Name, "bytecode": bytecode, "offsets": program.VarOffsets}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// markPID makes a variable of the process's id, which gVisor asks the kernel
// for while it makes the rules.
func markPID(p *precompiledseccomp.Program) error {
	pid := uint32(os.Getpid())
	var at []int
	for i, word := range p.Bytecode32 {
		if word == pid {
			at = append(at, i)
			p.Bytecode32[i] = 0 // the same file from every process
		}
	}
	if len(at) != 1 {
		return fmt.Errorf("the number of this process, %d, is in the filter %d times, want 1: try again", pid, len(at))
	}
	p.VarOffsets["self_pid_low32bits"] = at
	p.VarOffsets["self_pid_high32bits"] = nil
	return nil
}
