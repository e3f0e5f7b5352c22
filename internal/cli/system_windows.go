package cli

import (
	"os"
	"syscall"
)

// apart keeps Ctrl-C in the terminal from a child process.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// notifyResized does nothing: Windows has no signal for it. A shell keeps the
// size that its terminal had when it was opened.
func notifyResized(chan<- os.Signal) {}
