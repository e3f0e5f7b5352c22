package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
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
	return i.weigh(func(w *weight) { w.sharers = n })
}

// Yield implements runtime.Confiner.
func (i *instance) Yield(yield bool) error {
	return i.weigh(func(w *weight) { w.yields = yield })
}

// weight is what a runtime counts where there is too little CPU time for all.
type weight struct {
	sharers int // among how many its owner's part is divided
	// yields has it run only when no other runtime wants to. The kernel has no part
	// for those that yield: all of them weigh the same.
	yields bool
}

// weigh changes what the runtime counts.
func (i *instance) weigh(change func(*weight)) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	w := i.weight
	change(&w)
	if err := i.group.weigh(w); err != nil {
		return fmt.Errorf("runtime %s: %w", i.id, err)
	}
	i.weight = w
	return nil
}

// weigh sets what the processes of a group count.
func (g group) weigh(w weight) error {
	n := min(max(w.sharers, 1), maxSharers)
	for path := range g.files("cpu", "cpu.shares", "cpu.weight") {
		yields, err := setYields(filepath.Join(filepath.Dir(path), "cpu.idle"), w.yields)
		if err != nil {
			return fmt.Errorf("share CPU time: %w", err)
		}
		if yields { // the kernel takes no weight then, and has forgotten it afterwards
			continue
		}
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

// setYields writes to the file of a group that has it yield, and reports whether it
// does. A kernel before 5.15 has no such file: the weight is all there is.
func setYields(file string, yields bool) (bool, error) {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	text := "0"
	if yields {
		text = "1"
	}
	_, err = f.WriteString(text)
	return yields, errors.Join(err, f.Close())
}
