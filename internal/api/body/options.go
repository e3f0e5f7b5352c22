package body

import (
	"cmp"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Options is every option of a sandbox with all its spellings. Bodies of create
// and patch are read by it and documented from it.
var Options = append(Vocabulary{
	{
		Name: "template", Doc: "What the sandbox starts from; base if not said.",
		Spelled: []Spelled{AsTemplate.As("template templateID templateId template_id")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Template = v.(string) },
	},
	{
		Name: "timeoutSeconds", Doc: "The soft timeout: how long it runs after each start. onTimeout says what then happens.",
		Spelled: []Spelled{
			InSeconds.As("timeoutSeconds timeout_seconds timeout"), InMillis.As("timeoutMs timeout_ms"),
			{Form: InSeconds, As: "ttl", Beside: "hard_ttl hardTtl", Ambiguous: "maxLifetimeSeconds"},
		},
		Create: func(r *supervisor.CreateRequest, v any) { r.Settings.Timeout = v.(time.Duration) },
		Fixed:  "POST /v1/sandboxes/{id}/timeout moves the deadline",
	},
	{
		Name: "onTimeout", Doc: "What the end of the soft timeout does; kill if not said.",
		Spelled: []Spelled{
			AsAction.As("onTimeout on_timeout onTimeout.action on_timeout.action lifecycle.onTimeout lifecycle.on_timeout lifecycle.onTimeout.action lifecycle.on_timeout.action"),
			AsPausing.As("autoPause auto_pause"),
		},
		Create: func(r *supervisor.CreateRequest, v any) { r.Settings.OnTimeout = v.(lifecycle.Action) },
		Patch:  func(p *supervisor.Patch, v any) { p.Settings.OnTimeout = ptr[lifecycle.Action](v) },
	},
	{
		Name: "autoResume", Doc: "Whether traffic wakes it. It needs onTimeout or onIdle to pause.",
		Spelled: []Spelled{
			AsFlag.As("autoResume auto_resume autoResume.enabled auto_resume.enabled lifecycle.autoResume lifecycle.auto_resume lifecycle.autoResume.enabled lifecycle.auto_resume.enabled autoResumeEnabled auto_resume_enabled"),
		},
		Create: func(r *supervisor.CreateRequest, v any) { r.Settings.AutoResume = v.(bool) },
		Patch:  func(p *supervisor.Patch, v any) { p.Settings.AutoResume = ptr[bool](v) },
	},
	{
		Name: "pauseMode", Doc: "What automatic pauses keep; memory if not said. " + FilesystemKeeps,
		Spelled: []Spelled{
			AsMode.As("pauseMode pause_mode"),
			AsKeeping.As("autoPauseMemory auto_pause_memory onTimeout.keepMemory onTimeout.keep_memory on_timeout.keepMemory on_timeout.keep_memory " +
				"lifecycle.onTimeout.keepMemory lifecycle.onTimeout.keep_memory lifecycle.on_timeout.keepMemory lifecycle.on_timeout.keep_memory"),
		},
		Create: func(r *supervisor.CreateRequest, v any) { r.Settings.PauseMode = v.(lifecycle.Mode) },
		Fixed:  "POST /v1/sandboxes/{id}/pause takes a mode for one pause",
	},
	{
		Name: "idleTimeoutSeconds", Doc: "How long it may do nothing. onIdle says what then happens.",
		Spelled: []Spelled{InSeconds.As("idleTimeoutSeconds idleTimeout idle_timeout idle_timeout_seconds")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.IdleTimeout = v.(time.Duration) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.IdleTimeout = ptr[time.Duration](v) },
	},
	{
		Name: "onIdle", Doc: "What the end of the idle timeout does; the same as onTimeout if not said.",
		Spelled: []Spelled{AsAction.As("onIdle on_idle")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.OnIdle = v.(lifecycle.Action) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.OnIdle = ptr[lifecycle.Action](v) },
	},
	{
		Name: "maxLifetimeSeconds", Doc: "How long it may exist at all, asleep or not. Then it is terminated and everything of it deleted.",
		Spelled: []Spelled{InSeconds.As("maxLifetimeSeconds maxLifetime max_lifetime max_lifetime_seconds hard_ttl hardTtl")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.MaxLifetime = v.(time.Duration) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.MaxLifetime = ptr[time.Duration](v) },
	},
	{
		Name: "pausedRetentionSeconds", Doc: "How long it may stay paused; the server's default if not said. Then it is terminated and everything of it deleted.",
		Spelled: []Spelled{InSeconds.As("pausedRetentionSeconds pausedRetention paused_retention paused_retention_seconds")},
		Create: func(r *supervisor.CreateRequest, v any) {
			r.Settings.PausedRetention = cmp.Or(v.(time.Duration), supervisor.Unlimited)
		},
		Patch: func(p *supervisor.Patch, v any) { p.Settings.PausedRetention = ptr[time.Duration](v) },
	},
	{
		Name: "refreshOnActivity", Doc: "Whether activity begins the soft timeout anew.",
		Spelled: []Spelled{AsFlag.As("refreshOnActivity refresh_on_activity")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.RefreshOnActivity = v.(bool) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.RefreshOnActivity = ptr[bool](v) },
	},
	{
		Name: "filesystemFallback", Doc: "Whether a resume boots it afresh where the server's runtime cannot read its memory image, as after an upgrade; false if not said: it stays paused and says why. What it then has is as after a pause that keeps the file system.",
		Spelled: []Spelled{AsFlag.As("filesystemFallback filesystem_fallback")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.FilesystemFallback = v.(bool) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.FilesystemFallback = ptr[bool](v) },
	},
	{
		Name: "stallAfterSeconds", Doc: "How long a hold may make no progress and still count; the server's default if not said.",
		Spelled: []Spelled{InSecondsOrNever.As("stallAfterSeconds stallAfter stall_after stall_after_seconds")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.StallAfter = v.(time.Duration) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.StallAfter = ptr[time.Duration](v) },
	},
	{
		Name: "checkpointEverySeconds", Doc: "How often it is checkpointed while it runs, so that with its runtime or the host it loses no more than that; 10 at least. A checkpoint is a pause that wakes again at once: requests wait for it, open streams are cut, its clocks go on.",
		Spelled: []Spelled{InSeconds.As("checkpointEverySeconds checkpointEvery checkpoint_every checkpoint_every_seconds")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.CheckpointEvery = v.(time.Duration) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.CheckpointEvery = ptr[time.Duration](v) },
	},
	{
		Name: "metadata", Doc: "Texts of yours, to find it by. A patch replaces all of them.",
		Spelled: []Spelled{AsTexts.As("metadata")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Metadata = orNil(v.(map[string]string)) },
		Patch:   func(p *supervisor.Patch, v any) { p.Metadata = v.(map[string]string) },
	},
	{
		Name: "env", Doc: "Environment variables of every process in it.",
		Spelled: []Spelled{AsVars.As("env envs envVars env_vars")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Env = orNil(v.(map[string]string)) },
	},
	{
		Name: "allowInternetAccess", Doc: "Whether it may reach the internet, apart from what allowOut and denyOut say; true if not said. " +
			"Private and link-local addresses, this machine and other sandboxes are out of reach in any case, and so is all that is not TCP over IPv4. " +
			"Names are resolved while anything can be reached; without the internet, only those of allowOut.",
		Spelled: []Spelled{AsFlag.As("allowInternetAccess allow_internet_access")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.AllowInternet = ptr[bool](v) },
		Patch:   func(p *supervisor.Patch, v any) { p.AllowInternet = ptr[bool](v) },
	},
	{
		Name: "allowOut", Doc: "Addresses, networks and names (example.com, *.example.com for all below it) that it may reach whatever else is said. " +
			"With names, everything else must be denied: 0.0.0.0/0 in denyOut, or no internet. A connection for a name is known by its TLS greeting or the host of its first HTTP request, and ends at an address of that name. A patch replaces all.",
		Spelled: []Spelled{AsRules.As("allowOut allow_out network.allowOut network.allow_out")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.AllowOut = v.([]string) },
		Patch:   func(p *supervisor.Patch, v any) { p.AllowOut = v.([]string) },
	},
	{
		Name: "denyOut", Doc: "Addresses and networks that it may not reach. A patch replaces all, and what is denied then is broken off.",
		Spelled: []Spelled{AsRules.As("denyOut deny_out network.denyOut network.deny_out")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.DenyOut = v.([]string) },
		Patch:   func(p *supervisor.Patch, v any) { p.DenyOut = v.([]string) },
	},
	{
		Name: "volumes", Doc: "Volumes by the absolute path where they are to be, none in another. It can write to them, and so can others that have them: what one has written all see, but locks hold in one sandbox alone.",
		Spelled: []Spelled{AsVolumes.As("volumes"), AsMounts.As("volumeMounts volume_mounts")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Volumes = v.([]store.VolumeMount) },
	},
	{
		Name: "allowPublicTraffic", Doc: "Whether its ports, apart from the agent's, are open to everybody who can reach the server; true if not said. Without it they want the sandbox's traffic token.",
		Spelled: []Spelled{AsFlag.As("allowPublicTraffic allow_public_traffic network.allowPublicTraffic network.allow_public_traffic")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.PrivatePorts = !v.(bool) },
	},
	{
		Name: "maskRequestHost", Doc: "The Host header that servers on its ports see; the host that was asked for if not said.",
		Spelled: []Spelled{AsHostMask.As("maskRequestHost mask_request_host network.maskRequestHost network.mask_request_host")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.HostMask = v.(string) },
	},
	{
		Name: "httpsPorts", Doc: "Ports whose servers speak TLS, with any certificate.",
		Spelled: []Spelled{AsPortList.As("httpsPorts https_ports network.httpsPorts network.https_ports")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.HTTPSPorts = v.([]int) },
	},
	{
		Name: "secure", Doc: "Whether its agent wants the sandbox's token; true if not said.",
		Spelled: []Spelled{AsFlag.As("secure")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Secure = v.(bool) },
	},
	{
		Name: "ports", Doc: "What traffic does, by port or by port and path: wake it and count as activity (wake, the default), count but not wake (keep), neither (ignore). " +
			"A path stands for itself and all below it, the longest one that fits decides, and a request's path is decoded and cleaned before it is compared. A patch replaces all rules.",
		Spelled: []Spelled{AsPorts.As("ports")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Ports = orNil(v.(store.Ports)) },
		Patch:   func(p *supervisor.Patch, v any) { p.Ports = v.(store.Ports) },
	},
	{
		Name: "cpus", Doc: "How many of the host's CPUs it may use; the server's default if not said.",
		Spelled: []Spelled{AsCount.As("cpus cpuCount cpu_count")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.CPUs = v.(int) },
	},
	{
		Name: "memoryMiB", Doc: "How much memory it may take, its files in /tmp and /dev/shm included; the server's default if not said. Past it, it ends with OutOfMemory, or goes back to where it last slept.",
		Spelled: []Spelled{AsCount.As("memoryMiB memory_mib memoryMB memory_mb")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.MemoryMiB = v.(int) },
	},
	{
		Name: "diskMiB", Doc: "How much its own files may take on disk, and one file for each 16 KiB of it; the server's default if not said. Past it, it is paused, which loses nothing; woken, it may remove files, and is paused again if it takes much more. Only where the server's disk has no room for a pause does it end with OutOfDisk, or go back to where it last slept.",
		Spelled: []Spelled{AsCount.As("diskMiB disk_mib diskSizeMB disk_size_mb")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.DiskMiB = v.(int) },
	},
	{
		Name: "pids", Doc: "How many tasks it may have on the host: a process inside takes two, and each thread one more; the server's default if not said. Past it, it ends with OutOfProcesses, or goes back to where it last slept.",
		Spelled: []Spelled{AsCount.As("pids")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.PIDs = v.(int) },
	},
	{
		Name: "hooks", Doc: "Commands run inside it at points of its life. Their failure stops nothing.",
		Spelled: []Spelled{AsHooks.As("hooks")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Hooks = v.(store.Hooks) },
	},
}, refused()...)

// refused are fields of other servers that this one cannot honour. They are known
// by name, so that the refusal says why.
func refused() Vocabulary {
	return Vocabulary{
		refuse("egressProxy", "this server sends nothing through proxies", "egressProxy egress_proxy network.egressProxy network.egress_proxy"),
		refuse("rules", "this server does not change what sandboxes send", "rules network.rules"),
		refuse("dnsServers", "names are resolved by the server, as its --dns says", "dnsServers dns_servers dns network.dnsServers network.dns_servers network.dns"),
		refuse("mcp", "there is no MCP gateway in the templates of this server", "mcp"),
		refuse("iam", "this server gives out no identities", "iam"),
		refuse("secrets", "this server keeps no secrets; use env", "secrets"),
	}
}

func refuse(name, why, spellings string) Option {
	return Option{Name: name, Doc: "Refused: " + why + ".", Refused: true, Spelled: []Spelled{asNothing(why).As(spellings)}}
}

// PauseMode is what the body of a pause can say.
var PauseMode = Option{
	Name: "mode", Doc: "What the pause keeps; memory if not said. " + FilesystemKeeps,
	Spelled: []Spelled{AsMode.As("mode pauseMode pause_mode"), AsKeeping.As("memory keepMemory keep_memory")},
}

// FilesystemKeeps says what there is after the resume of a pause without memory.
const FilesystemKeeps = "filesystem keeps the disk alone: the sandbox boots afresh, without its processes, and with /tmp, /run and /dev/shm empty, which are in memory; /var/tmp and all else is on disk."

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

// Option returns the option of a name.
func (v Vocabulary) Option(name string) Option {
	for _, o := range v {
		if o.Name == name {
			return o
		}
	}
	panic("internal error: body: no option " + name)
}
