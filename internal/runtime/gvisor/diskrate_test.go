package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/blockdev"
	"github.com/drowse-dev/drowse/internal/cgroup"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// TestRulesOfRates sets and lifts rates in made-up cgroups of each kind.
func TestRulesOfRates(t *testing.T) {
	disks := []blockdev.Disk{{Name: "sda", Major: 8}, {Name: "nvme0n1", Major: 259, Minor: 3}}
	v1 := map[string]string{readRateV1: "blkio/drowse/i0r1/" + readRateV1, writeRateV1: "blkio/drowse/i0r1/" + writeRateV1}
	v2 := map[string]string{ratesV2: "place/i0r1/io.max"}
	both := maps.Clone(v1)
	both["unified"] = "unified/drowse/i0r1/cgroup.procs" // a hierarchy of v2 without controllers
	for name, tt := range map[string]struct {
		files map[string]string
		v2    bool
		rates DiskRates
		want  map[string]string // the last rule, for the last disk
		rules map[string]string // as the kernel lists them
		lift  map[string]string
	}{
		"v1": {
			files: v1, rates: DiskRates{Read: 5 << 20, Write: 1 << 20},
			want:  map[string]string{readRateV1: "259:3 5242880", writeRateV1: "259:3 1048576"},
			rules: map[string]string{readRateV1: "8:0 5242880\n", writeRateV1: "8:0 1048576\n"},
			lift:  map[string]string{readRateV1: "8:0 0", writeRateV1: "8:0 0"},
		},
		"v1, reads alone": {
			files: v1, rates: DiskRates{Read: 7},
			want:  map[string]string{readRateV1: "259:3 7", writeRateV1: "259:3 0"},
			rules: map[string]string{readRateV1: "8:0 7\n", writeRateV1: ""},
			lift:  map[string]string{readRateV1: "8:0 0", writeRateV1: ""},
		},
		"hybrid": {
			files: both, rates: DiskRates{Read: 7, Write: 9},
			want:  map[string]string{readRateV1: "259:3 7", writeRateV1: "259:3 9", "unified": ""},
			rules: map[string]string{readRateV1: "8:0 7\n", writeRateV1: "8:0 9\n"},
			lift:  map[string]string{readRateV1: "8:0 0", writeRateV1: "8:0 0", "unified": ""},
		},
		"v2": {
			files: v2, v2: true, rates: DiskRates{Read: 5 << 20, Write: 1 << 20},
			want:  map[string]string{ratesV2: "259:3 rbps=5242880 wbps=1048576"},
			rules: map[string]string{ratesV2: "8:0 rbps=5242880 wbps=1048576 riops=max wiops=max\n"},
			lift:  map[string]string{ratesV2: "8:0 rbps=max wbps=max"},
		},
		"v2, writes alone": {
			files: v2, v2: true, rates: DiskRates{Write: 9},
			want:  map[string]string{ratesV2: "259:3 rbps=max wbps=9"},
			rules: map[string]string{ratesV2: ""},
			lift:  map[string]string{ratesV2: ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write := func(key, text string) {
				path := filepath.Join(root, tt.files[key])
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			want := func(all map[string]string) {
				t.Helper()
				for key, want := range all {
					if got, err := os.ReadFile(filepath.Join(root, tt.files[key])); err != nil || string(got) != want {
						t.Errorf("%s is %q, %v; want %q", key, got, err, want)
					}
				}
			}
			for key := range tt.files {
				write(key, "")
			}
			g := group{root: root, id: "i0r1"}
			if tt.v2 {
				g.tree, g.path = cgroup.At(root), "/place/i0r1"
			}
			if found, err := g.limitDisks(diskRates{tt.rates, disks}); err != nil || !found {
				t.Fatalf("found: %t, %v", found, err)
			}
			want(tt.want)
			for key, text := range tt.rules {
				write(key, text)
			}
			if err := g.liftDisks(); err != nil {
				t.Fatal(err)
			}
			want(tt.lift)
		})
	}
	g := group{root: t.TempDir(), id: "i0r1"}
	if found, err := g.limitDisks(diskRates{DiskRates{Read: 1}, disks}); err != nil || found {
		t.Errorf("in a kernel without it: found: %t, %v", found, err)
	}
	d := &Driver{rates: diskRates{DiskRates{Read: 1}, disks}}
	if err := d.bound(g); err == nil {
		t.Error("a limit that nobody keeps is no error")
	}
}

// serveDisk writes a file and waits until it is on the disk, or reads it.
func serveDisk() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		mib, err := strconv.Atoi(r.URL.Query().Get("write"))
		if err != nil {
			err = readAll("/file")
		} else {
			err = writeOut("/file", mib, r.URL.Query().Get("sync") != "")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

func readAll(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}

func writeOut(path string, mib int, sync bool) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i >> 8 * i)
	}
	for range mib {
		if _, err := f.Write(block); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// useDisk has the guest use its disk, and returns how long that took.
func useDisk(ctx context.Context, i *instance, query string) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/disk?"+query, nil)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	resp, err := guestClient(i).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return time.Since(begin), err
}

// newDiskDir returns a directory on a disk of its own.
func newDiskDir(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 2<<30), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// rules returns the rates that a runtime has, as the kernel lists them.
func rules(i *instance) string {
	var all []string
	for _, file := range []string{readRateV1, writeRateV1} {
		for path, text := range i.group.files("blkio", file, ratesV2) {
			if text = strings.TrimSpace(text); text != "" && (file == readRateV1 || filepath.Base(path) != ratesV2) {
				all = append(all, text)
			}
		}
	}
	return strings.Join(all, ", ")
}

// TestDiskRates has a guest use its disk, and reads its rates back at each step
// of its life: one that starts, is frozen, thawed, found by a server with other
// rates or none, and restored.
func TestDiskRates(t *testing.T) {
	t.Parallel()
	r := newRigIn(t, newDiskDir(t))
	disks, err := blockdev.Under(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	want := func(i *instance, rates DiskRates) {
		t.Helper()
		number := disks[0].Number()
		var v1 []string
		for _, rate := range []int64{rates.Read, rates.Write} {
			if rate > 0 {
				v1 = append(v1, fmt.Sprintf("%s %d", number, rate))
			}
		}
		v2 := ""
		if rates != (DiskRates{}) {
			v2 = rulesOf(ratesV2, number, rates)[ratesV2] + " riops=max wiops=max"
		}
		if got := rules(i); got != strings.Join(v1, ", ") && got != v2 {
			t.Errorf("the rates are %q, want %+v", got, rates)
		}
	}
	r.rates, r.warm = DiskRates{Read: 6 << 20, Write: 8 << 20}, 1
	d := r.reopen(t).(*Driver)
	spec := r.newSpec(t)
	i := start(t, d, spec)
	askFresh(t, i) // until it listens
	want(i, r.rates)

	took, err := useDisk(t.Context(), i, "write=12&sync=1")
	if err != nil || took < time.Second {
		t.Errorf("it wrote 12 MiB in %v, %v; want 1.5 s", took, err)
	}
	t.Logf("12 MiB written in %v", took)
	forget(t, filepath.Join(spec.Rootfs, "file"))
	took, err = useDisk(t.Context(), i, "")
	if err != nil || took < 3*time.Second/2 {
		t.Errorf("it read 12 MiB in %v, %v; want 2 s", took, err)
	}
	t.Logf("12 MiB read in %v", took)

	i.LiftDiskRates()
	want(i, DiskRates{})
	if err := i.Thaw(t.Context()); err != nil { // it was never frozen
		t.Fatal(err)
	}
	want(i, r.rates)
	image := r.capture(t, i)
	want(i, DiskRates{})

	first := r.rates
	for _, rates := range []DiskRates{{Write: 16 << 20}, {}, first} {
		r.rates = rates
		found, err := r.reopen(t).Adopt(t.Context(), i.id)
		if err != nil {
			t.Fatal(err)
		}
		i = found.(*instance)
		want(i, DiskRates{}) // still frozen
		if err := i.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(i, rates)
		if found, err = r.reopen(t).Adopt(t.Context(), i.id); err != nil {
			t.Fatal(err)
		}
		i = found.(*instance)
		want(i, rates)
		if err := i.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	d = r.reopen(t).(*Driver)
	if err := d.Remove(t.Context(), i.id); err != nil {
		t.Fatal(err)
	}
	again := r.again(t, spec)
	restored, err := d.Restore(t.Context(), again, image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background(), again.ID); err != nil {
			t.Error(err)
		}
	})
	askFresh(t, restored.(*instance))
	want(restored.(*instance), first)
}

// TestDiskRatesHoldNobodyUp freezes and removes runtimes that wait for a write of
// minutes.
func TestDiskRatesHoldNobodyUp(t *testing.T) {
	const patience = 60 * time.Second
	for name, do := range map[string]func(d *Driver, i *instance) error{
		"freeze": func(_ *Driver, i *instance) error { return i.Freeze(context.Background()) },
		"remove": func(d *Driver, i *instance) error { return d.Remove(context.Background(), i.id) },
		"gc": func(d *Driver, i *instance) error {
			left, err := RemainsOf(d.dir)
			return errors.Join(err, left.Remove(context.Background(), i.id))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigIn(t, newDiskDir(t))
			r.rates = DiskRates{Write: 1 << 20}
			d := r.reopen(t).(*Driver)
			i := start(t, d, r.newSpec(t))
			askFresh(t, i)
			if _, err := useDisk(t.Context(), i, "write=128"); err != nil {
				t.Fatal(err)
			}
			// With cgroup v1 the kernel writes for nobody what it writes by itself, and a
			// guest that waits for its files then waits for nothing: it has more.
			ctx, cancel := context.WithCancel(t.Context())
			writing := make(chan error, 1)
			defer func() { cancel(); <-writing }()
			write := func() {
				_, err := useDisk(ctx, i, "write=128&sync=1")
				writing <- err
			}
			go write()
			for began, held := time.Now(), false; !held; {
				select {
				case err := <-writing:
					if err != nil || time.Since(began) > patience {
						writing <- nil
						t.Fatalf("no write is held up after %v: %v", time.Since(began), err)
					}
					go write()
				case <-time.After(3 * time.Second):
					held = true
				}
			}
			begin := time.Now()
			done := make(chan error, 1)
			go func() { done <- do(d, i) }()
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(patience):
				_ = i.group.liftDisks()
				t.Fatalf("not done after %v", patience)
			}
			t.Logf("done after %v", time.Since(begin))
		})
	}
}

// TestNoDiskRates asks for rates where there is no disk.
func TestNoDiskRates(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, 0)
	_, err := New(t.Context(), filepath.Join(dir, "gv"), nil, Options{DiskRates: DiskRates{Read: 1 << 20}})
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Code != "no_disk_rates" || e.Remedy == "" {
		t.Errorf("error %v", err)
	}
}

// forget has the kernel drop a file from its cache.
func forget(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Fatal(err)
	}
}

var _ runtime.DiskLimited = (*instance)(nil)
