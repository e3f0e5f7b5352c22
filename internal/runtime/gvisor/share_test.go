package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/cgroup"
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

// TestYield has a runtime run only when no other wants to, and reads what the kernel has
// of it. What it weighs is the same afterwards, also where that changed meanwhile.
func TestYield(t *testing.T) {
	r := newRig(t)
	i := start(t, r.reopen(t).(*Driver), r.newSpec(t))
	want := func(idle string, n int) {
		t.Helper()
		for path, text := range i.group.files("cpu", "cpu.shares", "cpu.weight") {
			got, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cpu.idle"))
			if err != nil || strings.TrimSpace(string(got)) != idle {
				t.Errorf("the kernel has it yield: %q, %v; want %s", got, err, idle)
			}
			if text = strings.TrimSpace(text); idle == "0" && text != strconv.Itoa(wholeShares/n) && text != strconv.Itoa(wholeWeight/n) {
				t.Errorf("it weighs %s, want one of %d", text, n)
			}
		}
	}
	for _, step := range []struct {
		do   func() error
		idle string
		n    int
	}{
		{func() error { return i.Yield(false) }, "0", 1},
		{func() error { return i.ShareAmong(2) }, "0", 2},
		{func() error { return i.Yield(true) }, "1", 2},
		{func() error { return i.Yield(true) }, "1", 2},
		{func() error { return i.ShareAmong(4) }, "1", 4}, // which the kernel would refuse now
		{func() error { return i.Yield(false) }, "0", 4},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		want(step.idle, step.n)
	}
	// A server after this one does not know, and lifts it.
	if err := i.Yield(true); err != nil {
		t.Fatal(err)
	}
	if err := i.group.weigh(weight{sharers: 2}); err != nil {
		t.Fatal(err)
	}
	want("0", 2)
}

// TestYieldOfAnOldKernel leaves what a runtime weighs where the kernel has no file for
// more.
func TestYieldOfAnOldKernel(t *testing.T) {
	root := t.TempDir()
	g := group{tree: cgroup.At(root), path: "/scope/i1"}
	file := filepath.Join(root, g.path, "cpu.weight")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("100"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, w := range []weight{{4, false}, {4, true}} {
		if err := g.weigh(w); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != "25" {
			t.Errorf("%+v: it weighs %q, %v; want 25", w, got, err)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(file), "cpu.idle")); err == nil {
			t.Error("a file was made that the kernel does not have")
		}
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
