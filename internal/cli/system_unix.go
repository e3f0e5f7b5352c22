//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// apart keeps Ctrl-C in the terminal from a child process.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// notifyResized sends to c when the size of the terminal has changed.
func notifyResized(c chan<- os.Signal) { signal.Notify(c, syscall.SIGWINCH) }
