package imageserver

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"

	"github.com/drowse-dev/drowse/internal/pagemap"
)

// fuzzedPages is how many pages of memory the sentry has, and fuzzedMost how many bytes
// it may have written.
const (
	fuzzedPages = 200
	fuzzedMost  = 600 * pageSize
)

// streamOf reads what a sentry wants to have written: three bytes for each range, which
// say where it begins, how many pages it has, and whether it is out of line or goes on
// with the same write.
func streamOf(data []byte) (ops [][]memmap.FileRange) {
	var op []memmap.FileRange
	for ; len(data) >= 3; data = data[3:] {
		fr := memmap.FileRange{Start: uint64(data[0]) * pageSize, End: (uint64(data[0]) + uint64(data[1])) * pageSize}
		fr.Start += uint64(data[2] & 1)
		fr.End += uint64(data[2]>>1&1) + uint64(data[2]>>3&1)<<45
		if op = append(op, fr); data[2]&4 == 0 || len(op) == maxRanges {
			ops, op = append(ops, op), nil
		}
	}
	return ops
}

// takes returns how long a write is, and whether it can be taken by itself.
func takes(op []memmap.FileRange) (total uint64, good bool) {
	good = true
	for _, fr := range op {
		total += fr.Length()
		good = good && fr.Start%pageSize == 0 && fr.Length()%pageSize == 0 && (fr.Length() == 0 || fr.End <= fuzzedPages*pageSize)
	}
	return total, good && total <= maxRead
}

// FuzzReceivePages has a sentry write what it likes of its memory. All that can be taken
// is in the image, in its order, and with that as the base once more, but for pages that
// are the same; for all else the image is refused.
func FuzzReceivePages(f *testing.F) {
	f.Add([]byte{0, 3, 0, 7, 1, 0})
	f.Add([]byte{0, 3, 4, 9, 2, 4, 0, 1, 0, 0, 3, 0})
	f.Add([]byte{5, 200, 0})
	f.Add([]byte{1, 1, 1})
	f.Add([]byte{1, 1, 2})
	f.Add([]byte{1, 0, 3})
	f.Add([]byte{1, 1, 8})
	f.Add(bytes.Repeat([]byte{0, 150, 0}, 5))
	fd, memory, err := stateio.CreateMappedMemoryFD("memory", fuzzedPages*pageSize)
	if err != nil {
		f.Fatal(err)
	}
	for i := range memory { // every fourth page is zeros, and some are the same
		memory[i] = byte(i / pageSize % 4 * (i / pageSize % 7))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ops := streamOf(data)
		var want []byte
		var sum uint64
		possible, twice := true, false
		seen := map[uint64]bool{}
		for _, op := range ops {
			total, good := takes(op)
			sum += total
			if possible = possible && good && sum <= fuzzedMost; !possible {
				break
			}
			for _, fr := range op {
				if fr.Length() == 0 {
					continue
				}
				want = append(want, memory[fr.Start:fr.End]...)
				for at := fr.Start; at < fr.End; at += pageSize {
					twice = twice || seen[at]
					seen[at] = true
				}
			}
		}
		first, written, ok := receivePages(t, fd, ops, "pack-a", nil, nil)
		if ok != possible {
			t.Fatalf("%v is taken: %t, want %t", ops, ok, possible)
		}
		if !ok {
			return
		}
		if !bytes.Equal(first.stream(t), want) || written.Kept != 0 {
			t.Errorf("of %v, the image has other pages; it kept %d", ops, written.Kept)
		}
		second, written, ok := receivePages(t, fd, ops, "pack-b", first.base, first.packs)
		if !ok || !bytes.Equal(second.stream(t), want) {
			t.Errorf("of %v, the image over the one before has other pages", ops)
		}
		// A page that is written twice, which no sentry does, may be taken for a new one.
		if same := written.Kept+written.Zeros == written.Pages; !same && !twice || written.Pages != int64(len(want)/pageSize) {
			t.Errorf("nothing changed, and %+v", written)
		}
	})
}

// receivePages has pages received, and returns the image if all could be taken.
func receivePages(t *testing.T, fd int32, ops [][]memmap.FileRange, pack string, base *Base, older map[string][]byte) (received, Written, bool) {
	c := &captured{t: t, dir: t.TempDir()}
	file := func(name string) *os.File {
		f, err := os.Create(filepath.Join(c.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	to := Capture{State: file("state"), Meta: file("meta"), Pack: file(pack), Map: file(pagemap.Name), Sums: file(pagemap.SumsName), PackName: pack, Most: fuzzedMost, Base: base}
	r, err := newReceiver(to, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := r.OpenWrite(checkpointfiles.PagesFileName)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	sf, err := w.RegisterSourceFD(fd, fuzzedPages*pageSize, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, op := range ops {
		total, _ := takes(op)
		w.AddWritev(i%maxWrites, total, sf, op, nil)
		if _, err := w.Wait(nil, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finalize(); err != nil {
		return received{}, Written{}, false
	}
	return c.result(older), r.written, true
}
