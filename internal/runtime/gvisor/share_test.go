package gvisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestShares gives runtimes, new and taken from those that wait, less of the CPU
// time, and reads what the kernel has of it.
func TestShares(t *testing.T) {
	r := newRig(t)
	spec := r.newSpec(t)
	spec.Sharers = 4
	i := start(t, r.reopen(t).(*Driver), spec)
	want := func(n int) {
		t.Helper()
		found := 0
		for _, text := range i.group.files("cpu", "cpu.shares", "cpu.weight") {
			found++
			if got, err := strconv.Atoi(strings.TrimSpace(text)); err != nil || got != wholeShares/n && got != wholeWeight/n {
				t.Errorf("it weighs %q, %v; want one of %d", text, err, n)
			}
		}
		if found != 1 {
			t.Errorf("%d cgroups say what it weighs, want one", found)
		}
	}
	want(4)
	for _, n := range []int{1, 2, 64} {
		if err := i.ShareAmong(n); err != nil {
			t.Fatal(err)
		}
		want(n)
	}
}

// TestSharesAreOfADefault: a runtime that is being made has what the kernel gives
// it. Were that less than a whole part, those of a busy key would keep it from
// coming up.
func TestSharesAreOfADefault(t *testing.T) {
	r := newRig(t)
	i := start(t, r.reopen(t).(*Driver), r.newSpec(t))
	for path, text := range i.group.files("cpu", "cpu.shares", "cpu.weight") {
		other := filepath.Join(filepath.Dir(filepath.Dir(path)), "fresh-"+i.id)
		if err := os.Mkdir(other, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(other)
		got, err := os.ReadFile(filepath.Join(other, filepath.Base(path)))
		if err != nil || string(got) != text {
			t.Errorf("a fresh cgroup weighs %q, %v; a runtime alone %q", got, err, text)
		}
	}
}
