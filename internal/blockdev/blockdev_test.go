package blockdev

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestWhole resolves devices of a made-up /sys.
func TestWhole(t *testing.T) {
	sys := t.TempDir()
	for dir, number := range map[string]string{
		"devices/pci0/ata1/block/sda":          "8:0",
		"devices/pci0/ata1/block/sda/sda2":     "8:2",
		"devices/pci0/nvme/nvme0n1":            "259:0",
		"devices/pci0/nvme/nvme0n1/nvme0n1p15": "259:15",
		"devices/virtual/block/dm-3":           "253:3",
		"devices/virtual/block/loop7":          "7:7",
	} {
		dir = filepath.Join(sys, dir)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "dev"), []byte(number+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
		if name := filepath.Base(dir); name == "sda2" || name == "nvme0n1p15" {
			if err := os.WriteFile(filepath.Join(dir, "partition"), []byte("2\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		links := filepath.Join(sys, "dev", "block")
		to, err := filepath.Rel(links, dir)
		if err := errors.Join(err, os.MkdirAll(links, 0o755), os.Symlink(to, filepath.Join(links, number))); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		major, minor uint32
		want         Disk
	}{
		{8, 0, Disk{"sda", 8, 0}},
		{8, 2, Disk{"sda", 8, 0}},
		{259, 15, Disk{"nvme0n1", 259, 0}},
		{253, 3, Disk{"dm-3", 253, 3}},
		{7, 7, Disk{"loop7", 7, 7}},
	} {
		got, err := whole(filepath.Join(sys, "dev", "block"), unix.Mkdev(tt.major, tt.minor))
		if err != nil || got != tt.want {
			t.Errorf("%d:%d is %+v, %v; want %+v", tt.major, tt.minor, got, err, tt.want)
		}
	}
	if _, err := whole(filepath.Join(sys, "dev", "block"), unix.Mkdev(9, 9)); !errors.Is(err, ErrNone) {
		t.Errorf("of a device that is not there: %v", err)
	}
	if d := (Disk{"sda", 8, 0}); d.Number() != "8:0" || d.String() != "/dev/sda" {
		t.Errorf("%s, %s", d.Number(), d)
	}
}

// TestUnder finds the disks under file systems of several kinds.
func TestUnder(t *testing.T) {
	if size := unsafe.Sizeof(btrfsFS{}); size != btrfsFSInfo>>16&0x3fff {
		t.Errorf("btrfsFS has %d bytes", size)
	}
	if size := unsafe.Sizeof(btrfsDev{}); size != btrfsDevInfo>>16&0x3fff {
		t.Errorf("btrfsDev has %d bytes", size)
	}
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts file systems: run it as root")
	}
	for name, tt := range map[string]struct {
		mkfs  []string // without the devices
		disks int
	}{
		"ext4":               {[]string{"mkfs.ext4", "-q"}, 1},
		"xfs":                {[]string{"mkfs.xfs", "-q"}, 1},
		"btrfs":              {[]string{"mkfs.btrfs", "-q"}, 1},
		"btrfs on two disks": {[]string{"mkfs.btrfs", "-q"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var loops []string
			for range tt.disks {
				loops = append(loops, loop(t))
			}
			run(t, append(slices.Clone(tt.mkfs), loops...)...)
			dir := t.TempDir()
			run(t, "mount", loops[0], dir)
			t.Cleanup(func() { run(t, "umount", dir) })
			below := filepath.Join(dir, "state")
			if err := os.Mkdir(below, 0o700); err != nil {
				t.Fatal(err)
			}
			got, err := Under(below)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, d := range got {
				names = append(names, d.String())
				number, err := os.ReadFile("/sys/block/" + d.Name + "/dev")
				if err != nil || strings.TrimSpace(string(number)) != d.Number() {
					t.Errorf("%s has the number %s, %v; want %s", d, number, err, d.Number())
				}
			}
			slices.Sort(names)
			slices.Sort(loops)
			if !slices.Equal(names, loops) {
				t.Errorf("disks %v, want %v", names, loops)
			}
		})
	}
	t.Run("tmpfs", func(t *testing.T) {
		dir := t.TempDir()
		run(t, "mount", "-t", "tmpfs", "none", dir)
		t.Cleanup(func() { run(t, "umount", dir) })
		if _, err := Under(dir); !errors.Is(err, ErrNone) {
			t.Errorf("error %v", err)
		}
	})
}

// loop returns a new disk. It is a sparse file.
func loop(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(file)
	if err == nil {
		err = errors.Join(f.Truncate(512<<20), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	dev := run(t, "losetup", "--find", "--show", file)
	t.Cleanup(func() { run(t, "losetup", "--detach", dev) })
	return dev
}

func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}
