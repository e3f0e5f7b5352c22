package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestMarkdown renders a machine where all passed, one where a check failed and
// one that ended early.
func TestMarkdown(t *testing.T) {
	good, bad, dead := newResult(machines[0]), newResult(machines[1]), newResult(machines[2])
	for _, c := range checks {
		good.Outcomes = append(good.Outcomes, outcome{Check: c.name})
		o := outcome{Check: c.name}
		if c.name == "demo" {
			o.Failure = "no count\nof the guest"
		}
		bad.Outcomes = append(bad.Outcomes, o)
	}
	bad.About.Doctor = "FAIL  runtime gvisor"
	dead.Outcomes, dead.Failure = []outcome{{Check: "doctor"}}, "it ended before"

	i := slices.IndexFunc(machines, func(m machine) bool { return m.refused != "" })
	refused, taken := newResult(machines[i]), newResult(machines[i])
	refused.Outcomes = []outcome{{Check: refusal.name}}
	taken.About.Drowse = "drowse    v1.2.3"
	taken.Machine, taken.Outcomes = "taken", []outcome{{Check: refusal.name, Failure: "it started"}}

	for _, r := range []struct {
		result
		want bool
	}{{good, true}, {bad, false}, {dead, false}, {refused, true}, {taken, false}} {
		if got := r.passed(); got != r.want {
			t.Errorf("%s: passed is %t, want %t", r.Machine, got, r.want)
		}
	}
	text := markdown([]result{good, bad, dead, refused, taken})
	for _, want := range []string{
		"| Check | debian12 | debian12-xfs | debian12-btrfs |\n",
		"| debian13-cgroup1 |  |  |  | ext4 | not noted | refused, see below |",
		fmt.Sprintf("| taken |  |  |  | ext4 | v1.2.3 | 0 of %d |", len(checks)),
		"* taken:\n\n    it started\n",
		"| doctor: finds nothing wrong, and leaves nothing | ✓ | ✓ | ✓ |",
		"| demo: with a server started by hand, and leaves nothing | ✓ | 1 | not made |",
		"1. debian12-xfs, demo:\n\n    no count\n    of the guest\n",
		"* debian12-btrfs:\n\n    it ended before\n",
		"debian12-xfs:\n\n    FAIL  runtime gvisor\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}

// TestKeep makes one check again: the others stay known, unless the kernel or the
// build is another one.
func TestKeep(t *testing.T) {
	cache := t.TempDir()
	keep := func(kernel, build string, outcomes ...outcome) result {
		t.Helper()
		r := newResult(machines[0])
		r.About.Kernel, r.About.Drowse, r.Outcomes = kernel, build, outcomes
		if err := r.keep(cache); err != nil {
			t.Fatal(err)
		}
		r, err := kept(cache, machines[0])
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	keep("6.1", "drowse v1", outcome{Check: "doctor", Failure: "no"}, outcome{Check: "demo"})
	r := keep("6.1", "drowse v1", outcome{Check: "doctor"})
	if o, ok := r.outcome("doctor"); !ok || o.Failure != "" {
		t.Errorf("doctor, made again, is %+v", o)
	}
	if _, ok := r.outcome("demo"); !ok {
		t.Error("demo is forgotten")
	}
	if r := keep("6.1", "drowse v2", outcome{Check: "doctor"}); len(r.Outcomes) != 1 {
		t.Errorf("outcomes of another build are kept: %+v", r.Outcomes)
	}
	keep("6.1", "drowse v2", outcome{Check: "demo"})
	if r := keep("6.12", "drowse v2", outcome{Check: "doctor"}); len(r.Outcomes) != 1 {
		t.Errorf("outcomes of another kernel are kept: %+v", r.Outcomes)
	}
}

func TestChoose(t *testing.T) {
	got, err := choose("debian13,debian12")
	if err != nil || len(got) != 2 || got[0].name != "debian13" || got[1].name != "debian12" {
		t.Errorf("chose %v, %v", got, err)
	}
	if c, err := chooseChecks("nothing left,doctor"); err != nil || len(c) != 2 || c[0].name != "doctor" {
		t.Errorf("chose %v, %v, want the order in which they are made", c, err)
	}
	if _, err := choose("debian4"); err == nil || !strings.Contains(err.Error(), "debian12-xfs") {
		t.Errorf("an unknown machine: %v, want the known ones", err)
	}
}
