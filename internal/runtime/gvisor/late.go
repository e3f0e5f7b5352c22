package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/gvisor/imageserver"
)

// openLate opens a file of an image whose pages may come late.
func openLate(image, name string, late runtime.Late) (*os.File, error) {
	if late != nil && name == pagemap.Stream {
		f, err := os.Open(layer.LatePath(image))
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		} // else it has just become whole
	}
	return os.Open(filepath.Join(image, name))
}

// bring answers an image server that asks for parts of a file, over the socket whose other
// end it returns, for as long as that is open.
func bring(late runtime.Late) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, its := os.NewFile(uintptr(pair[0]), "late"), os.NewFile(uintptr(pair[1]), "late")
	conn, err := net.FileConn(ours)
	if err := errors.Join(err, ours.Close()); err != nil {
		its.Close()
		return nil, err
	}
	go func() {
		defer conn.Close()
		imageserver.Bring(context.Background(), conn, late)
	}()
	return its, nil
}
