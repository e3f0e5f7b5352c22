package lifecycle

import (
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Code returns the stable name of the error that every call gets after an end
// for this reason, such as "idle_timeout".
func (r Reason) Code() string { return r.refusal().Code }

// Remedy returns what to do after an end for this reason. Tombstones, errors and
// explanations all say the same.
func (r Reason) Remedy() string { return r.refusal().Remedy }

// refusal returns the error of a reason, still without the sandbox's own facts.
func (r Reason) refusal() *errdef.Error {
	switch r {
	case TimeoutExpired:
		return ended("timeout_expired", "create a new one with a longer timeout, extend it in time, or set onTimeout to pause so that it sleeps instead")
	case IdleTimeout:
		return ended("idle_timeout", "create a new one with a longer idleTimeout, hold it while it works, or set onIdle to pause so that it sleeps instead")
	case MaxLifetimeExceeded:
		return ended("max_lifetime_exceeded", "create a new one with a longer maxLifetime, or with none")
	case PausedExpired:
		return ended("paused_expired", "create a new one with a longer pausedRetention, or resume it in time")
	case OutOfMemory:
		return ended("out_of_memory", "create a new one and let it do less at once: processes, and files in /tmp, /dev/shm and /run, count against limits.memoryMiB; one that has been paused wakes from its last pause instead of ending")
	case OutOfDisk:
		return ended("out_of_disk", "create a new one with a larger limits.diskMiB, or let it keep less; one that has been paused wakes from its last pause instead of ending")
	case OutOfProcesses:
		return ended("out_of_processes", "create a new one with a larger limits.pids, or let it start fewer processes at once: each takes two tasks, and each thread one more; one that has been paused wakes from its last pause instead of ending")
	case RuntimeExited:
		return ended("runtime_exited", "create a new one; its runtime was ended from outside, or failed: the host's log may say more")
	case RuntimeLost:
		return ended("runtime_lost", "create a new one; a sandbox that has been paused once survives the loss of its runtime")
	case CreateFailed:
		return ended("create_failed", "try again; drowse doctor checks what this machine lacks")
	}
	return ended("sandbox_terminated", "create a new one")
}

func ended(code, remedy string) *errdef.Error {
	return errdef.New(errdef.NotFound, code, "the sandbox has ended").WithRemedy("%s", remedy)
}

// factTime is how errors have times.
const factTime = "2006-01-02T15:04:05.000000Z"

// errTerminated is the answer to everything that is asked of a sandbox that has
// ended.
func errTerminated(r Record) error {
	t := r.Tombstone
	e := t.Reason.refusal()
	e.Message = "the sandbox ended at " + t.At.Format(time.RFC3339) + ": " + string(t.Reason)
	if t.Detail != "" {
		e.Message += " (" + t.Detail + ")"
	}
	return e.With("reason", t.Reason).With("endedAt", t.At.UTC().Format(factTime))
}

// Over returns the answer to everything that is asked of a sandbox that has ended; nil for another.
func (r Record) Over() error {
	if r.State != Terminated {
		return nil
	}
	return errTerminated(r)
}

// Ended reports whether an error says that the sandbox has ended, whatever the
// reason.
func Ended(err error) bool {
	_, has := errdef.Fact(err, "reason").(Reason)
	return has && errdef.Is(err, errdef.NotFound)
}
