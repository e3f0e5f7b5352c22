package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/gvisor/imageserver"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// serveHeap holds so many MiB of random memory, and answers with their checksum.
// With "piece" it hands so many bytes of it, from the middle, to system calls; with
// "fork" it has so many copied when they are written.
func serveHeap() http.HandlerFunc {
	var heap []byte
	number := func(r *http.Request, name string) int {
		n, _ := strconv.Atoi(r.URL.Query().Get(name))
		return n
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if mib := number(r, "mib"); mib > 0 {
			heap = make([]byte, mib<<20)
			_, _ = rand.NewChaCha8([32]byte{1}).Read(heap)
		}
		if n := number(r, "piece"); n > 0 {
			piece := heap[len(heap)/2:][:n]
			name := filepath.Join("/", r.URL.Query().Get("piece"))
			if err := throughFile(name, piece); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		if n := number(r, "fork"); n > 0 {
			if err := forkAndWrite(heap[len(heap)/2:][:n]); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		fmt.Fprint(w, crc32.Checksum(heap[:len(heap)/100*number(r, "percent")], castagnoli))
	}
}

// throughFile writes a piece of memory to a file, and reads it from there, to memory of
// its own and to where it was. The system calls come first to touch the piece.
func throughFile(name string, piece []byte) error {
	if err := os.WriteFile(name, piece, 0o600); err != nil {
		return err
	}
	back, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if !bytes.Equal(piece, back) {
		return errors.New("what a system call wrote is not what was in memory")
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	clear(piece)
	if _, err := io.ReadFull(f, piece); err != nil {
		return err
	}
	if !bytes.Equal(piece, back) {
		return errors.New("what a system call read into memory is not what was in the file")
	}
	return nil
}

// heap asks the guest, until it answers or the runtime ends.
func heap(t *testing.T, i *instance, query string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // else nothing would tell that there is no answer
		select {
		case <-i.Exited():
			cancel()
		case <-ctx.Done():
		}
	}()
	for end := time.Now().Add(testmode.Patience()); ; time.Sleep(5 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/heap?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := guestClient(i).Do(req)
		if err == nil {
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err == nil && resp.StatusCode != http.StatusOK {
				err = errors.New(string(body))
			}
			return string(body), err
		}
		select {
		case <-i.Exited():
			return "", errors.New("the runtime has ended")
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("no answer to %s: %v", query, err)
		}
	}
}

// unread describes an image as package layer does.
func unread(t *testing.T, image string) []runtime.ImageFile {
	t.Helper()
	entries, err := os.ReadDir(image)
	if err != nil {
		t.Fatal(err)
	}
	var files []runtime.ImageFile
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(image, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		f := runtime.ImageFile{Name: e.Name(), Size: int64(len(data)), Chunk: 1 << 20}
		for len(data) > 0 {
			n := min(len(data), 1<<20)
			f.CRC32C = append(f.CRC32C, crc32.Checksum(data[:n], castagnoli))
			data = data[n:]
		}
		files = append(files, f)
	}
	return files
}

// early is a guest with a large heap, and its image.
type early struct {
	*rig
	d     *Driver
	spec  runtime.Spec // of the runtime that there was last
	image string
	sum   string // of the heap
	// allFirst has restore return when all of the image has been read.
	allFirst bool
}

const heapMiB = 128

func newEarly(t *testing.T) *early {
	e := &early{rig: newRig(t)}
	e.d = e.reopen(t).(*Driver)
	e.spec = e.newSpec(t)
	i := start(t, e.d, e.spec)
	askFresh(t, i)
	var err error
	if e.sum, err = heap(t, i, fmt.Sprintf("mib=%d&percent=100", heapMiB)); err != nil {
		t.Fatal(err)
	}
	e.image = e.capture(t, i)
	e.remove(t)
	return e
}

func (e *early) remove(t *testing.T) {
	t.Helper()
	if err := e.d.Remove(t.Context(), e.spec.ID); err != nil {
		t.Fatal(err)
	}
}

func (e *early) restore(t *testing.T, files []runtime.ImageFile) (*instance, error) {
	t.Helper()
	e.spec = e.again(t, e.spec)
	e.spec.Unread, e.spec.AllFirst = files, e.allFirst
	inst, err := e.d.Restore(t.Context(), e.spec, e.image)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = e.d.Remove(t.Context(), inst.ID()) })
	return inst.(*instance), nil
}

// TestRestoreEarly wakes a guest before its memory has been read, captures it again
// in the middle of that, and wakes what was captured. Everything must be there each
// time.
func TestRestoreEarly(t *testing.T) {
	e := newEarly(t)
	for cycle := range 4 {
		i, err := e.restore(t, unread(t, e.image))
		if err != nil {
			t.Fatal(err)
		}
		if cycle%2 == 0 {
			for _, query := range []string{"percent=1", "piece=65536", "piece=3&percent=50"} {
				if _, err := heap(t, i, query); err != nil {
					t.Fatalf("cycle %d: %s: %v", cycle, query, err)
				}
			}
		}
		if err := os.Rename(e.image, fmt.Sprintf("%s-%d", e.image, cycle)); err != nil {
			t.Fatal(err)
		}
		e.image = e.capture(t, i) // as early as it lets itself be captured
		select {
		case <-i.loaded:
		default:
			t.Error("a guest was captured whose memory is not there")
		}
		if err := i.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := heap(t, i, "percent=100"); err != nil || got != e.sum {
			t.Fatalf("cycle %d: the heap's checksum is %s, %v; it was %s", cycle, got, err, e.sum)
		}
		e.remove(t)
		if d := i.Damage(); d != nil {
			t.Errorf("cycle %d: damage of a whole image: %v", cycle, d)
		}
	}
}

// TestRestoreEarlyFindsDamage flips a byte in each file of an image, at the
// beginning, in the middle and at the end. The guest must not see it: either it does
// not start, or it ends before it answers for its memory.
func TestRestoreEarlyFindsDamage(t *testing.T) {
	e := newEarly(t)
	files := unread(t, e.image)
	if len(files) != 3 {
		t.Fatalf("an image has the files %+v", files)
	}
	for _, f := range files {
		for _, at := range []int64{0, f.Size / 2, f.Size - 1} {
			t.Run(fmt.Sprintf("%s at %d of %d", f.Name, at, f.Size), func(t *testing.T) {
				flip(t, filepath.Join(e.image, f.Name), at)
				defer flip(t, filepath.Join(e.image, f.Name), at)
				want := imageserver.Damage{File: f.Name, Offset: at &^ (1<<20 - 1)}
				i, err := e.restore(t, files)
				if err != nil {
					d, ok := errors.AsType[*imageserver.Damage](err)
					if ee, coded := errors.AsType[*errdef.Error](err); !coded || ee.Code != codeDamaged || !ok || *d != want {
						t.Errorf("restore: %v; want the damage %v", err, &want)
					}
					return
				}
				if sum, err := heap(t, i, "percent=100"); err == nil {
					t.Errorf("the guest answers %s (it was %s), with a byte of its image changed", sum, e.sum)
				}
				select {
				case <-i.Exited():
				case <-time.After(time.Minute):
					t.Fatal("the runtime goes on")
				}
				if d, ok := errors.AsType[*imageserver.Damage](i.Damage()); !ok || *d != want {
					t.Errorf("it ended of %v; want the damage %v", i.Damage(), &want)
				}
				e.remove(t)
			})
		}
	}
	t.Run("undone", func(t *testing.T) {
		i, err := e.restore(t, files)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := heap(t, i, "percent=100"); err != nil || got != e.sum {
			t.Errorf("the heap's checksum is %s, %v; it was %s", got, err, e.sum)
		}
	})
}

func flip(t *testing.T, name string, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// stopLoading restores a guest whose image server is stopped in the middle.
func (e *early) stopLoading(t *testing.T) (*instance, int) {
	t.Helper()
	files := unread(t, e.image)
	for begin := time.Now(); time.Since(begin) < testmode.Patience(); {
		i, err := e.restore(t, files)
		if err != nil {
			t.Fatal(err)
		}
		if pid := imageServerOf(t, i); pid != 0 && unix.Kill(pid, unix.SIGSTOP) == nil {
			testmode.Eventually(t, "SIGSTOP stops an image server", func() bool { return halted(t, pid) })
			r, over, err := reportIn(i.d.bundle(i.id))
			if err != nil {
				t.Fatal(err)
			}
			if !over && !r.Done {
				return i, pid
			}
		}
		e.remove(t)
	}
	t.Fatal("every image was read before its server could be stopped")
	return nil, 0
}

// halted reports whether no thread of a process runs: it was stopped, or has ended.
func halted(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range stats {
		line, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(line), ") ")
		if !strings.HasPrefix(rest, "T") && !strings.HasPrefix(rest, "Z") {
			return false
		}
	}
	return true
}

// imageServerOf returns the process that loads a runtime's memory; 0 for none.
func imageServerOf(t *testing.T, i *instance) int {
	t.Helper()
	self, err := os.Stat(filepath.Join(i.d.bundle(i.id), loadingFile))
	if err != nil {
		t.Fatal(err)
	}
	comms, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range comms {
		other, err := os.Stat(fd)
		if err == nil && os.SameFile(self, other) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(fd))))
			if err != nil {
				t.Fatal(err)
			}
			if pid != os.Getpid() {
				return pid
			}
		}
	}
	return 0
}

// TestRestoreEarlyKill removes a runtime in the middle of loading.
func TestRestoreEarlyKill(t *testing.T) {
	e := newEarly(t)
	i, pid := e.stopLoading(t)
	e.remove(t)
	select {
	case <-i.loaded:
	case <-time.After(testmode.Patience()):
		t.Error("somebody still waits for its memory")
	}
	testmode.Eventually(t, "the end of its image server", func() bool { return exited(pid) })
}

// TestRestoreEarlyWithoutServer ends the image server in the middle: the runtime ends
// too, and nothing says that its image is damaged.
func TestRestoreEarlyWithoutServer(t *testing.T) {
	e := newEarly(t)
	i, pid := e.stopLoading(t)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-i.Exited():
	case <-time.After(time.Minute):
		t.Fatal("the runtime goes on")
	}
	if d := i.Damage(); d != nil {
		t.Errorf("it says that its image is damaged: %v", d)
	}
}

// TestRestoreEarlyAdopted: another server finds a runtime that is still loading, and
// learns of damage.
func TestRestoreEarlyAdopted(t *testing.T) {
	e := newEarly(t)
	_, pid := e.stopLoading(t)
	again := func() *instance {
		inst, err := e.reopen(t).Adopt(t.Context(), e.spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		return inst.(*instance)
	}
	i := again()
	select {
	case <-i.loaded:
		t.Fatal("it is said to be loaded")
	default:
	}
	// All that has not been read is damaged now.
	name := filepath.Join(e.image, "pages.img")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, make([]byte, info.Size()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-i.Exited():
	case <-time.After(time.Minute):
		t.Fatal("the runtime goes on")
	}
	if d, ok := errors.AsType[*imageserver.Damage](i.Damage()); !ok || d.File != "pages.img" {
		t.Errorf("it ended of %v, want damage of pages.img", i.Damage())
	}
}

// TestHostileSentry: a sentry reaches its three files and nothing else, in an image with
// a map too. What it can say to end an image server ends that one alone, and whoever
// follows it ends the runtime.
func TestHostileSentry(t *testing.T) {
	t.Run("whole", func(t *testing.T) {
		e := newEarly(t)
		beHostile(t, e, unread(t, e.image))
	})
	t.Run("mapped", func(t *testing.T) {
		c := newChain(t)
		c.pause(t)
		beHostile(t, c.early, c.files())
	})
}

// beHostile is a hostile sentry for the image server of an image that has these files.
func beHostile(t *testing.T, e *early, files []runtime.ImageFile) {
	t.Helper()
	e.spec = e.again(t, e.spec)
	i := start(t, e.d, e.spec)
	conn, err := i.c.(local).serveImage(e.d.bundle(e.spec.ID), e.image, serving{Files: files}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	eventually(t, "the image server has its image", func() bool { pid = imageServerOf(t, i); return pid != 0 })
	fd, err := unix.Dup(int(conn.Fd()))
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	sock, err := unet.NewSocket(fd)
	if err != nil {
		t.Fatal(err)
	}
	sentry, err := stateipc.NewAsyncFileClient(urpc.NewClient(sock))
	if err != nil {
		t.Fatal(err)
	}
	defer sentry.DecRef()
	refused := []string{"manifest.json", "../" + filepath.Base(e.image) + "/pages.img", "/etc/passwd", ""}
	for _, f := range files {
		if !slices.Contains(imageserver.Asked, f.Name) {
			refused = append(refused, f.Name)
		}
	}
	for _, name := range refused {
		if _, err := sentry.OpenRead(name); err == nil {
			t.Errorf("it opened %q", name)
		}
	}
	r, err := sentry.OpenRead("pages.img")
	if err != nil {
		t.Fatal(err)
	}
	checkPowerless(t, pid) // it serves, so it has given up what it does not need
	memfd, memory, err := stateio.CreateMappedMemoryFD("memory", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	df, err := r.RegisterDestinationFD(memfd, 4096, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Past what it registered: refused.
	r.AddRead(0, 0, df, memmap.FileRange{Start: 0, End: 1 << 20}, memory)
	if cs, err := r.Wait(nil, 1); err != nil || len(cs) != 1 || cs[0].Err == nil {
		t.Errorf("a read past the memory that was registered: %+v, %v", cs, err)
	}
	// A number that no read may have: gVisor's server panics.
	r.AddRead(1<<20, 0, df, memmap.FileRange{Start: 0, End: 4096}, memory[:4096])
	if _, err := r.Wait(nil, 1); err == nil {
		t.Error("a read of a number that does not exist is answered")
	}
	ended := false
	if err := follow(e.d.bundle(i.id), func() { ended = true }, nil); !errors.Is(err, errImageServerDied) || !ended {
		t.Errorf("follow: %v, and it ended the runtime: %v", err, ended)
	}
	askFresh(t, i)
}

// checkPowerless checks what an image server or an image taker may do.
func checkPowerless(t *testing.T, pid int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n",
		"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("it has not %q:\n%s", want, status)
		}
	}
}
