package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// heldFile is a file that the guest holds open for writing.
type heldFile struct {
	name   string
	f      *os.File
	mapped []byte // shared; nil if it is not mapped
}

const heldPages = 64

// heldOpen has files opened for writing, which are written once.
func heldOpen() (map[string]*heldFile, error) {
	held := map[string]*heldFile{}
	for _, h := range []struct {
		name  string
		flags int
		prot  int // of its mapping, through a descriptor that has no more rights
	}{
		{name: "written", flags: os.O_RDWR}, {name: "appended", flags: os.O_WRONLY | os.O_APPEND},
		{name: "twice", flags: os.O_RDWR}, {name: "cut", flags: os.O_RDWR}, {name: "allocated", flags: os.O_RDWR},
		{name: "seen", flags: os.O_RDWR, prot: unix.PROT_READ}, {name: "mapped later", flags: os.O_RDWR},
		{name: "removed", flags: os.O_RDWR}, {name: "replaced", flags: os.O_RDWR}, {name: "renamed", flags: os.O_RDWR},
		{name: "untouched", flags: os.O_RDWR}, {name: "synced", flags: os.O_RDWR},
		{name: "mapped", flags: os.O_RDWR, prot: unix.PROT_READ | unix.PROT_WRITE},
	} {
		path := "/" + h.name
		if err := os.WriteFile(path, bytes.Repeat([]byte{'a'}, heldPages*4096), 0o444); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, h.flags, 0)
		if err != nil {
			return nil, err
		}
		held[h.name] = &heldFile{name: path, f: f}
		if h.prot != 0 {
			through := f
			if h.prot&unix.PROT_WRITE == 0 {
				if through, err = os.Open(path); err != nil {
					return nil, err
				}
			}
			if held[h.name].mapped, err = unix.Mmap(int(through.Fd()), 0, heldPages*4096, h.prot, unix.MAP_SHARED); err != nil {
				return nil, err
			}
			_ = held[h.name].mapped[0]
		}
	}
	return held, nil
}

// change changes a byte of the file, or its size, in the way of its name.
func (h *heldFile) change() (err error) {
	var b = []byte("b")
	switch h.name {
	case "/appended":
		_, err = h.f.Write(b)
	case "/cut":
		err = h.f.Truncate(heldPages*4096 - 1)
	case "/allocated":
		err = unix.Fallocate(int(h.f.Fd()), 0, heldPages*4096, 1)
	case "/mapped later":
		if h.mapped, err = unix.Mmap(int(h.f.Fd()), 0, heldPages*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			h.mapped[0] = b[0]
		}
	case "/mapped":
		h.mapped[0] = b[0]
	case "/removed":
		err = errors.Join(os.Remove(h.name), os.WriteFile(h.name, []byte("another"), 0o600), h.write(b))
	case "/replaced":
		err = errors.Join(os.WriteFile(h.name+" by", []byte("another"), 0o600), os.Rename(h.name+" by", h.name), h.write(b))
	case "/renamed":
		err = errors.Join(os.Rename(h.name, h.name+" to"), os.WriteFile(h.name, []byte("another"), 0o600), h.write(b))
	case "/twice": // at once
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() { _, errs[i] = h.f.WriteAt(b, int64(i*4096)) })
		}
		wg.Wait()
		err = errors.Join(errs...)
	case "/synced":
		err = h.f.Sync()
	case "/untouched":
	default:
		err = h.write(b)
	}
	return err
}

func (h *heldFile) write(b []byte) error {
	_, err := h.f.WriteAt(b, 0)
	return err
}

// again changes another byte.
func (h *heldFile) again() error {
	_, err := h.f.WriteAt([]byte("b"), heldPages*4096/2)
	return err
}

// tell says what is read through the descriptor, the mapping and the name.
func (h *heldFile) tell(w io.Writer) error {
	count := func(data []byte) string {
		return fmt.Sprintf("%d+%d+%d", bytes.Count(data, []byte("a")), bytes.Count(data, []byte("b")), bytes.Count(data, []byte{0}))
	}
	var said []string
	if h.name != "/appended" {
		data, err := io.ReadAll(io.NewSectionReader(h.f, 0, 1<<20))
		if err != nil {
			return err
		}
		said = append(said, count(data))
	}
	if h.mapped != nil {
		said = append(said, count(h.mapped))
	}
	named, err := os.ReadFile(h.name)
	if err != nil {
		return err
	}
	st, err := h.f.Stat()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s, by its name %s, size %d", strings.Join(said, ", "), count(named), st.Size())
	return err
}

// serveHeld holds files open, changes one and tells what is in it.
func serveHeld() http.HandlerFunc {
	var held map[string]*heldFile
	return func(w http.ResponseWriter, r *http.Request) {
		var err error
		if held == nil {
			held, err = heldOpen()
		}
		if h := held[r.URL.Query().Get("change")]; err == nil && h != nil {
			err = h.change()
		}
		if h := held[r.URL.Query().Get("again")]; err == nil && h != nil {
			err = h.again()
		}
		if h := held[r.URL.Query().Get("tell")]; err == nil && h != nil {
			err = h.tell(w)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

func askHeld(t *testing.T, inst runtime.Instance, query string) string {
	t.Helper()
	client := guestClient(inst)
	client.Timeout = testmode.Patience()
	resp, err := client.Get("http://guest/held?" + query)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", query, said, err)
	}
	return string(said)
}

// TestFilesAreWrittenLater restores a guest that holds files open for writing. None of
// them is in the new layer until it is written, but those that may be written without a
// call. What is written then is seen through each descriptor, mapping and name, and saved
// and restored again.
func TestFilesAreWrittenLater(t *testing.T) {
	if edits == "" {
		if testing.Short() {
			t.Skip("this gVisor is not edited: make test-plain tests the one that is")
		}
		t.Fatal("this gVisor is not edited, and copies each file: run make test-plain")
	}
	const all = heldPages * 4096
	whole := fmt.Sprintf("%d+0+0", all)
	changed := fmt.Sprintf("%d+1+0", all-1)
	by := ", by its name "
	size := fmt.Sprintf(", size %d", all)
	want := map[string]string{
		"written":      changed + by + changed + size,
		"appended":     ", by its name " + fmt.Sprintf("%d+1+0, size %d", all, all+1),
		"twice":        fmt.Sprintf("%d+8+0, by its name %d+8+0, size %d", all-8, all-8, all),
		"cut":          fmt.Sprintf("%d+0+0, by its name %d+0+0, size %d", all-1, all-1, all-1),
		"allocated":    fmt.Sprintf("%d+0+1, by its name %d+0+1, size %d", all, all, all+1),
		"seen":         changed + ", " + changed + by + changed + size,
		"mapped later": changed + ", " + changed + by + changed + size,
		"removed":      changed + by + "1+0+0" + size,
		"replaced":     changed + by + "1+0+0" + size,
		"renamed":      changed + by + "1+0+0" + size,
		"untouched":    whole + by + whole + size,
		"synced":       whole + by + whole + size,
		"mapped":       changed + ", " + changed + by + changed + size,
	}
	r, d, spec, inst := startOne(t, 0)
	askHeld(t, inst, "")
	var woken runtime.Instance = inst
	for round := range 3 {
		image := r.capture(t, woken)
		if err := d.Remove(t.Context(), spec.ID); err != nil {
			t.Fatal(err)
		}
		spec = r.again(t, spec)
		var err error
		if woken, err = d.Restore(t.Context(), spec, image); err != nil {
			t.Fatal(err)
		}
		id := spec.ID
		t.Cleanup(func() { _ = d.Remove(t.Context(), id) })
		if err := os.RemoveAll(image); err != nil {
			t.Fatal(err)
		}
		copied := func(name string) bool { return r.store.Has([]string{spec.ID}, r.trees[0], name) }
		for name := range want {
			if must := name == "mapped"; (round == 0 || name == "written") && copied(name) != must {
				t.Errorf("restore %d: %q is in the layer of the restored guest: %t", round, name, !must)
			}
		}
		if round == 0 {
			continue // nothing is written at all
		}
		for name, says := range want {
			if round == 1 {
				askHeld(t, woken, "change="+url.QueryEscape(name))
			}
			if got := askHeld(t, woken, "tell="+url.QueryEscape(name)); got != says {
				t.Errorf("restore %d: %q is %s, want %s", round, name, got, says)
			}
			if unwritten := name == "untouched" || name == "synced"; round == 1 && copied(name) == unwritten {
				t.Errorf("after its change %q is in the layer: %t", name, !unwritten)
			}
		}
		if round == 1 {
			continue
		}
		for _, name := range []string{"written", "removed", "replaced", "renamed"} {
			askHeld(t, woken, "again="+name)
			twice := fmt.Sprintf("%d+2+0", all-2)
			says := twice + by + twice + size
			if name != "written" {
				says = twice + by + "1+0+0" + size
			}
			if got := askHeld(t, woken, "tell="+name); got != says {
				t.Errorf("restore %d: %q is %s, want %s", round, name, got, says)
			}
		}
	}
}
