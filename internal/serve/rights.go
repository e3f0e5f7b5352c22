package serve

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// neverNeeded are the capabilities of root that nothing in this process uses, and
// none of the programs that it starts. To mount, to make namespaces and to read
// what any user wrote takes the rest.
var neverNeeded = []int{
	unix.CAP_LINUX_IMMUTABLE, unix.CAP_NET_BROADCAST, unix.CAP_IPC_LOCK, unix.CAP_IPC_OWNER,
	unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_PACCT, unix.CAP_SYS_BOOT, unix.CAP_SYS_TIME,
	unix.CAP_SYS_TTY_CONFIG, unix.CAP_LEASE, unix.CAP_AUDIT_WRITE, unix.CAP_AUDIT_CONTROL, unix.CAP_AUDIT_READ,
	unix.CAP_MAC_OVERRIDE, unix.CAP_MAC_ADMIN, unix.CAP_SYSLOG, unix.CAP_WAKE_ALARM, unix.CAP_BLOCK_SUSPEND,
	unix.CAP_PERFMON, unix.CAP_BPF, unix.CAP_CHECKPOINT_RESTORE,
}

// dropRights gives up, for good and for all threads, what is never needed. Whoever
// takes over this process by the bytes that it parses has not got it either.
func dropRights() error {
	for _, c := range neverNeeded {
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0)
		switch {
		case errno == 0, errno == unix.EINVAL: // a capability that this kernel does not know
		case errno == unix.EPERM: // a container that may not: what is dropped below does not come back without an exec
		case errors.Is(errno, syscall.ENOTSUP):
			return nil // a build with cgo, as tests for races are
		default:
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, errno)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	for _, c := range neverNeeded {
		bit := uint32(1) << (c % 32)
		set := &sets[c/32]
		set.Effective, set.Permitted, set.Inheritable = set.Effective&^bit, set.Permitted&^bit, set.Inheritable&^bit
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}
