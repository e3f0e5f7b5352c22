package agent

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
)

// openPTY returns the master, polled by the runtime, and a descriptor of the
// slave, owned by the user as login would have it.
func openPTY(uid uint32) (*os.File, int, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, faultf(internal, "open /dev/ptmx: %w", err)
	}
	slave, err := openSlave(fd)
	if err != nil {
		unix.Close(fd)
		return nil, -1, faultf(internal, "open the other end of a pty: %w", err)
	}
	_ = unix.Fchown(slave, int(uid), -1)
	_ = unix.Fchmod(slave, 0o620)
	return os.NewFile(uintptr(fd), "/dev/ptmx"), slave, nil
}

func openSlave(master int) (int, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, err
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	// TIOCGPTPEER needs no path, so it works where /dev/pts is another
	// instance than the one behind /dev/ptmx.
	if fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags); errno == 0 {
		return int(fd), nil
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return -1, err
	}
	return unix.Open("/dev/pts/"+strconv.Itoa(n), flags, 0)
}

// resizePTY sets the size; the kernel tells the foreground group by SIGWINCH.
func resizePTY(master *os.File, size *processpb.PTY_Size) error {
	const most = 1<<16 - 1
	if size.GetCols() > most || size.GetRows() > most {
		return faultf(invalid, "terminal of %d columns and %d rows: at most %d each", size.GetCols(), size.GetRows(), most)
	}
	conn, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var ioctlErr error
	err = conn.Control(func(fd uintptr) {
		ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ,
			&unix.Winsize{Col: uint16(size.GetCols()), Row: uint16(size.GetRows())})
	})
	if err != nil {
		return err
	}
	return ioctlErr
}

// hangUpSession tells all processes of a terminal's session, but its leader,
// that the terminal is gone. Linux tells the foreground group when the leader
// dies; gVisor does not, nor does it say which group that is.
func hangUpSession(leader int) {
	var proc procReader
	if proc.open() != nil {
		return
	}
	defer proc.close()
	pids, _ := proc.pids() // what can be read of them
	for _, pid := range pids {
		if stat, ok := proc.stat(pid); !ok || pid == leader || stat.session != leader {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGHUP)
		// A stopped process takes the signal only once it goes on.
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}
