package gvisor

import (
	"bytes"
	"context"
	"os"
	goruntime "runtime"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// TestSaveReadsNoHoles: a save of memory finds each page that was written, wherever it
// lies, and with the edits makes no pages of what never was.
func TestSaveReadsNoHoles(t *testing.T) {
	const pages = 16 << 10
	usage.Init()
	saved := memoryFile(t)
	fr, err := saved.Allocate(pages*hostarch.PageSize, pgalloc.AllocOpts{Kind: usage.Anonymous})
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, hostarch.PageSize)
	endsInOne := append(make([]byte, hostarch.PageSize-1), 1)
	startsWithOne := append([]byte{1}, zeros[1:]...)
	written := map[int][]byte{
		0: endsInOne, 1: zeros, 2: startsWithOne, // neighbours
		511: endsInOne, 512: zeros, // where a huge page ends
		5000: startsWithOne, 5002: endsInOne, 9000: zeros, // alone
		pages - 1: endsInOne,
	}
	for page, data := range written {
		copyPage(t, saved, fr, page, func(in safemem.BlockSeq) (uint64, error) {
			return safemem.CopySeq(in, safemem.BlockSeqOf(safemem.BlockFromSafeSlice(data)))
		})
	}
	saved.MarkSavable()
	var image bytes.Buffer
	before := faults(t)
	err = saved.SaveTo(context.Background(), &image, &pgalloc.SaveOpts{})
	took := faults(t) - before
	if err != nil {
		t.Fatal(err)
	}
	if edits != "" && took > pages/4 {
		t.Errorf("the save of %d pages, of which %d were written, took %d page faults", pages, len(written), took)
	}
	if most := 100 * hostarch.PageSize; image.Len() > most {
		t.Errorf("the image has %d bytes, more than %d", image.Len(), most)
	}

	loaded := memoryFile(t)
	if err := loaded.LoadFrom(context.Background(), &image, &pgalloc.LoadOpts{}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, hostarch.PageSize)
	for page := range pages {
		copyPage(t, loaded, fr, page, func(in safemem.BlockSeq) (uint64, error) {
			return safemem.CopySeq(safemem.BlockSeqOf(safemem.BlockFromSafeSlice(got)), in)
		})
		want := written[page]
		if want == nil {
			want = zeros
		}
		if !bytes.Equal(got, want) {
			t.Errorf("page %d is not what was saved", page)
		}
	}
}

// memoryFile is what a sentry keeps a guest's memory in.
func memoryFile(t *testing.T) *pgalloc.MemoryFile {
	t.Helper()
	fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f, err := pgalloc.NewMemoryFile(os.NewFile(uintptr(fd), "memory"), pgalloc.MemoryFileOpts{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Destroy)
	return f
}

// copyPage has a page of a range copied.
func copyPage(t *testing.T, f *pgalloc.MemoryFile, fr memmap.FileRange, page int, copy func(safemem.BlockSeq) (uint64, error)) {
	t.Helper()
	start := fr.Start + uint64(page)*hostarch.PageSize
	in, err := f.MapInternal(memmap.FileRange{Start: start, End: start + hostarch.PageSize}, hostarch.ReadWrite)
	if err == nil {
		_, err = copy(in)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// faults returns how many pages the kernel has given this thread, which the test keeps.
func faults(t *testing.T) int64 {
	t.Helper()
	goruntime.LockOSThread()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return u.Minflt
}
