// Command hosts shows on which machines drowse runs: it boots virtual machines
// of several Debian releases, kernels, cgroup versions and file systems, installs
// drowse in each as its documentation says, and checks it from outside, through
// systemd, the command line and the API.
//
// QEMU emulates the machines, so no KVM is needed. Nothing leaves them and
// nothing reaches them: the programs come in on a drive, and the outcome comes
// out on a serial line. The same program runs at both ends. On the host it makes
// disk images from Debian packages, which are kept in DROWSE_TEST_CACHE, boots
// one machine after the other and writes the table. In the machine (--inside) it
// makes the checks, and goes on with them after the machine's reboot.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	drowse string        // the binary under test
	unit   string        // the systemd unit to install it with
	only   string        // the machines to boot, separated by commas; "" for all
	checks string        // the checks to make, separated by commas; "" for all
	images bool          // make the images and boot nothing
	table  string        // the file to write the table into; "" for none
	cache  string        // where images are kept
	within time.Duration // how long one machine may take
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--inside" {
		exit(inside())
	}
	var o options
	flag.StringVar(&o.drowse, "drowse", "bin/drowse", "the `binary` to check")
	flag.StringVar(&o.unit, "unit", "packaging/drowse.service", "the systemd `unit` to install it with")
	flag.StringVar(&o.only, "only", "", "the machines to boot: "+strings.Join(machineNames(), ","))
	flag.StringVar(&o.checks, "checks", "", "the checks to make: "+strings.Join(checkNames(), ","))
	flag.BoolVar(&o.images, "images", false, "make the disk images, which needs the network, and boot nothing")
	flag.StringVar(&o.table, "table", "", "the Markdown `file` to write the outcome into")
	flag.DurationVar(&o.within, "within", 30*time.Minute, "how long one machine may take")
	flag.Parse()
	o.cache = filepath.Join(cmp.Or(os.Getenv("DROWSE_TEST_CACHE"), "/var/tmp/drowse-test-cache"), "hosts")

	// A machine must not outlive this program.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hosts:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, o options) error {
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	if _, err := chooseChecks(o.checks); err != nil {
		return err
	}
	if err := os.MkdirAll(o.cache, 0o755); err != nil {
		return err
	}
	images := map[system]image{}
	for _, m := range chosen {
		if images[m.system], err = m.system.image(ctx, o.cache); err != nil {
			return fmt.Errorf("make the disk image of %s: %w", m.name, err)
		}
	}
	if o.images {
		return nil
	}
	var failed []string
	for _, m := range chosen {
		r := boot(ctx, o, m, images[m.system])
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !r.passed() {
			failed = append(failed, m.name)
		}
		if o.table == "" {
			continue
		}
		if err := r.keep(o.cache); err != nil {
			return err
		}
		if err := writeTable(o.table, o.cache); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed on %s", strings.Join(failed, ", "))
	}
	return nil
}

func choose(only string) ([]machine, error) {
	return named(machines, only, "machine", func(m machine) string { return m.name })
}

func machineNames() []string { return names(machines, func(m machine) string { return m.name }) }

// chooseChecks returns those checks, in the order in which they are made.
func chooseChecks(only string) ([]check, error) {
	chosen, err := named(checks, only, "check", func(c check) string { return c.name })
	slices.SortStableFunc(chosen, func(a, b check) int { return cmp.Compare(place(a), place(b)) })
	return chosen, err
}

func place(c check) int {
	return slices.IndexFunc(checks, func(o check) bool { return o.name == c.name })
}

func checkNames() []string { return names(checks, func(c check) string { return c.name }) }

// named returns those of all whose names are in a list separated by commas, and
// all for an empty list.
func named[T any](all []T, list, what string, name func(T) string) ([]T, error) {
	if list == "" {
		return slices.Clone(all), nil
	}
	var chosen []T
	for want := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(t T) bool { return name(t) == want })
		if i < 0 {
			return nil, fmt.Errorf("no %s %q; there are %s", what, want, strings.Join(names(all, name), ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func names[T any](all []T, name func(T) string) []string {
	list := make([]string, len(all))
	for i, t := range all {
		list[i] = name(t)
	}
	return list
}
