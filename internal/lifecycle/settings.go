package lifecycle

import (
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Settings is what the owner asked for. A zero duration means no limit, except
// for StallAfter.
type Settings struct {
	Timeout           time.Duration `json:"timeout"`   // the soft timeout given at create
	OnTimeout         Action        `json:"onTimeout"` // what its expiry does
	IdleTimeout       time.Duration `json:"idleTimeout,omitempty"`
	OnIdle            Action        `json:"onIdle,omitempty"` // empty: as OnTimeout
	MaxLifetime       time.Duration `json:"maxLifetime,omitempty"`
	PausedRetention   time.Duration `json:"pausedRetention,omitempty"`
	RefreshOnActivity Refresh       `json:"refreshOnActivity,omitempty"` // activity moves endAt to now + Timeout
	AutoResume        bool          `json:"autoResume"`                  // traffic may wake it
	PauseMode         Mode          `json:"pauseMode,omitempty"`         // of automatic pauses; empty: memory
	// FilesystemFallback lets a resume boot the sandbox afresh from its files where
	// the runtime cannot read its memory image, as after an upgrade.
	FilesystemFallback bool `json:"filesystemFallback,omitempty"`
	// StallAfter is how long a hold may make no progress and still count;
	// negative means for ever.
	StallAfter time.Duration `json:"stallAfter,omitempty"`
	// Serves says that there is a service for which traffic may boot the sandbox
	// when it sleeps without its memory. It follows from the sandbox's services.
	Serves bool `json:"serves,omitempty"`
	// CheckpointEvery is how long it runs before it is checkpointed, and again
	// after each checkpoint.
	CheckpointEvery time.Duration `json:"checkpointEvery,omitempty"`
}

// NoLimit is a timeout without an end, where zero means something else.
const NoLimit time.Duration = -1

// MinCheckpointEvery is the least CheckpointEvery: a checkpoint interrupts.
const MinCheckpointEvery = 10 * time.Second

// IdleAction returns what expiry of the idle timeout does.
func (s Settings) IdleAction() Action {
	if s.OnIdle == "" {
		return s.OnTimeout
	}
	return s.OnIdle
}

// Pauses reports whether expiry of a clock pauses the sandbox, rather than end
// it or change nothing of what runs.
func (s Settings) Pauses(c Clock) bool {
	return c == ClockTimeout && s.OnTimeout == Pause || c == ClockIdle && s.IdleAction() == Pause || c == ClockCheckpoint
}

// MeasuresWork reports whether a clock of the sandbox stops while work is in
// progress.
func (s Settings) MeasuresWork() bool { return s.IdleTimeout > 0 || s.RefreshOnActivity != NoRefresh }

// CountsProcesses reports whether processes are work: not if the one clock that
// measures it is the soft timeout, and that measures requests alone.
func (s Settings) CountsProcesses() bool {
	return s.IdleTimeout > 0 || s.RefreshOnActivity != RefreshOnRequests
}

func (s Settings) pauseMode() Mode {
	if s.PauseMode == "" {
		return Memory
	}
	return s.PauseMode
}

// Validate refuses settings that contradict each other.
func (s Settings) Validate() error {
	invalid := func(code, format string, args ...any) *errdef.Error {
		return errdef.New(errdef.Invalid, code, format, args...)
	}
	for name, d := range map[string]time.Duration{
		"timeout": s.Timeout, "idleTimeout": s.IdleTimeout, "maxLifetime": s.MaxLifetime, "pausedRetention": s.PausedRetention,
	} {
		if d < 0 {
			return invalid("timeout_invalid", "%s is negative", name).WithRemedy("give a positive duration, or 0 for no limit")
		}
	}
	for name, a := range map[string]Action{"onTimeout": s.OnTimeout, "onIdle": s.IdleAction()} {
		if a != Kill && a != Pause {
			return invalid("action_invalid", "%s is %q", name, a).WithRemedy("use kill or pause")
		}
	}
	if m := s.pauseMode(); m != Memory && m != Filesystem {
		return invalid("mode_invalid", "pause mode is %q", m).WithRemedy("use memory or filesystem")
	}
	if s.CheckpointEvery != 0 && s.CheckpointEvery < MinCheckpointEvery {
		return invalid("checkpoint_every_too_small", "checkpointEvery is %s; the least is %s", s.CheckpointEvery, MinCheckpointEvery).
			WithRemedy("give a longer one, or 0 for no checkpoints")
	}
	if s.AutoResume && !s.pausesItself() {
		return invalid("auto_resume_needs_pause", "autoResume is on, but neither the timeout nor the idle timeout pauses the sandbox").
			WithRemedy("set onTimeout or onIdle to pause, or turn autoResume off")
	}
	if s.AutoResume && s.pauseMode() == Filesystem && !s.Serves {
		return invalid("auto_resume_needs_memory", "autoResume is on, but automatic pauses keep only the file system, and no service starts again after them").
			WithRemedy("keep memory in automatic pauses, give the sandbox a service with resume, or turn autoResume off")
	}
	if s.RefreshOnActivity != NoRefresh && s.Timeout == 0 {
		return invalid("refresh_needs_timeout", "refreshOnActivity is on, but there is no timeout to refresh").WithRemedy("set a timeout")
	}
	return nil
}

// pausesItself reports whether a clock ever pauses the sandbox.
func (s Settings) pausesItself() bool {
	return s.OnTimeout == Pause || s.IdleTimeout > 0 && s.IdleAction() == Pause
}

// MayAutoResume reports whether AutoResume can be on with the other settings.
func (s Settings) MayAutoResume() bool {
	return s.pausesItself() && (s.pauseMode() == Memory || s.Serves)
}

// Patch changes settings of a live or paused sandbox; nil leaves one as it is.
type Patch struct {
	OnTimeout          *Action
	OnIdle             *Action
	AutoResume         *bool
	IdleTimeout        *time.Duration
	MaxLifetime        *time.Duration
	PausedRetention    *time.Duration
	RefreshOnActivity  *Refresh
	FilesystemFallback *bool
	StallAfter         *time.Duration
	CheckpointEvery    *time.Duration
	Serves             *bool
}

// apply returns s with the patch applied.
func (p Patch) apply(s Settings) Settings {
	set(&s.OnTimeout, p.OnTimeout)
	set(&s.OnIdle, p.OnIdle)
	set(&s.AutoResume, p.AutoResume)
	set(&s.IdleTimeout, p.IdleTimeout)
	set(&s.MaxLifetime, p.MaxLifetime)
	set(&s.PausedRetention, p.PausedRetention)
	set(&s.RefreshOnActivity, p.RefreshOnActivity)
	set(&s.FilesystemFallback, p.FilesystemFallback)
	set(&s.StallAfter, p.StallAfter)
	set(&s.CheckpointEvery, p.CheckpointEvery)
	set(&s.Serves, p.Serves)
	return s
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// WakePolicy says what traffic to a port does.
type WakePolicy string

// The policies; the empty one is Wake.
const (
	Wake   WakePolicy = "wake"   // counts as activity and may wake the sandbox
	Keep   WakePolicy = "keep"   // counts as activity, never wakes
	Ignore WakePolicy = "ignore" // neither
)

// Wakes reports whether traffic under the policy may wake a sandbox.
func (p WakePolicy) Wakes() bool { return p == "" || p == Wake }
