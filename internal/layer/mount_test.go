package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// eachWay runs a test with each interface of the kernel that works here. The
// one for old kernels works everywhere.
func eachWay(t *testing.T, test func(t *testing.T, m mounter)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			m, err := findMounter(filepath.Join(t.TempDir(), "trial"), []way{w})
			if err != nil && w.name == ways[0].name && olderThan(t, 6, 7) {
				t.Skipf("Linux has this since 6.7: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			test(t, m)
		})
	}
}

// olderThan reports whether the kernel that runs is older than a version.
func olderThan(t *testing.T, major, minor int) bool {
	var u unix.Utsname
	var x, y int
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &x, &y); err != nil {
		t.Fatal(err)
	}
	return x < major || x == major && y < minor
}

// deepStack makes n layers with a file each, without mounting them one after
// the other.
func (r *rig) deepStack(n int) (stack []string) {
	for i := range n {
		id := fmt.Sprintf("layer%035d", i)
		r.write(filepath.Join(r.LayerDir(id), "root", fmt.Sprintf("file%d", i)), id)
		stack = append(stack, id)
	}
	return stack
}

func TestDeepestStackInEachWay(t *testing.T) {
	eachWay(t, func(t *testing.T, m mounter) {
		r := newRig(t)
		r.mounter = &m
		stack := r.deepStack(MaxLowers - 1) // and the template
		at := r.mount(stack, "top")
		for i, id := range stack {
			if got := r.read(filepath.Join(at, fmt.Sprintf("file%d", i))); got != id {
				t.Fatalf("file%d = %q, want %q", i, got, id)
			}
		}
		r.write(filepath.Join(at, "new"), "new")
		if got := r.read(filepath.Join(r.LayerDir("top"), "root/new")); got != "new" {
			t.Errorf("the top has %q of what was written", got)
		}
	})
}

func TestStackTooDeep(t *testing.T) {
	eachWay(t, func(t *testing.T, m mounter) {
		r := newRig(t)
		r.mounter = &m
		at := filepath.Join(r.dir, "mnt")
		err := r.Mount(at, r.trees, r.deepStack(MaxLowers), "top")
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "too_many_layers" {
			t.Errorf("mount of %d layers over a template: %v", MaxLowers, err)
		}
		if points, err := mountPoints(at); err != nil || len(points) > 0 {
			t.Errorf("left mounted: %v, %v", points, err)
		}
	})
}

// TestOddDirectories has all that overlayfs, mount(2) or the lists of mounts
// give a meaning in a path.
func TestOddDirectories(t *testing.T) {
	long := strings.Repeat("x", 255)
	for _, name := range []string{"a b", "a,b", "a:b", `a\b`, `a\:b`, "a#b", "a\tb", "a\nb", "lowerdir=x", "ä", long} {
		eachWay(t, func(t *testing.T, m mounter) {
			dir := filepath.Join(t.TempDir(), name)
			r := rigIn(t, dir)
			r.mounter = &m
			a := r.mount(nil, "a")
			r.write(filepath.Join(a, "etc/name"), "from a")
			r.write(filepath.Join(a, "usr/bin/tool"), "from a")
			b := r.mount([]string{"a"}, "b")
			for _, file := range []string{"etc/name", "usr/bin/tool"} {
				if got := r.read(filepath.Join(b, file)); got != "from a" {
					t.Errorf("below %q, %s = %q", name, file, got)
				}
			}
			r.must(Unmount(b))
			if points, err := mountPoints(b); err != nil || len(points) > 0 {
				t.Errorf("below %q, left mounted: %v, %v", name, points, err)
			}
		})
	}
}

// TestUnmountBehindLink unmounts by a path that the kernel does not know the
// mounts by.
func TestUnmountBehindLink(t *testing.T) {
	r := newRig(t)
	link := filepath.Join(r.t.TempDir(), "link")
	r.must(os.Symlink(r.dir, link))
	at := filepath.Join(link, "mnt")
	r.must(r.Mount(at, r.trees, nil, "top"))
	r.must(Unmount(at))
	if points, err := mountPoints(r.dir); err != nil || len(points) > 0 {
		t.Errorf("left mounted: %v, %v", points, err)
	}
}

// TestOldKernel has a kernel without the first way, and without one of the
// options.
func TestOldKernel(t *testing.T) {
	none := way{"none", func(overlay, []option) error { return unix.EINVAL }}
	old := way{"old", func(o overlay, options []option) error {
		for _, p := range options {
			if p.key == "metacopy" {
				return unix.EINVAL
			}
		}
		return mountByDescriptor(o, options)
	}}
	r := newRig(t)
	m, err := findMounter(r.trial, []way{none, old})
	if err != nil {
		t.Fatal(err)
	}
	r.mounter = &m
	found, err := r.Probe()
	if err != nil || found.Way != "old" || len(found.Missing) != 1 || found.Missing[0] != "metacopy=off" {
		t.Errorf("found %+v, %v", found, err)
	}
	if _, err := os.Lstat(r.trial); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the trial left its directory: %v", err)
	}
	r.mount(nil, "a")
}

// TestKernelThatForgets has one that mounts an overlay and leaves out what was
// asked for, as it does over a file system that cannot keep marks.
func TestKernelThatForgets(t *testing.T) {
	forgetful := way{"forgetful", func(o overlay, options []option) error {
		return mountByDescriptor(o, []option{{key: "redirect_dir", value: "off"}})
	}}
	r := newRig(t)
	_, err := findMounter(r.trial, []way{forgetful})
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "state_dir_unusable" {
		t.Errorf("probe: %v", err)
	}
	if points, err := mountPoints(r.trial); err != nil || len(points) > 0 {
		t.Errorf("left mounted: %v, %v", points, err)
	}
}

// TestProbeAfterKill begins where a probe was killed before it had unmounted.
func TestProbeAfterKill(t *testing.T) {
	r := newRig(t)
	lower := filepath.Join(r.trial, "0/all/lower")
	at := filepath.Join(r.trial, trialMount)
	r.must(makeDirs(lower, filepath.Join(r.trial, "upper"), filepath.Join(r.trial, "work"), at))
	r.must(mountByDescriptor(overlay{at: at, lowers: []string{lower}, upper: filepath.Join(r.trial, "upper"), work: filepath.Join(r.trial, "work")}, overlayOptions))
	if _, err := r.Probe(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(r.trial); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the trial left its directory: %v", err)
	}
}

// TestProbeOnOverlay refuses a state directory in a container's own file system.
func TestProbeOnOverlay(t *testing.T) {
	r := newRig(t)
	_, err := At(r.mount(nil, "container")).Probe()
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Code != "state_dir_unusable" || e.Remedy == "" {
		t.Fatalf("probe on overlayfs: %v", err)
	}
	t.Log(err)
}
