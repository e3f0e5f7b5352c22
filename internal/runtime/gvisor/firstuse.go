package gvisor

import (
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// While a guest runs and its memory is being read, gVisor writes down what it uses, in
// blocks of 64 KiB. An image has that list beside it, and its next restore reads these
// blocks first. It is a list of numbers of 32 bits, little-endian, of blocks in the file
// that has the guest's memory. It is gVisor's own, and known to no other build.

// firstUseFile has the list, in the directory of an image.
const firstUseFile = "pages.first"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maxFirstUse bounds it, in bytes.
const maxFirstUse = 64 << 10

// firstUseWithin is how long a sentry may take to tell it, and so how much it may tell.
const firstUseWithin = time.Second

// blocks is control.Blocks of the edited gVisor.
type blocks struct{ Blocks []byte }

// keepFirstUse puts what the guest used first into an image. Without it the next restore
// is slower, and no more, so that no error matters.
func keepFirstUse(i *instance, dir string) {
	l, ok := i.c.(local)
	if !ok || edits == "" {
		return
	}
	err := func() error {
		conn, err := l.dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		defer time.AfterFunc(firstUseWithin, func() { conn.Close() }).Stop()
		var used blocks
		if err := conn.Call("Usage.FirstUsed", &blocks{}, &used); err != nil || len(used.Blocks) == 0 {
			return err
		}
		return os.WriteFile(filepath.Join(dir, firstUseFile), used.Blocks[:min(len(used.Blocks), maxFirstUse)], 0o600)
	}()
	if err != nil && i.d.log != nil {
		i.d.log.Debug("it is not known what a runtime used first", "runtime", i.id, "err", brief(err))
	}
}

// tellFirstUse tells a sentry, before it restores an image, that the guest will run early,
// and what to load first.
func tellFirstUse(conn *urpc.Client, image string, files []runtime.ImageFile) error {
	return conn.Call("Usage.LoadFirst", &blocks{firstUseOf(image, files)}, nil)
}

// firstUseOf returns the list of an image; nil if it has none, or another than was
// written: no wake should fail of it.
func firstUseOf(image string, files []runtime.ImageFile) []byte {
	i := slices.IndexFunc(files, func(f runtime.ImageFile) bool { return f.Name == firstUseFile })
	if i < 0 || files[i].Size > maxFirstUse {
		return nil
	}
	list, err := os.ReadFile(filepath.Join(image, firstUseFile))
	if err != nil || int64(len(list)) != files[i].Size || !slices.Equal(files[i].CRC32C, []uint32{crc32.Checksum(list, castagnoli)}) {
		return nil
	}
	return list
}
