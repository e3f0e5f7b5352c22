package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// What a runtime weighs beside the others, if its owner has no other. It is what
// the kernel gives every cgroup at first, so that a runtime that is being made
// weighs that. An owner with more runtimes than maxSharers gets more than its
// part.
const (
	wholeShares = 1024 // cgroup v1: from 2
	wholeWeight = 100  // cgroup v2: from 1
	maxSharers  = wholeWeight
)

// ShareAmong implements runtime.Sharer.
func (i *instance) ShareAmong(n int) error {
	if err := i.group.shareAmong(n); err != nil {
		return fmt.Errorf("runtime %s: %w", i.id, err)
	}
	return nil
}

// shareAmong sets what the processes of a group weigh where there is too little
// CPU time for all.
func (g group) shareAmong(n int) error {
	n = min(max(n, 1), maxSharers)
	for path := range g.files("cpu", "cpu.shares", "cpu.weight") {
		whole := wholeWeight
		if filepath.Base(path) == "cpu.shares" {
			whole = wholeShares
		}
		if err := os.WriteFile(path, strconv.AppendInt(nil, int64(whole/n), 10), 0o600); err != nil {
			return fmt.Errorf("share CPU time: %w", err)
		}
	}
	return nil
}
