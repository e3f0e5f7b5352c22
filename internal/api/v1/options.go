package v1

import (
	"cmp"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// options is every option of a sandbox with all its spellings. Bodies of create
// and patch are read by it and documented from it.
var options = vocabulary{
	{
		name: "template", doc: "What the sandbox starts from; base if not said.",
		spelled: []spelled{{asTemplate, "template templateID templateId template_id"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Template = v.(string) },
	},
	{
		name: "timeoutSeconds", doc: "The soft timeout: how long it runs after each start. onTimeout says what then happens.",
		spelled: []spelled{{inSeconds, "timeoutSeconds timeout_seconds timeout"}, {inMillis, "timeoutMs timeout_ms"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Settings.Timeout = v.(time.Duration) },
		fixed:   "POST /v1/sandboxes/{id}/timeout moves the deadline",
	},
	{
		name: "onTimeout", doc: "What the end of the soft timeout does; kill if not said.",
		spelled: []spelled{
			{asAction, "onTimeout on_timeout onTimeout.action on_timeout.action lifecycle.onTimeout lifecycle.on_timeout lifecycle.onTimeout.action lifecycle.on_timeout.action"},
			{asPausing, "autoPause auto_pause"},
		},
		create: func(r *supervisor.CreateRequest, v any) { r.Settings.OnTimeout = v.(lifecycle.Action) },
		patch:  func(p *supervisor.Patch, v any) { p.Settings.OnTimeout = ptr[lifecycle.Action](v) },
	},
	{
		name: "autoResume", doc: "Whether traffic wakes it. It needs onTimeout or onIdle to pause.",
		spelled: []spelled{
			{asFlag, "autoResume auto_resume autoResume.enabled auto_resume.enabled lifecycle.autoResume lifecycle.auto_resume lifecycle.autoResume.enabled lifecycle.auto_resume.enabled"},
		},
		create: func(r *supervisor.CreateRequest, v any) { r.Settings.AutoResume = v.(bool) },
		patch:  func(p *supervisor.Patch, v any) { p.Settings.AutoResume = ptr[bool](v) },
	},
	{
		name: "pauseMode", doc: "What automatic pauses keep; memory if not said. " + fileSystemKeeps,
		spelled: []spelled{
			{asMode, "pauseMode pause_mode"},
			{asKeeping, "autoPauseMemory auto_pause_memory onTimeout.keepMemory onTimeout.keep_memory on_timeout.keepMemory on_timeout.keep_memory " +
				"lifecycle.onTimeout.keepMemory lifecycle.onTimeout.keep_memory lifecycle.on_timeout.keepMemory lifecycle.on_timeout.keep_memory"},
		},
		create: func(r *supervisor.CreateRequest, v any) { r.Settings.PauseMode = v.(lifecycle.Mode) },
		fixed:  "POST /v1/sandboxes/{id}/pause takes a mode for one pause",
	},
	{
		name: "idleTimeoutSeconds", doc: "How long it may do nothing. onIdle says what then happens.",
		spelled: []spelled{{inSeconds, "idleTimeoutSeconds idleTimeout idle_timeout idle_timeout_seconds"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Settings.IdleTimeout = v.(time.Duration) },
		patch:   func(p *supervisor.Patch, v any) { p.Settings.IdleTimeout = ptr[time.Duration](v) },
	},
	{
		name: "onIdle", doc: "What the end of the idle timeout does; the same as onTimeout if not said.",
		spelled: []spelled{{asAction, "onIdle on_idle"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Settings.OnIdle = v.(lifecycle.Action) },
		patch:   func(p *supervisor.Patch, v any) { p.Settings.OnIdle = ptr[lifecycle.Action](v) },
	},
	{
		name: "maxLifetimeSeconds", doc: "How long it may exist at all, asleep or not. Then it is terminated and everything of it deleted.",
		spelled: []spelled{{inSeconds, "maxLifetimeSeconds maxLifetime max_lifetime max_lifetime_seconds ttl hard_ttl hardTtl"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Settings.MaxLifetime = v.(time.Duration) },
		patch:   func(p *supervisor.Patch, v any) { p.Settings.MaxLifetime = ptr[time.Duration](v) },
	},
	{
		name: "pausedRetentionSeconds", doc: "How long it may stay paused; the server's default if not said. Then it is terminated and everything of it deleted.",
		spelled: []spelled{{inSeconds, "pausedRetentionSeconds pausedRetention paused_retention paused_retention_seconds"}},
		create: func(r *supervisor.CreateRequest, v any) {
			r.Settings.PausedRetention = cmp.Or(v.(time.Duration), supervisor.Unlimited)
		},
		patch: func(p *supervisor.Patch, v any) { p.Settings.PausedRetention = ptr[time.Duration](v) },
	},
	{
		name: "refreshOnActivity", doc: "Whether activity begins the soft timeout anew.",
		spelled: []spelled{{asFlag, "refreshOnActivity refresh_on_activity"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Settings.RefreshOnActivity = v.(bool) },
		patch:   func(p *supervisor.Patch, v any) { p.Settings.RefreshOnActivity = ptr[bool](v) },
	},
	{
		name: "filesystemFallback", doc: "Whether a resume boots it afresh where the server's runtime cannot read its memory image, as after an upgrade; false if not said: it stays paused and says why. What it then has is as after a pause that keeps the file system.",
		spelled: []spelled{{asFlag, "filesystemFallback filesystem_fallback"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Settings.FilesystemFallback = v.(bool) },
		patch:   func(p *supervisor.Patch, v any) { p.Settings.FilesystemFallback = ptr[bool](v) },
	},
	{
		name: "stallAfterSeconds", doc: "How long a hold may make no progress and still count; the server's default if not said.",
		spelled: []spelled{{inSecondsOrNever, "stallAfterSeconds stallAfter stall_after stall_after_seconds"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Settings.StallAfter = v.(time.Duration) },
		patch:   func(p *supervisor.Patch, v any) { p.Settings.StallAfter = ptr[time.Duration](v) },
	},
	{
		name: "checkpointEverySeconds", doc: "How often it is checkpointed while it runs, so that with its runtime or the host it loses no more than that; 10 at least. A checkpoint is a pause that wakes again at once: requests wait for it, open streams are cut, its clocks go on.",
		spelled: []spelled{{inSeconds, "checkpointEverySeconds checkpointEvery checkpoint_every checkpoint_every_seconds"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Settings.CheckpointEvery = v.(time.Duration) },
		patch:   func(p *supervisor.Patch, v any) { p.Settings.CheckpointEvery = ptr[time.Duration](v) },
	},
	{
		name: "metadata", doc: "Texts of yours, to find it by. A patch replaces all of them.",
		spelled: []spelled{{asTexts, "metadata"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Metadata = orNil(v.(map[string]string)) },
		patch:   func(p *supervisor.Patch, v any) { p.Metadata = v.(map[string]string) },
	},
	{
		name: "env", doc: "Environment variables of every process in it.",
		spelled: []spelled{{asVars, "env envs envVars env_vars"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Env = orNil(v.(map[string]string)) },
	},
	{
		name: "allowInternetAccess", doc: "Whether it may reach the internet, apart from what allowOut and denyOut say; true if not said. " +
			"Private and link-local addresses, this machine and other sandboxes are out of reach in any case, and so is all that is not TCP over IPv4. " +
			"Names are resolved while anything can be reached; without the internet, only those of allowOut.",
		spelled: []spelled{{asFlag, "allowInternetAccess allow_internet_access"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.AllowInternet = ptr[bool](v) },
		patch:   func(p *supervisor.Patch, v any) { p.AllowInternet = ptr[bool](v) },
	},
	{
		name: "allowOut", doc: "Addresses, networks and names (example.com, *.example.com for all below it) that it may reach whatever else is said. " +
			"With names, everything else must be denied: 0.0.0.0/0 in denyOut, or no internet. A connection for a name is known by its TLS greeting or the host of its first HTTP request, and ends at an address of that name. A patch replaces all.",
		spelled: []spelled{{asRules, "allowOut allow_out network.allowOut network.allow_out"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.AllowOut = v.([]string) },
		patch:   func(p *supervisor.Patch, v any) { p.AllowOut = v.([]string) },
	},
	{
		name: "denyOut", doc: "Addresses and networks that it may not reach. A patch replaces all, and what is denied then is broken off.",
		spelled: []spelled{{asRules, "denyOut deny_out network.denyOut network.deny_out"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.DenyOut = v.([]string) },
		patch:   func(p *supervisor.Patch, v any) { p.DenyOut = v.([]string) },
	},
	{
		name: "volumes", doc: "Volumes by the absolute path where they are to be, none in another. It can write to them, and so can others that have them: what one has written all see, but locks hold in one sandbox alone.",
		spelled: []spelled{{asVolumes, "volumes"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Volumes = mounts(v.(map[string]string)) },
	},
	{
		name: "secure", doc: "Whether its agent wants the sandbox's token; true if not said.",
		spelled: []spelled{{asFlag, "secure"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Secure = v.(bool) },
	},
	{
		name: "ports", doc: "What traffic does, by port or by port and path: wake it and count as activity (wake, the default), count but not wake (keep), neither (ignore). " +
			"A path stands for itself and all below it, the longest one that fits decides, and a request's path is decoded and cleaned before it is compared. A patch replaces all rules.",
		spelled: []spelled{{asPorts, "ports"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Ports = orNil(v.(store.Ports)) },
		patch:   func(p *supervisor.Patch, v any) { p.Ports = v.(store.Ports) },
	},
	{
		name: "cpus", doc: "How many of the host's CPUs it may use; the server's default if not said.",
		spelled: []spelled{{asCount, "cpus cpuCount cpu_count"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.CPUs = v.(int) },
	},
	{
		name: "memoryMiB", doc: "How much memory it may take, its files in /tmp and /dev/shm included; the server's default if not said. Past it, it ends with OutOfMemory, or goes back to where it last slept.",
		spelled: []spelled{{asCount, "memoryMiB memory_mib memoryMB memory_mb"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.MemoryMiB = v.(int) },
	},
	{
		name: "diskMiB", doc: "How much its own files may take on disk, and one file for each 16 KiB of it; the server's default if not said. Past it, it is paused, which loses nothing; woken, it may remove files, and is paused again if it takes much more. Only where the server's disk has no room for a pause does it end with OutOfDisk, or go back to where it last slept.",
		spelled: []spelled{{asCount, "diskMiB disk_mib diskSizeMB disk_size_mb"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.DiskMiB = v.(int) },
	},
	{
		name: "pids", doc: "How many tasks it may have on the host: a process inside takes two; the server's default if not said.",
		spelled: []spelled{{asCount, "pids"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.PIDs = v.(int) },
	},
	{
		name: "hooks", doc: "Commands run inside it at points of its life. Their failure stops nothing.",
		spelled: []spelled{{asHooks, "hooks"}},
		create:  func(r *supervisor.CreateRequest, v any) { r.Config.Hooks = v.(store.Hooks) },
	},
}

// fileSystemKeeps says what there is after the resume of a pause without memory.
const fileSystemKeeps = "filesystem keeps the disk alone: the sandbox boots afresh, without its processes, and with /tmp, /run and /dev/shm empty, which are in memory; /var/tmp and all else is on disk."

func ptr[T any](v any) *T {
	t := v.(T)
	return &t
}

// orNil makes the empty map the absent one.
func orNil[M ~map[K]V, K comparable, V any](m M) M {
	if len(m) == 0 {
		return nil
	}
	return m
}

// The bodies of the verbs.
var (
	sandboxOption = option{
		name: "sandbox", doc: "The sandbox's id.", required: true,
		spelled: []spelled{{asText, "sandbox sandboxID sandboxId sandbox_id"}},
	}
	timeoutOption = option{
		name: "timeoutSeconds", doc: "How long it runs from now.",
		spelled: options.option("timeoutSeconds").spelled,
	}
	modeOption = option{
		name: "mode", doc: "What the pause keeps; memory if not said. " + fileSystemKeeps,
		spelled: []spelled{{asMode, "mode"}, {asKeeping, "memory keepMemory keep_memory"}},
	}

	pauseBody   = vocabulary{modeOption}
	resumeBody  = vocabulary{timeoutOption}
	timeoutBody = vocabulary{timeoutOption.must()}
	holdBody    = vocabulary{
		{name: "reason", doc: "What it is busy with.", required: true, spelled: []spelled{{asText, "reason"}}},
		{name: "seconds", doc: "How long it counts as busy at most, from now.", required: true, spelled: []spelled{{inSomeSeconds, "seconds"}}},
		{name: "id", doc: "Names the hold; to use the id of one that exists prolongs that. Made if not said.", spelled: []spelled{{asText, "id"}}},
	}
	previewBody = vocabulary{
		{name: "port", doc: "The port of a server in the sandbox.", required: true, spelled: []spelled{{asPort, "port"}}},
		{name: "expiresInSeconds", doc: "How long the link is good, 30 days at most; one hour if not said. Its end is rounded up to a whole second.",
			spelled: []spelled{{inSomeSeconds, "expiresInSeconds expiresIn expires_in expires_in_seconds ttl"}}},
		{name: "path", doc: "Where the link leads at the port, with a query if need be; / if not said. It bounds nothing: the link is good for the whole port.",
			spelled: []spelled{{asPath, "path"}}},
	}
	keyBody = vocabulary{
		{name: "name", doc: "What or whom the key is for.", required: true, spelled: []spelled{{asText, "name"}}},
		{name: "role", doc: "What it may do; full if not said.", spelled: []spelled{{asRole, "role"}}},
		{name: "expiresInSeconds", doc: "How long it is good; for ever if not said.",
			spelled: []spelled{{inSomeSeconds, "expiresInSeconds expiresIn expires_in expires_in_seconds ttl"}}},
		{name: "maxRunning", doc: "How many sandboxes that it has made may run at once; no bound if not said. A wake counts, whoever asks for it.",
			spelled: []spelled{{asCount, "maxRunning max_running limits.maxRunning limits.max_running"}}},
		{name: "maxSandboxes", doc: "How many sandboxes that it has made there may be, those that sleep included; no bound if not said.",
			spelled: []spelled{{asCount, "maxSandboxes max_sandboxes limits.maxSandboxes limits.max_sandboxes"}}},
		{name: "maxMemoryMiB", doc: "How much memory the sandboxes that it has made and that run may have together, by their limits; no bound if not said.",
			spelled: []spelled{{asCount, "maxMemoryMiB max_memory_mib limits.maxMemoryMiB limits.max_memory_mib"}}},
		{name: "maxDiskMiB", doc: "How much of the disk the sandboxes that it has made may have together, asleep or not, by their limits; no bound if not said. A sandbox without a limit is refused then.",
			spelled: []spelled{{asCount, "maxDiskMiB max_disk_mib limits.maxDiskMiB limits.max_disk_mib"}}},
	}
	volumeBody = vocabulary{
		{name: "name", doc: "What it is called: letters, digits, - and _, 128 at most. No other volume may have the name.", required: true, spelled: []spelled{{asText, "name"}}},
		{name: "diskMiB", doc: "How much it may hold, and one file for each 16 KiB of it; the server's --volume-disk if not said. Past it, all running sandboxes that have it are paused, and writes of its files are refused with volume_full.",
			spelled: []spelled{{asCount, "diskMiB disk_mib"}}},
	}
	flatPauseBody      = vocabulary{sandboxOption, modeOption}
	flatResumeBody     = vocabulary{sandboxOption, timeoutOption}
	flatSetTimeoutBody = vocabulary{sandboxOption, timeoutOption.must()}
)

// must returns the option as one that cannot be left out.
func (o option) must() option {
	o.required = true
	return o
}

// option returns the option of a name.
func (v vocabulary) option(name string) option {
	for _, o := range v {
		if o.name == name {
			return o
		}
	}
	panic("internal error: v1: no option " + name)
}
