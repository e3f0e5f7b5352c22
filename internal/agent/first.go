package agent

import (
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// firstName is what the first process is called inside. Nobody ends an init by
// accident, as "pkill agent" would an agent.
const firstName = "drowse-init"

// BeFirst makes this process hard to end for the others inside: it has a name that
// says what it is, and no signal that a program can handle ends or stops it. It
// belongs into an init function, which runs on the thread whose name is the process's.
func BeFirst() {
	name := append([]byte(firstName), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0)
	if len(os.Args) > 0 {
		shown := os.Args[0] // its bytes are those that ps shows
		os.Args[0] = strings.Clone(shown)
		bytes := unsafe.Slice(unsafe.StringData(shown), len(shown))
		clear(bytes[copy(bytes, firstName):])
	}
	// Handled, not ignored: children would inherit that. Nobody reads the channel. A
	// fault of its own is no signal that is handled, and ends it as ever.
	signal.Notify(make(chan os.Signal, 1), endings()...)
}

// endings returns the signals that a program can handle and that end or stop one
// that does not.
func endings() []os.Signal {
	var all []os.Signal
	for s := syscall.SIGHUP; s <= syscall.SIGSYS; s++ {
		switch s {
		case syscall.SIGKILL, syscall.SIGSTOP: // cannot be handled
		case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCONT: // do neither
		default:
			all = append(all, s)
		}
	}
	return all
}
