package gvisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/blockdev"
	"github.com/drowse-dev/drowse/internal/cgroup"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// The kernel delays what a runtime reads and writes past its rate. A process that
// waits for such a write cannot be stopped, frozen or killed until the write is
// done. So the rates are lifted before a runtime is frozen or removed, and the
// image of a pause is written and read at the speed of the disk.

// DiskRates bound what each runtime reads from and writes to the disks under the
// driver's state, in bytes per second; 0 is no bound.
type DiskRates struct{ Read, Write int64 }

// diskRates are the bounds, and the disks that they are of.
type diskRates struct {
	DiskRates
	disks []blockdev.Disk
}

const (
	readRateV1  = "blkio.throttle.read_bps_device"
	writeRateV1 = "blkio.throttle.write_bps_device"
	ratesV2     = "io.max"
)

// probePrefix begins the names of cgroups that are made only to be tried.
const probePrefix = "drowse-probe-"

// limitDisks sets rates for the processes of a group. It reports false if the
// kernel has no such limit.
func (g group) limitDisks(r diskRates) (found bool, err error) {
	for path := range g.files("blkio", readRateV1, ratesV2) {
		found = true
		for _, disk := range r.disks {
			for file, rule := range rulesOf(filepath.Base(path), disk.Number(), r.DiskRates) {
				if err := os.WriteFile(filepath.Join(filepath.Dir(path), file), []byte(rule), 0o600); err != nil {
					return true, fmt.Errorf("limit I/O of %s: %w", disk, err)
				}
			}
		}
	}
	return found, nil
}

// liftDisks removes the rates that a group has, whoever set them. What waits goes
// on at once. It writes nothing where there is no rate: the kernel would begin to
// account for them.
func (g group) liftDisks() error {
	for _, file := range []string{readRateV1, writeRateV1} {
		for path, text := range g.files("blkio", file, ratesV2) {
			for line := range strings.Lines(text) {
				disk, _, _ := strings.Cut(line, " ")
				rule := rulesOf(filepath.Base(path), disk, DiskRates{})[filepath.Base(path)]
				if err := os.WriteFile(path, []byte(rule), 0o600); err != nil {
					return fmt.Errorf("lift the limit of I/O of disk %s: %w", disk, err)
				}
			}
		}
	}
	return nil
}

// rulesOf returns what to write to the files of a cgroup for a disk, given a file
// that it has.
func rulesOf(file, disk string, r DiskRates) map[string]string {
	if file == ratesV2 {
		most := func(rate int64) string {
			if rate == 0 {
				return "max"
			}
			return strconv.FormatInt(rate, 10)
		}
		return map[string]string{ratesV2: fmt.Sprintf("%s rbps=%s wbps=%s", disk, most(r.Read), most(r.Write))}
	}
	return map[string]string{ // 0 removes a rule
		readRateV1:  fmt.Sprintf("%s %d", disk, r.Read),
		writeRateV1: fmt.Sprintf("%s %d", disk, r.Write),
	}
}

// findDisks finds what the rates are of, and tries them, so that a server that was
// asked for rates does not start where nobody would keep them.
func (d *Driver) findDisks(r DiskRates) error {
	if r == (DiskRates{}) {
		return nil
	}
	disks, err := blockdev.Under(d.dir)
	if err == nil {
		err = tryRates(d.place, disks)
	}
	if err != nil {
		return noRates(err)
	}
	d.rates = diskRates{r, disks}
	return nil
}

func noRates(err error) error {
	return errdef.New(errdef.Unfit, "no_disk_rates", "the I/O of sandboxes cannot be limited: %w", err).
		WithRemedy("start the server without --disk-read-rate and --disk-write-rate, or see what drowse doctor says of disk rates")
}

// tryRates sets rates for a cgroup that it makes and removes.
func tryRates(place *cgroup.Place, disks []blockdev.Disk) (err error) {
	name := probePrefix + strings.ToLower(rand.Text())
	g := group{root: cgroup.Mount, id: name}
	if place != nil {
		g.tree, g.path = place.Tree, path.Join(place.Path, name)
		if _, err := place.Make(name, cgroup.Limits{}); err != nil {
			return err
		}
	} else {
		dir := filepath.Join(cgroup.Mount, "blkio", cgroupParent, name)
		if _, err := os.Stat(filepath.Join(cgroup.Mount, "blkio", readRateV1)); errors.Is(err, fs.ErrNotExist) {
			return noController("cgroup v1", "blkio")
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, g.remove()) }()
	found, err := g.limitDisks(diskRates{DiskRates{Read: 1 << 20, Write: 1 << 20}, disks})
	if !found && err == nil {
		return noController("cgroup v2", "io")
	}
	return err
}

func noController(version, name string) error {
	return fmt.Errorf("the kernel has no limits of block I/O (CONFIG_BLK_DEV_THROTTLING), or %s has no controller %q here", version, name)
}

// TryDiskRates returns the disks under dir if the kernel can limit what runtimes
// read from and write to them, and where it does that.
func TryDiskRates(ctx context.Context, dir string) (disks []string, by string, err error) {
	found, err := blockdev.Under(dir)
	if err != nil {
		return nil, "", err
	}
	tree, v2, err := cgroup.Open()
	if err != nil {
		return nil, "", err
	}
	var place *cgroup.Place
	by = "cgroup v1 (blkio.throttle), which knows of reads and of writes that the guest waits for"
	if v2 {
		by = "cgroup v2 (io.max)"
		if place, err = cgroup.Prepare(ctx, tree); err != nil {
			return nil, "", err
		}
	}
	for _, d := range found {
		disks = append(disks, d.String())
	}
	return disks, by, tryRates(place, found)
}

// bound sets the rates of a runtime, and removes others that it may have.
func (d *Driver) bound(g group) error {
	if d.rates.DiskRates == (DiskRates{}) {
		return g.liftDisks()
	}
	found, err := g.limitDisks(d.rates)
	if err == nil && !found {
		err = errors.New("its cgroup has no limits of block I/O")
	}
	return err
}

// LiftDiskRates implements runtime.DiskLimited.
func (i *instance) LiftDiskRates() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.liftDisks()
}

// liftDisks lets a runtime read and write as fast as it can until boundDisks. Where the
// server has no rates it may go on doing so, and the thaw has less to do.
func (i *instance) liftDisks() {
	err := i.group.liftDisks() // a capture without it is only slower
	i.lifted = err != nil || i.d.rates.DiskRates != (DiskRates{})
}

// boundDisks ends what liftDisks began. A runtime that misses its rates goes on:
// that is not worth its end.
func (i *instance) boundDisks() {
	err := i.d.bound(i.group)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		i.d.log.Warn("a sandbox reads and writes without the server's disk rates", "runtime", i.id, "err", err)
	}
	i.lifted = err != nil
}

// adoptRates gives a runtime of an earlier server this server's rates; one that is
// frozen, when it is thawed.
func (i *instance) adoptRates() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.frozen {
		i.lifted = true
		return
	}
	i.boundDisks()
}
