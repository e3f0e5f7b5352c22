package agentpb

import (
	"strings"
	"syscall"
)

// SignalOf returns the signal in the status of a process that has ended, as the agent
// writes it; 0 for none.
func SignalOf(status string) syscall.Signal {
	name, ok := strings.CutPrefix(status, "signal: ")
	if !ok {
		return 0
	}
	name = strings.TrimSuffix(name, " (core dumped)")
	for s := syscall.Signal(1); s < 65; s++ {
		if s.String() == name {
			return s
		}
	}
	return 0
}
