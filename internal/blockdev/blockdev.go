// Package blockdev finds the disks under a directory, as the kernel's limits of
// block I/O name them.
package blockdev

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Disk is a whole block device: never a partition, for which the kernel takes no
// limit. A device of the device mapper and a loop device are disks of their own.
type Disk struct {
	Name         string // in /dev, such as "sda"
	Major, Minor uint32
}

// Number returns the disk as the files of a cgroup name it: "8:0".
func (d Disk) Number() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// String returns the disk as people name it: "/dev/sda".
func (d Disk) String() string { return "/dev/" + d.Name }

// ErrNone says that a directory is on no disk of this machine.
var ErrNone = errors.New("its file system has no disk that the kernel could limit")

// Under returns the disks that a directory is on: one, except with btrfs, which
// can have several.
func Under(dir string) ([]Disk, error) {
	disks, err := devices(dir)
	if err != nil {
		return nil, fmt.Errorf("find the disk under %s: %w", dir, err)
	}
	return disks, nil
}

func devices(dir string) ([]Disk, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, err
	}
	if unix.Major(st.Dev) != 0 {
		d, err := whole(sysBlock, st.Dev)
		return []Disk{d}, err
	}
	// Several file systems have a device number of their own that names no device.
	var f unix.Statfs_t
	if err := unix.Statfs(dir, &f); err != nil {
		return nil, err
	}
	if int64(f.Type) == unix.BTRFS_SUPER_MAGIC {
		return ofBtrfs(dir)
	}
	return nil, ErrNone
}

// sysBlock has a link for each block device, named by its number.
const sysBlock = "/sys/dev/block"

// whole returns the disk that a device is, or is a partition of.
func whole(sys string, dev uint64) (d Disk, err error) {
	// Resolved first: the directory of a partition is in that of its disk.
	dir, err := filepath.EvalSymlinks(filepath.Join(sys, fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))))
	if errors.Is(err, fs.ErrNotExist) {
		return d, ErrNone
	}
	if err != nil {
		return d, err
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	number, err := os.ReadFile(filepath.Join(dir, "dev"))
	if err != nil {
		return d, err
	}
	if _, err := fmt.Sscanf(strings.TrimSpace(string(number)), "%d:%d", &d.Major, &d.Minor); err != nil {
		return d, fmt.Errorf("number of %s: %w", dir, err)
	}
	d.Name = filepath.Base(dir)
	return d, nil
}

// What the kernel's uapi/linux/btrfs.h defines.
const (
	btrfsFSInfo  = 0x8400941f // BTRFS_IOC_FS_INFO
	btrfsDevInfo = 0xd000941e // BTRFS_IOC_DEV_INFO
)

// btrfsFS is struct btrfs_ioctl_fs_info_args.
type btrfsFS struct {
	MaxID   uint64
	Devices uint64
	_       [1008]byte
}

// btrfsDev is struct btrfs_ioctl_dev_info_args.
type btrfsDev struct {
	ID   uint64
	_    [3064]byte
	Path [1024]byte
}

// ofBtrfs returns the disks that a btrfs is made of.
func ofBtrfs(dir string) (disks []Disk, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all btrfsFS
	if err := ioctl(f, btrfsFSInfo, &all); err != nil {
		return nil, fmt.Errorf("devices of btrfs: %w", err)
	}
	seen := map[Disk]bool{}
	for id := uint64(1); id <= all.MaxID; id++ {
		d := btrfsDev{ID: id}
		err := ioctl(f, btrfsDevInfo, &d)
		if errors.Is(err, unix.ENODEV) {
			continue // one that was removed from it
		}
		if err != nil {
			return nil, fmt.Errorf("device %d of btrfs: %w", id, err)
		}
		path, _, _ := bytes.Cut(d.Path[:], []byte{0})
		var st unix.Stat_t
		if err := unix.Stat(string(path), &st); err != nil {
			return nil, fmt.Errorf("device %d of btrfs, %s: %w", id, path, err)
		}
		disk, err := whole(sysBlock, st.Rdev)
		if err != nil {
			return nil, err
		}
		if !seen[disk] {
			seen[disk] = true
			disks = append(disks, disk)
		}
	}
	if len(disks) == 0 {
		return nil, ErrNone
	}
	return disks, nil
}
