package gvisor

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

// TestSentryFilter compares the filter compiled ahead with what gVisor compiles
// for the options that the driver runs it with.
func TestSentryFilter(t *testing.T) {
	conf, err := newConfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	constructor, err := platform.Lookup(conf.Platform)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range []uint32{3, 12, 0x1ff} {
		o := config.Options{
			Platform: constructor.PrecompiledSeccompInfo()[0], HostFilesystem: conf.DirectFS, ControllerFD: fd,
		}
		registerFilters()
		ahead, ok := filter.GetPrecompiled(o.ConfigKey())
		if !ok {
			t.Fatalf("there is none for %s: run go generate", o.ConfigKey())
		}
		got, err := ahead.RenderInstructions(o.Vars())
		if err != nil {
			t.Fatal(err)
		}
		allow, deny := config.Rules(o)
		program := seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: allow, Action: seccomp.Allow}},
			Options:  config.SeccompOptions(o),
		}
		want, _, err := program.Build()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("the filter is not the one that gVisor compiles: run go generate")
		}
	}
}
