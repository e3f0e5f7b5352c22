package store

import (
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// Use is what the sandboxes and snapshots of an API key take together.
type Use struct {
	Running   int // how many have a runtime, or are about to
	Sandboxes int // how many there are, asleep or not
	MemoryMiB int // the memory limits of those that run, added up
	DiskMiB   int // the limits on disk of all of them and of the snapshots, added up
}

// Plus returns the sum of two uses.
func (u Use) Plus(v Use) Use {
	return Use{u.Running + v.Running, u.Sandboxes + v.Sandboxes, u.MemoryMiB + v.MemoryMiB, u.DiskMiB + v.DiskMiB}
}

// Minus returns what u is more than v.
func (u Use) Minus(v Use) Use {
	return u.Plus(Use{-v.Running, -v.Sandboxes, -v.MemoryMiB, -v.DiskMiB})
}

// Use returns what the sandbox takes.
func (sb Sandbox) Use() Use {
	limits := sb.Config.Limits
	switch r := sb.Record; {
	case r.State == lifecycle.Running || r.Phase() == lifecycle.Creating || r.Phase() == lifecycle.Resuming:
		return Use{Running: 1, Sandboxes: 1, MemoryMiB: limits.MemoryMiB, DiskMiB: limits.DiskMiB}
	case r.State == lifecycle.Paused:
		return Use{Sandboxes: 1, DiskMiB: limits.DiskMiB}
	}
	return Use{}
}

// named returns the name that the sandbox holds: none when it has ended.
func (sb Sandbox) named() string {
	if sb.Record.State == lifecycle.Terminated {
		return ""
	}
	return sb.Config.Name
}

// Failed reports whether the sandbox never came up. The idempotency key that made it
// is free again.
func (sb Sandbox) Failed() bool {
	t := sb.Record.Tombstone
	return t != nil && t.Reason == lifecycle.CreateFailed
}

// DiskMiB returns how much of the disk the snapshot counts for: what its sandbox may
// have in layers, and as memory. It can come to keep all of that, whoever wrote it:
// what it shares is its own when nobody else needs it any more. One that is removed
// at the end of a fork counts for nothing.
func (s Snapshot) DiskMiB() int {
	limits := s.Config.Limits
	switch {
	case s.Passing:
		return 0
	case s.Checkpoint.Mode == lifecycle.Memory:
		return limits.DiskMiB + limits.MemoryMiB
	}
	return limits.DiskMiB
}

// MostSnapshots is how many snapshots an API key may have.
const MostSnapshots = 1000

// Fit returns an errdef.Exhausted with code "key_limit_reached" if the sandboxes of a
// key that use so much may not use more.
func (l KeyLimits) Fit(key string, now, more Use) error {
	for _, l := range []struct {
		name            string
		now, more, most int
		what, remedy    string
	}{
		{
			"maxRunning", now.Running, more.Running, l.Running,
			"the API key has reached its limit of %[3]d running sandboxes: %[1]d run",
			"pause or kill some, or have an admin raise the maxRunning of the API key",
		},
		{
			"maxSandboxes", now.Sandboxes, more.Sandboxes, l.Sandboxes,
			"the API key has reached its limit of %[3]d sandboxes: it has %[1]d, those that sleep included",
			"kill some, or have an admin raise the maxSandboxes of the API key",
		},
		{
			"maxMemoryMiB", now.MemoryMiB, more.MemoryMiB, l.MemoryMiB,
			"the sandbox needs %[2]d MiB of memory, and those of the API key that run have %[1]d MiB of the %[3]d MiB that they may have together",
			"pause or kill some, ask for less memory, or have an admin raise the maxMemoryMiB of the API key",
		},
		{
			"maxDiskMiB", now.DiskMiB, more.DiskMiB, l.DiskMiB,
			"the sandbox may take %[2]d MiB of the disk, and those of the API key, asleep or not, and its snapshots have %[1]d MiB of the %[3]d MiB that they may have together",
			"kill some, delete snapshots, ask for less (diskMiB), or have an admin raise the maxDiskMiB of the API key",
		},
	} {
		if l.more > 0 && l.most > 0 && l.now+l.more > l.most {
			return errdef.New(errdef.Exhausted, "key_limit_reached", l.what, l.now, l.more, l.most).WithRemedy("%s", l.remedy).
				With("limit", l.name).With("allowed", l.most).With("used", l.now).With("requested", l.more).With("key", key)
		}
	}
	if l.DiskMiB > 0 && more.Sandboxes > 0 && more.DiskMiB == 0 {
		return errdef.New(errdef.Exhausted, "key_limit_reached",
			"the sandbox has no limit on disk, and those of the API key may have %d MiB together", l.DiskMiB).
			WithRemedy("give it a limit on disk (diskMiB), or use a key without maxDiskMiB")
	}
	return nil
}

// FitSnapshot returns an errdef.Exhausted with code "key_limit_reached" if a key whose
// sandboxes and snapshots have so much of the disk may not have a snapshot of mib more,
// of a sandbox with these limits.
func (l KeyLimits) FitSnapshot(key string, has, mib int, of Limits) error {
	switch {
	case l.DiskMiB == 0 || mib <= 0:
		return nil
	case of.DiskMiB == 0:
		return errdef.New(errdef.Exhausted, "key_limit_reached",
			"the sandbox has no limit on disk, and the sandboxes and snapshots of the API key may have %d MiB together", l.DiskMiB).
			WithRemedy("take it with a key without maxDiskMiB")
	case has+mib > l.DiskMiB:
		return errdef.New(errdef.Exhausted, "key_limit_reached",
			"the snapshot may take %d MiB of the disk, and the sandboxes and snapshots of the API key have %d MiB of the %d MiB that they may have together", mib, has, l.DiskMiB).
			WithRemedy("delete some snapshots, kill some sandboxes, or have an admin raise the maxDiskMiB of the API key").
			With("limit", "maxDiskMiB").With("allowed", l.DiskMiB).With("used", has).With("requested", mib).With("key", key)
	}
	return nil
}

// FitSnapshots returns an errdef.Exhausted if a key that has so many snapshots may not
// have another.
func FitSnapshots(has int) error {
	if has < MostSnapshots {
		return nil
	}
	return errdef.New(errdef.Exhausted, "too_many_snapshots", "this API key has %d snapshots, which is as many as it may have", has).
		WithRemedy("delete some with drowse snapshot rm").With("allowed", MostSnapshots)
}
