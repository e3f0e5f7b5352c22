package gvisor

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

// TestSentryFiltersAreForTheSameOptions holds the filters of all architectures
// against each other. Only this machine's is compared with gVisor's own here;
// make test-arm64 does the other.
func TestSentryFiltersAreForTheSameOptions(t *testing.T) {
	names := map[string]bool{}
	for _, arch := range []string{"amd64", "arm64"} {
		data, err := os.ReadFile("sentryfilter_" + arch + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var f sentryFilter
		if err := json.Unmarshal(data, &f); err != nil {
			t.Fatal(err)
		}
		if len(f.Bytecode) == 0 || len(f.Bytecode)%8 != 0 {
			t.Errorf("%s: %d bytes of instructions, which have 8 each", arch, len(f.Bytecode))
		}
		_, options, ok := strings.Cut(f.Name, "GOARCH=\""+arch+"\" ")
		if !ok {
			t.Errorf("%s: it is for %s", arch, f.Name)
		}
		names[options] = true
	}
	if len(names) != 1 {
		t.Errorf("the filters are for different options: %v; run make generate generate-arm64", names)
	}
}

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
