package body

import (
	"cmp"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Options is every option of a sandbox with all its spellings. Bodies of create
// and patch are read by it and documented from it.
var Options = append(Vocabulary{
	{
		Name: "template", Doc: "What the sandbox starts from (default: base): a template, by its id or alias, or a snapshot, by its id or name. Where both have a name it is the template; a name never stands for what another API key has named.",
		Spelled: []Spelled{AsTemplate.As("template templateID templateId template_id")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Template = v.(string) },
	},
	{
		Name: "name", Doc: "A name by which to find the sandbox: letters, digits, - and _, 64 at most, beginning with a letter or digit. Until the sandbox ends, no other sandbox of the same API key can have the name.",
		Spelled: []Spelled{AsName.As("name")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Name = v.(string) },
	},
	{
		Name: "timeoutSeconds", Doc: "The soft timeout: how long the sandbox runs after each start or wake. onTimeout says what happens then.",
		Spelled: []Spelled{
			InSeconds.As("timeoutSeconds timeout_seconds timeout"), InMillis.As("timeoutMs timeout_ms"),
			{Form: InSeconds, As: "ttl", Beside: "hard_ttl hardTtl", Ambiguous: "maxLifetimeSeconds"},
		},
		Create: func(r *supervisor.CreateRequest, v any) { r.Settings.Timeout = v.(time.Duration) },
		Fixed:  "POST /v1/sandboxes/{id}/timeout moves the deadline",
	},
	{
		Name: "onTimeout", Doc: "What happens when the soft timeout ends: kill or pause (default: the server's, kill).",
		Spelled: []Spelled{
			AsAction.As("onTimeout on_timeout onTimeout.action on_timeout.action lifecycle.onTimeout lifecycle.on_timeout lifecycle.onTimeout.action lifecycle.on_timeout.action"),
			AsPausing.As("autoPause auto_pause"),
		},
		Create: func(r *supervisor.CreateRequest, v any) { r.Settings.OnTimeout = v.(lifecycle.Action) },
		Patch:  func(p *supervisor.Patch, v any) { p.Settings.OnTimeout = ptr[lifecycle.Action](v) },
	},
	{
		Name: "autoResume", Doc: "Whether requests wake the sandbox when it is paused. Requires onTimeout or onIdle to be pause.",
		Spelled: []Spelled{
			AsFlag.As("autoResume auto_resume autoResume.enabled auto_resume.enabled lifecycle.autoResume lifecycle.auto_resume lifecycle.autoResume.enabled lifecycle.auto_resume.enabled autoResumeEnabled auto_resume_enabled"),
		},
		Create: func(r *supervisor.CreateRequest, v any) { r.Settings.AutoResume = v.(bool) },
		Patch:  func(p *supervisor.Patch, v any) { p.Settings.AutoResume = ptr[bool](v) },
	},
	{
		Name: "pauseMode", Doc: "What automatic pauses keep (default: memory). " + FilesystemKeeps,
		Spelled: []Spelled{
			AsMode.As("pauseMode pause_mode"),
			AsKeeping.As("autoPauseMemory auto_pause_memory onTimeout.keepMemory onTimeout.keep_memory on_timeout.keepMemory on_timeout.keep_memory " +
				"lifecycle.onTimeout.keepMemory lifecycle.onTimeout.keep_memory lifecycle.on_timeout.keepMemory lifecycle.on_timeout.keep_memory"),
		},
		Create: func(r *supervisor.CreateRequest, v any) { r.Settings.PauseMode = v.(lifecycle.Mode) },
		Fixed:  "POST /v1/sandboxes/{id}/pause takes a mode for one pause",
	},
	{
		Name: "idleTimeoutSeconds", Doc: "How long the sandbox may be idle. onIdle says what happens then.",
		Spelled: []Spelled{InSeconds.As("idleTimeoutSeconds idleTimeout idle_timeout idle_timeout_seconds")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.IdleTimeout = v.(time.Duration) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.IdleTimeout = ptr[time.Duration](v) },
	},
	{
		Name: "onIdle", Doc: "What happens when the idle timeout ends: kill or pause (default: the same as onTimeout).",
		Spelled: []Spelled{AsAction.As("onIdle on_idle")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.OnIdle = v.(lifecycle.Action) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.OnIdle = ptr[lifecycle.Action](v) },
	},
	{
		Name: "maxLifetimeSeconds", Doc: "How long the sandbox may exist, running or paused. Then it is terminated and its data deleted.",
		Spelled: []Spelled{InSeconds.As("maxLifetimeSeconds maxLifetime max_lifetime max_lifetime_seconds hard_ttl hardTtl")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.MaxLifetime = v.(time.Duration) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.MaxLifetime = ptr[time.Duration](v) },
	},
	{
		Name: "pausedRetentionSeconds", Doc: "How long the sandbox may stay paused (default: the server's). Then it is terminated and its data deleted.",
		Spelled: []Spelled{InSeconds.As("pausedRetentionSeconds pausedRetention paused_retention paused_retention_seconds")},
		Create: func(r *supervisor.CreateRequest, v any) {
			r.Settings.PausedRetention = cmp.Or(v.(time.Duration), supervisor.Unlimited)
		},
		Patch: func(p *supervisor.Patch, v any) { p.Settings.PausedRetention = ptr[time.Duration](v) },
	},
	{
		Name: "refreshOnActivity", Doc: "Whether activity restarts the soft timeout; it does not end while work is in progress. " +
			"With true, everything that keeps a sandbox from being idle is activity. With \"requests\", processes are not: only requests, streams (such as that of a command whose client is connected) and holds that somebody asked for.",
		Spelled: []Spelled{AsRefresh.As("refreshOnActivity refresh_on_activity")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.RefreshOnActivity = v.(lifecycle.Refresh) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.RefreshOnActivity = ptr[lifecycle.Refresh](v) },
	},
	{
		Name: "filesystemFallback", Doc: "Whether a resume boots the sandbox from its files if the server's runtime cannot read the memory image, for example after an upgrade (default: false). The result is the same as after a pause with mode filesystem. With false, the sandbox stays paused and the error says why. It also lets traffic boot a sandbox whose memory could not be captured (memory_not_capturable).",
		Spelled: []Spelled{AsFlag.As("filesystemFallback filesystem_fallback")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.FilesystemFallback = v.(bool) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.FilesystemFallback = ptr[bool](v) },
	},
	{
		Name: "stallAfterSeconds", Doc: "How long a hold without progress keeps the sandbox awake (default: the server's).",
		Spelled: []Spelled{InSecondsOrNever.As("stallAfterSeconds stallAfter stall_after stall_after_seconds")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.StallAfter = v.(time.Duration) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.StallAfter = ptr[time.Duration](v) },
	},
	{
		Name: "checkpointEverySeconds", Doc: "How often to write a checkpoint while the sandbox runs, so that a crash loses no more than that; at least 10. A checkpoint is a pause followed at once by a resume: requests wait for it, open streams are closed, and clocks continue.",
		Spelled: []Spelled{InSeconds.As("checkpointEverySeconds checkpointEvery checkpoint_every checkpoint_every_seconds")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Settings.CheckpointEvery = v.(time.Duration) },
		Patch:   func(p *supervisor.Patch, v any) { p.Settings.CheckpointEvery = ptr[time.Duration](v) },
	},
	{
		Name: "metadata", Doc: "Labels by which to find the sandbox. A patch replaces all of them.",
		Spelled: []Spelled{AsTexts.As("metadata")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Metadata = orNil(v.(map[string]string)) },
		Patch:   func(p *supervisor.Patch, v any) { p.Metadata = v.(map[string]string) },
	},
	{
		Name: "env", Doc: "Environment variables of every process in the sandbox.",
		Spelled: []Spelled{AsVars.As("env envs envVars env_vars")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Env = orNil(v.(map[string]string)) },
	},
	{
		Name: "secrets", Doc: "Secrets of the API key that the sandbox may use without having them. Each is a placeholder in an environment variable; in requests to the hosts of the secret, the server puts the value in. The connections to these hosts are opened for that, by a certificate authority of the sandbox's own.",
		Spelled: []Spelled{AsSecrets.As("secrets")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Secrets = v.([]store.SecretUse) },
	},
	{
		Name: "allowInternetAccess", Doc: "Whether the sandbox may reach the internet (default: true); allowOut and denyOut change that for single destinations. " +
			"Private and link-local addresses, this machine and other sandboxes can never be reached. Only TCP over IPv4 is supported. " +
			"DNS works while anything can be reached; without internet access, only names in allowOut are resolved.",
		Spelled: []Spelled{AsFlag.As("allowInternetAccess allow_internet_access")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.AllowInternet = ptr[bool](v) },
		Patch:   func(p *supervisor.Patch, v any) { p.AllowInternet = ptr[bool](v) },
	},
	{
		Name: "allowOut", Doc: "Addresses, networks and names (example.com; *.example.com for all names below it) that the sandbox may reach. This overrides denyOut and allowInternetAccess. " +
			"Names require that everything else is denied: 0.0.0.0/0 in denyOut, or no internet access. The name of a connection is read from its TLS greeting or its first HTTP request, and the server connects to an address of that name. A patch replaces all entries.",
		Spelled: []Spelled{AsRules.As("allowOut allow_out network.allowOut network.allow_out")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.AllowOut = v.([]string) },
		Patch:   func(p *supervisor.Patch, v any) { p.AllowOut = v.([]string) },
	},
	{
		Name: "denyOut", Doc: "Addresses and networks that the sandbox may not reach. A patch replaces all entries and closes connections that are no longer allowed.",
		Spelled: []Spelled{AsRules.As("denyOut deny_out network.denyOut network.deny_out")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.DenyOut = v.([]string) },
		Patch:   func(p *supervisor.Patch, v any) { p.DenyOut = v.([]string) },
	},
	{
		Name: "volumes", Doc: "Volumes to mount, by absolute path; mounts cannot be nested. All sandboxes that mount a volume can write to it and see each other's changes. Lines that several append to one file (O_APPEND) are all kept. File locks work within one sandbox only.",
		Spelled: []Spelled{AsVolumes.As("volumes"), AsMounts.As("volumeMounts volume_mounts")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Volumes = v.([]store.VolumeMount) },
	},
	{
		Name: "allowPublicTraffic", Doc: "Whether everybody who can reach the server may use the sandbox's ports, except the agent's (default: true). With false, requests need the sandbox's traffic token.",
		Spelled: []Spelled{AsFlag.As("allowPublicTraffic allow_public_traffic network.allowPublicTraffic network.allow_public_traffic")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.PrivatePorts = !v.(bool) },
	},
	{
		Name: "maskRequestHost", Doc: "The Host header that servers in the sandbox receive (default: the requested host).",
		Spelled: []Spelled{AsHostMask.As("maskRequestHost mask_request_host network.maskRequestHost network.mask_request_host")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.HostMask = v.(string) },
	},
	{
		Name: "httpsPorts", Doc: "Ports whose servers speak TLS. Their certificates are not verified.",
		Spelled: []Spelled{AsPortList.As("httpsPorts https_ports network.httpsPorts network.https_ports")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.HTTPSPorts = v.([]int) },
	},
	{
		Name: "egressProxy", Doc: "A SOCKS 5 or HTTP proxy through which connections from the sandbox go out, once allowOut and denyOut allow them; the proxy is told addresses, and names are resolved by the server. " +
			"Its password is stored encrypted and in no answer. In a patch, {} is none.",
		Hidden: true, Spelled: []Spelled{AsProxy.As("egressProxy egress_proxy network.egressProxy network.egress_proxy")},
		Create: func(r *supervisor.CreateRequest, v any) {
			if p := v.(*store.Proxy); p.Address != "" {
				r.Config.Proxy = p
			}
		},
		Patch: func(p *supervisor.Patch, v any) { p.Proxy = v.(*store.Proxy) },
	},
	{
		Name: "secure", Doc: "Whether requests to the agent need the sandbox's access token (default: true).",
		Spelled: []Spelled{AsFlag.As("secure")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Secure = v.(bool) },
	},
	{
		Name: "ports", Doc: "What requests do, by port or by port and path: wake the sandbox and count as activity (wake, the default), count as activity only (keep), or neither (ignore). " +
			"A path also matches everything below it, and the longest match applies. A request's path is decoded and cleaned before the comparison. A patch replaces all rules.",
		Spelled: []Spelled{AsPorts.As("ports")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Ports = orNil(v.(store.Ports)) },
		Patch:   func(p *supervisor.Patch, v any) { p.Ports = v.(store.Ports) },
	},
	{
		Name: "cpus", Doc: "CPU limit (default: the server's); 0.5 is half of the time of one.",
		Spelled: []Spelled{AsCPUs.As("cpus cpuCount cpu_count")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.CPUs = v.(float64) },
	},
	{
		Name: "memoryMiB", Doc: "Memory limit, including files in /tmp and /dev/shm (default: the server's). Past it, it ends with OutOfMemory, or goes back to where it last slept.",
		Spelled: []Spelled{AsCount.As("memoryMiB memory_mib memoryMB memory_mb")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.MemoryMiB = v.(int) },
	},
	{
		Name: "diskMiB", Doc: "Disk limit of the sandbox's own files (default: the server's). It also limits the number of files to one per 16 KiB. What was removed does not count, and holes in files do not; df inside shows what does. A sandbox over its limit is paused, and nothing is lost; after a wake it may remove files, and is paused again if it takes much more. If the server's disk has no space for that pause, the sandbox ends with OutOfDisk, or goes back to its last checkpoint.",
		Spelled: []Spelled{AsCount.As("diskMiB disk_mib diskSizeMB disk_size_mb")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.DiskMiB = v.(int) },
	},
	{
		Name: "pids", Doc: "Limit on tasks: a process counts as two, and each further thread as one (default: the server's). A sandbox over it ends with OutOfProcesses, or goes back to its last checkpoint.",
		Spelled: []Spelled{AsCount.As("pids")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Limits.PIDs = v.(int) },
	},
	{
		Name: "services", Doc: "Processes that start with the sandbox and are started again when they end; see docs/services.md. With resume, requests to a service wake a sandbox that sleeps without its memory.",
		Spelled: []Spelled{AsServices.As("services")},
		Create: func(r *supervisor.CreateRequest, v any) {
			r.Config.Services = v.([]service.Service)
			r.Settings.Serves = service.Resumes(r.Config.Services)
		},
		Fixed: "PUT /v1/sandboxes/{id}/services replaces them",
	},
	{
		Name: "hooks", Doc: "Commands that run inside the sandbox before a pause, after a resume or before a kill. If one fails, the operation continues.",
		Spelled: []Spelled{AsHooks.As("hooks")},
		Create:  func(r *supervisor.CreateRequest, v any) { r.Config.Hooks = v.(store.Hooks) },
	},
}, refused()...)

// refused are fields of other servers that this one cannot honour. They are known
// by name, so that the refusal says why.
func refused() Vocabulary {
	return Vocabulary{
		Refuse("rules", "this server does not change what sandboxes send", "rules network.rules"),
		Refuse("dnsServers", "names are resolved by the server, as its --dns says", "dnsServers dns_servers dns network.dnsServers network.dns_servers network.dns"),
		{Name: "mcp", Doc: "Refused: " + noGateway + ".", Refused: true, Spelled: []Spelled{asNull(noGateway).As("mcp")}},
		Refuse("iam", "this server gives out no identities", "iam"),
		Refuse("node", "this server is one machine, and sandboxes run there", "nodeID nodeId node_id distributionScope distribution_scope"),
	}
}

// noGateway is why mcp is refused, with no servers too: its clients then start the
// gateway all the same.
const noGateway = "there is no MCP gateway in the templates of this server"

// Refuse is an option that no server of ours can honour, and says why. What asks
// for nothing is accepted: null, false and what is empty.
func Refuse(name, why, spellings string) Option {
	return Option{Name: name, Doc: "Refused: " + why + ".", Refused: true, Spelled: []Spelled{asNothing(why).As(spellings)}}
}

// PauseMode is what the body of a pause can say.
var PauseMode = Option{
	Name: "mode", Doc: "What the pause keeps (default: memory). " + FilesystemKeeps,
	Spelled: []Spelled{AsMode.As("mode pauseMode pause_mode"), AsKeeping.As("memory keepMemory keep_memory")},
}

// FilesystemKeeps says what there is after the resume of a pause without memory.
const FilesystemKeeps = "filesystem keeps only the files: the sandbox boots without its processes, and /tmp, /run and /dev/shm, which are in memory, are empty. /var/tmp and everything else is on disk."

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
