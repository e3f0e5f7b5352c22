// Package space knows how much room there is on the disk of the state directory.
// It refuses what a full disk would end half way, and keeps a reserve that is
// given up when the disk is full all the same.
package space

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/planted"
)

// Disk is the disk that a directory is on.
type Disk struct {
	dir     string
	ballast ballast
}

// New looks at the disk that dir is on. reserve is a file to give up when the
// disk is full; empty for none.
func New(dir, reserve string) *Disk {
	return &Disk{dir: dir, ballast: ballast{path: reserve}}
}

// GiveUp gives the reserve up, so that what frees space can still be recorded;
// false if it is gone already.
func (d *Disk) GiveUp() bool { return d.ballast.drop() }

// Restore puts the reserve back if it is gone and there is room again.
func (d *Disk) Restore() { d.ballast.restore() }

const (
	// Least is the free space below which nothing new is begun.
	Least = 32 << 20
	// Wake is what a pause must leave: a sandbox that wakes writes to the
	// disk before it can give anything back.
	Wake = 16 << 20
)

// Stat returns what there is of the disk.
func (d *Disk) Stat() (st unix.Statfs_t, err error) {
	if err := unix.Statfs(d.dir, &st); err != nil {
		return st, fmt.Errorf("look at the state directory's disk: %w", err)
	}
	return st, nil
}

// Free returns how many bytes are free.
func (d *Disk) Free() (uint64, error) {
	st, err := d.Stat()
	return st.Bavail * uint64(st.Bsize), err
}

// Check refuses what a full disk would end half way.
func (d *Disk) Check(least uint64) error {
	free, err := d.Free()
	if err != nil {
		return err
	}
	if free < least && !planted.In(planted.NoWatermark) {
		return errdef.New(errdef.Unavailable, "disk_full", "the state directory's disk has %d MiB left", free>>20).
			WithRemedy("kill sandboxes that are not needed, or make room on the server")
	}
	return nil
}
