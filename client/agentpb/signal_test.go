package agentpb

import (
	"syscall"
	"testing"
)

func TestSignalOf(t *testing.T) {
	for status, want := range map[string]syscall.Signal{
		"signal: killed": syscall.SIGKILL, "signal: segmentation fault (core dumped)": syscall.SIGSEGV,
		"exit status 9": 0, "signal: none such": 0, "": 0,
	} {
		if got := SignalOf(status); got != want {
			t.Errorf("%q: %v, want %v", status, got, want)
		}
	}
}
