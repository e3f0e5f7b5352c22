package agentbin

import (
	"os"
	"runtime"
	"strings"
	"testing"
)

// TestAgentOfAnotherArchitecture takes this test for the agent.
func TestAgentOfAnotherArchitecture(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for arch := range machines {
		err := check(program, arch)
		if arch == runtime.GOARCH && err != nil {
			t.Errorf("a program for %s is refused there: %v", arch, err)
		}
		if arch != runtime.GOARCH && (err == nil || !strings.Contains(err.Error(), arch)) {
			t.Errorf("a program for %s on %s: %v", runtime.GOARCH, arch, err)
		}
	}
	if err := check([]byte("#!/bin/sh\n"), runtime.GOARCH); err == nil {
		t.Error("a script is taken for the agent")
	}
}

func TestDamagedAgent(t *testing.T) {
	for name, packed := range map[string][]byte{"empty": {}, "no zstd": []byte("no zstd"), "not compressed": []byte("\x7fELF")} {
		_, err := unpack(packed, runtime.GOARCH)
		if err == nil || !strings.Contains(err.Error(), "agent") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
