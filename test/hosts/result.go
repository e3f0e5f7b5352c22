package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A message is a line on the serial line from the machine. It is one of these.
type message struct {
	About   *about   `json:",omitempty"`
	Outcome *outcome `json:",omitempty"`
	Done    bool     `json:",omitempty"`
}

const messagePrefix = "hosts: "

// About is what the machine says of itself.
type about struct {
	Kernel, Systemd, Cgroup string
	Drowse                  string // the first line of drowse version
	Doctor                  string // what drowse doctor prints there
}

// build is the drowse that was checked, or what stands for one that is not known.
func (a about) build() string {
	return cmp.Or(strings.TrimSpace(strings.TrimPrefix(a.Drowse, "drowse")), "not noted")
}

// An outcome is that of one check.
type outcome struct {
	Check   string
	Failure string `json:",omitempty"` // empty if it passed
	Seconds float64
}

func (o outcome) String() string {
	if o.Failure != "" {
		return fmt.Sprintf("FAIL  %s (%.0f s): %s", o.Check, o.Seconds, o.Failure)
	}
	return fmt.Sprintf("ok    %s (%.0f s)", o.Check, o.Seconds)
}

// A result is that of one machine.
type result struct {
	Machine    string
	Filesystem string
	About      about
	Outcomes   []outcome
	Wanted     int    // how many checks were to be made
	Failure    string // of the machine itself
	Seconds    int
	CPUSeconds int // of the emulator
}

func newResult(m machine) result {
	r := result{Machine: m.name, Filesystem: m.filesystem, Wanted: len(checks)}
	if m.refused != "" {
		r.Wanted = 1
	}
	return r
}

// passed reports whether every check was made and passed.
func (r result) passed() bool {
	for _, o := range r.Outcomes {
		if o.Failure != "" {
			return false
		}
	}
	return r.Failure == "" && len(r.Outcomes) == r.Wanted
}

func (r result) summary() string {
	if r.passed() {
		return fmt.Sprintf("all checks passed (%d)", r.Wanted)
	}
	failed := 0
	for _, o := range r.Outcomes {
		if o.Failure != "" {
			failed++
		}
	}
	return fmt.Sprintf("%d of %d checks made, %d failed", len(r.Outcomes), r.Wanted, failed)
}

// keep stores the result, so that the table has those of earlier runs too. An
// earlier run of the same build on the same kernel counts for the checks that this
// one left out.
func (r result) keep(cache string) error {
	if was, err := readResult(resultFile(cache, r.Machine)); err == nil {
		r = r.after(was)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(resultFile(cache, r.Machine), b, 0o644)
}

// after adds what an earlier run found and this one did not look for.
func (r result) after(was result) result {
	if was.About.Kernel != r.About.Kernel || was.About.build() != r.About.build() {
		return r
	}
	r.Outcomes = slices.Clone(r.Outcomes)
	for _, o := range was.Outcomes {
		if _, again := r.outcome(o.Check); !again {
			r.Outcomes = append(r.Outcomes, o)
		}
	}
	return r
}

func kept(cache string, m machine) (result, error) { return readResult(resultFile(cache, m.name)) }

func readResult(file string) (r result, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	err = json.Unmarshal(b, &r)
	return r, err
}

func resultFile(cache, machine string) string {
	return filepath.Join(cache, "result-"+machine+".json")
}
