package imageserver

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// Confine takes from this process, for good, all that Serve and Receive do not need. It
// can read and write the files that it has open, and nothing else: it opens no file,
// makes no socket, starts no program and signals nobody. What it may not call fails
// with EPERM, and does not end it, so that a new version of Go that tries something
// more goes on without it. Nobody else of the same user can look into it: it has the
// memory of a guest.
func Confine() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide from others: %w", err)
	}
	refused := seccomp.ReturnError.Code(uint16(unix.EPERM))
	p := seccomp.Program{
		RuleSets: []seccomp.RuleSet{
			{Rules: seccomp.DenyNewExecMappings, Action: refused},
			{Rules: needed(os.Getpid()), Action: seccomp.Allow},
		},
		Options: seccomp.ProgramOptions{DefaultAction: refused, BadArchAction: seccomp.KillProcess},
	}
	filter, _, err := p.Build()
	if err != nil {
		return fmt.Errorf("internal error: filter of system calls: %w", err)
	}
	// Along with it, no program that it could start would have more rights.
	if err := seccomp.SetFilter(filter); err != nil {
		return fmt.Errorf("set the filter of system calls: %w", err)
	}
	return nil
}

// needed are the system calls of Go, and those of gVisor's server and this package.
func needed(self int) seccomp.SyscallRules {
	rules := seccomp.MakeSyscallRules(map[uintptr]seccomp.SyscallRule{
		// A thread, and no process.
		unix.SYS_CLONE:  seccomp.PerArg{seccomp.MaskedEqual(unix.CLONE_THREAD, unix.CLONE_THREAD)},
		unix.SYS_TGKILL: seccomp.PerArg{seccomp.EqualTo(uintptr(self))},
		unix.SYS_PRCTL:  seccomp.PerArg{seccomp.EqualTo(unix.PR_SET_VMA)}, // Go names its memory
	})
	for _, call := range []uintptr{
		// Threads, memory, time and signals.
		unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_FUTEX,
		unix.SYS_GETPID, unix.SYS_GETRANDOM, unix.SYS_GETTID, unix.SYS_GETTIMEOFDAY, unix.SYS_MADVISE, unix.SYS_MINCORE,
		unix.SYS_MMAP, unix.SYS_MPROTECT, unix.SYS_MUNMAP, unix.SYS_NANOSLEEP, unix.SYS_RESTART_SYSCALL,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SCHED_GETAFFINITY,
		unix.SYS_SCHED_YIELD, unix.SYS_SIGALTSTACK,
		// Files and sockets that are open, and what is shared with a sentry.
		unix.SYS_CLOSE, unix.SYS_DUP, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
		unix.SYS_FALLOCATE, unix.SYS_FCNTL, unix.SYS_FSTAT, unix.SYS_FTRUNCATE, unix.SYS_GETSOCKOPT, unix.SYS_LSEEK,
		unix.SYS_MEMFD_CREATE, unix.SYS_PPOLL, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_READ, unix.SYS_RECVMSG,
		unix.SYS_SENDMSG, unix.SYS_SHUTDOWN, unix.SYS_SYNC_FILE_RANGE, unix.SYS_WRITE,
	} {
		rules.Set(call, seccomp.MatchAll{})
	}
	return rules
}
