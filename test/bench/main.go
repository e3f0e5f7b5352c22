// Command bench measures drowse beside the raw tool it is built on, gVisor's
// runsc, in one run and in turn, and prints how the ratios compare with the
// budgets of the design. Speed is measured, never asserted: the exit code says
// only whether everything worked.
//
// It is started by run.sh, in network, mount and PID namespaces of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

type options struct {
	drowse string // the binary under test
	guest  string // the guest's program
	sdk    string // the directory with sdk.mjs and the SDK
	work   string // for state, on a disk
	docs   string // the file to write the tables into; "" for none
	only   string // the measurements to make, separated by commas; "" for all
	few    bool   // a tenth of the runs
	small  bool   // no guest of over 256 MiB
}

func main() {
	var o options
	flag.StringVar(&o.drowse, "drowse", "bin/drowse", "the `binary` to measure")
	flag.StringVar(&o.guest, "guest", "", "the guest's `program`")
	flag.StringVar(&o.sdk, "sdk", "", "the `directory` with sdk.mjs and the E2B SDK")
	flag.StringVar(&o.work, "work", "", "a `directory` on disk for the state of servers and tools")
	flag.StringVar(&o.docs, "docs", "", "the Markdown `file` whose tables to replace")
	flag.StringVar(&o.only, "only", "", "the measurements to make: "+strings.Join(names(), ","))
	flag.BoolVar(&o.few, "few", false, "a tenth of the runs")
	flag.BoolVar(&o.small, "small", false, "small guests")
	flag.Parse()
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	o      options
	raw    *raw
	server *server
	disk   disk
	report report
	memory int // MiB that sandboxes may have; 0 for the server's default
}

// measurements are made in this order. Each adds to the report.
var measurements = []struct {
	name    string
	measure func(*bench, context.Context) error
}{
	{"create", (*bench).create},
	{"exec", (*bench).exec},
	{"inside", (*bench).inside},
	{"idle", (*bench).idle},
	{"sleep", (*bench).sleep},
	{"written", (*bench).files},
	{"early", (*bench).early},
	{"light", (*bench).light},
	{"atonce", (*bench).atOnce},
	{"pressure", (*bench).pressure},
	{"deltas", (*bench).deltas},
	{"forks", (*bench).forks},
	{"snapshots", (*bench).snapshots},
	{"started", (*bench).started},
	{"edge", (*bench).edge},
	{"postgres", (*bench).postgres},
	{"lists", (*bench).lists},
	// Last: these need the server's address.
	{"deadlines", (*bench).deadlines},
	{"start", (*bench).starts},
}

func names() []string {
	var list []string
	for _, m := range measurements {
		list = append(list, m.name)
	}
	return list
}

func run(ctx context.Context, o options) (err error) {
	wanted := names()
	if o.only != "" {
		wanted = strings.Split(o.only, ",")
	}
	for _, w := range wanted {
		if !slices.Contains(names(), w) {
			return fmt.Errorf("there is no measurement %q; there are %s", w, strings.Join(names(), ", "))
		}
	}
	if slices.Contains(wanted, "edge") {
		for _, tool := range edgeTools {
			if _, err := exec.LookPath(tool); err != nil {
				return fmt.Errorf("%w: script/deps bench installs it", err)
			}
		}
	}
	if err := upLoopback(); err != nil {
		return err
	}
	b := &bench{o: o}
	if b.report.machine, err = describe(ctx, o.drowse, o.work); err != nil {
		return err
	}
	if b.disk, err = findDisk(o.work); err != nil {
		return err
	}
	if b.raw, err = newRaw(o.drowse, filepath.Join(o.work, "raw")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.raw.close(), removeCgroups()) }()
	if b.server, err = startServer(ctx, o.drowse, b.stateDir(), b.serverLog()); err != nil {
		return err
	}
	defer func() {
		if b.server != nil { // a measurement that starts another may have failed to
			err = errors.Join(err, b.server.stop())
		}
	}()
	for _, m := range measurements {
		if !slices.Contains(wanted, m.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s\n", m.name)
		if err = m.measure(b, ctx); err != nil {
			err = fmt.Errorf("%s: %w", m.name, err)
			break // what was measured until now is worth seeing
		}
	}
	text := b.report.markdown()
	fmt.Print(text)
	if err == nil && o.docs != "" {
		err = writeDocs(o.docs, text)
	}
	return err
}

func (b *bench) stateDir() string  { return filepath.Join(b.o.work, "s") }
func (b *bench) serverLog() string { return filepath.Join(b.o.work, "server.log") }

// runs is how often to repeat something that n runs are wanted of.
func (b *bench) runs(n int) int {
	if b.o.few {
		return max(3, n/10)
	}
	return n
}

// sizes returns those that are measured: of small ones none of over 256 MiB, each once.
func (b *bench) sizes(all ...size) []size {
	if !b.o.small {
		return all
	}
	var small []size
	for _, s := range all {
		s.memory = min(s.memory, 256)
		if !slices.Contains(small, s) {
			small = append(small, s)
		}
	}
	return small
}

const (
	// warmup is how many pairs are run and not counted.
	warmup = 2
	// settle is the least rest after an operation, for what it left to the
	// kernel to do in the background.
	settle = 100 * time.Millisecond
)

// sample is one timed operation.
type sample struct{ latency, cpu time.Duration }

// turn is an operation of drowse and the raw tool's right after it.
type turn struct{ ours, raw sample }

// comparison collects turns.
type comparison struct{ turns []turn }

func (c *comparison) add(t turn) { c.turns = append(c.turns, t) }

func (c *comparison) latencies() pairs {
	return c.pairs(func(s sample) time.Duration { return s.latency })
}

// cpu returns the mean CPU time of an operation on both sides, in
// milliseconds. A mean, because the kernel counts in coarse ticks.
func (c *comparison) cpu() (ours, raw float64) {
	for _, p := range c.pairs(func(s sample) time.Duration { return s.cpu }) {
		ours += p.ours / float64(len(c.turns))
		raw += p.raw / float64(len(c.turns))
	}
	return ours, raw
}

func (c *comparison) pairs(of func(sample) time.Duration) pairs {
	list := make(pairs, len(c.turns))
	for i, r := range c.turns {
		list[i] = pair{ours: milliseconds(of(r.ours)), raw: milliseconds(of(r.raw))}
	}
	return list
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// timed runs an operation, which says itself how long it took, and counts the
// CPU time that went into it and into clearing up after it. needs is about how
// much memory the operation takes.
func (b *bench) timed(ctx context.Context, needs int64, op func() (time.Duration, error)) (s sample, err error) {
	before, err := cpuUsed()
	if err != nil {
		return s, err
	}
	if err := warmMemory(needs); err != nil {
		return s, err
	}
	if s.latency, err = op(); err != nil {
		return s, err
	}
	if err := sleep(ctx, settle); err != nil {
		return s, err
	}
	after, err := cpuUsed()
	s.cpu = after - before
	return s, err
}

// smallOperation is more memory than an operation takes whose guest holds none.
const smallOperation = 128 << 20

// compare runs two operations in turn.
func (b *bench) compare(ctx context.Context, n int, ours, raw func() (time.Duration, error)) (c comparison, err error) {
	for i := -warmup; i < n; i++ {
		var r turn
		if r.ours, err = b.timed(ctx, smallOperation, ours); err != nil {
			return c, err
		}
		if r.raw, err = b.timed(ctx, smallOperation, raw); err != nil {
			return c, err
		}
		if i >= 0 {
			c.add(r)
		}
	}
	return c, nil
}
