package blockdev

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func ioctl[T btrfsFS | btrfsDev](f *os.File, request uintptr, arg *T) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(arg))); e != 0 {
		return e
	}
	return nil
}
