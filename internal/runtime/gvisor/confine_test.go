package gvisor

import (
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/cgroup"
)

// TestConfine keeps a runtime on one processor, in the kernel, and lifts that.
func TestConfine(t *testing.T) {
	r := newRig(t)
	i := start(t, r.reopen(t).(*Driver), r.newSpec(t))
	want := func(n int) {
		t.Helper()
		status, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(firstProcess(t, i)), "status"))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:")
		line, _, _ := strings.Cut(rest, "\n")
		if got, err := parseProcessors(line); err != nil || len(got) != n {
			t.Errorf("its processes may run on %q, %v; want %d processors", line, err, n)
		}
	}
	all := goruntime.NumCPU()
	want(all)
	if err := i.Confine(1); err != nil {
		t.Fatal(err)
	}
	want(1)
	before, err := i.CPUTime()
	if err != nil || before <= 0 {
		t.Errorf("it has used %s, %v", before, err)
	}
	for range 2 { // to lift what is not there is nothing
		if err := i.Confine(0); err != nil {
			t.Fatal(err)
		}
		want(all)
	}
	if err := i.Confine(all + 5); err != nil { // more than there are
		t.Fatal(err)
	}
	want(all)
}

// firstProcess returns the id of a process of a runtime.
func firstProcess(t *testing.T, i *instance) string {
	t.Helper()
	for _, text := range i.group.files("cpuset", "cgroup.procs", "cgroup.procs") {
		pid, _, _ := strings.Cut(text, "\n")
		return pid
	}
	t.Fatal("no cgroup has its processes")
	return ""
}

// TestConfineV2 writes what cgroup v2 reads, for a parent with a part of the
// host's processors.
func TestConfineV2(t *testing.T) {
	root := t.TempDir()
	g := group{tree: cgroup.At(root), path: "/scope/i1"}
	if err := os.MkdirAll(filepath.Join(root, g.path), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, g.path, "cpuset.cpus")
	for name, text := range map[string]string{filepath.Join(root, "scope/cpuset.cpus.effective"): "2-4,9\n", file: "\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range map[int]string{1: "2", 3: "2,3,4", 4: "2,3,4,9", 7: "2,3,4,9", 0: "\n"} {
		if err := g.confine(n); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("confined to %d: %q, %v; want %q", n, got, err, want)
		}
	}
}

func TestParseProcessors(t *testing.T) {
	for list, want := range map[string][]string{"0\n": {"0"}, "0-1": {"0", "1"}, "1,3-5,8": {"1", "3", "4", "5", "8"}} {
		if got, err := parseProcessors(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", list, got, err, want)
		}
	}
	for _, list := range []string{"", "a", "1-", "-2", "1,,2"} {
		if got, err := parseProcessors(list); err == nil {
			t.Errorf("%q: %q, want an error", list, got)
		}
	}
}
