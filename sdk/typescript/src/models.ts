// Generated from docs/api/openapi.json by sdk/gen. Do not edit.
//
// What the API answers, and what it can be asked for, as it is on the wire: times
// are RFC 3339 in UTC, durations are numbers of seconds.

export interface Ancestor {
  at: string;
  generation: number;
  /** The name that the snapshot had then. */
  name: string | null;
  sandbox: string;
  /** The id of the snapshot, which may have been deleted; null for a fork. */
  snapshot: string | null;
}

export interface Built {
  /** How many builds are remembered. */
  builds: number;
  /** The id of the API key that has built it. */
  key: string;
  /** What the API key that has built it calls it. To other keys the name means nothing. */
  name: string;
  /** Why the newest build failed. */
  reason?: string;
  /**
   * Of the newest build: waiting, building, ready or error. What an older build has led to stays
   * while a newer one runs or has failed.
   */
  status: string;
}

/** What is to change of a sandbox, running or paused. */
export interface ChangeOptions {
  /**
   * Whether the sandbox may reach the internet (default: true); allowOut and denyOut change that
   * for single destinations. Private and link-local addresses, this machine and other sandboxes
   * can never be reached. Only TCP over IPv4 is supported. DNS works while anything can be
   * reached; without internet access, only names in allowOut are resolved. (a boolean)
   */
  allowInternetAccess?: boolean | undefined;
  /**
   * Addresses, networks and names (example.com; *.example.com for all names below it) that the
   * sandbox may reach. This overrides denyOut and allowInternetAccess. Names require that
   * everything else is denied: 0.0.0.0/0 in denyOut, or no internet access. The name of a
   * connection is read from its TLS greeting or its first HTTP request, and the server connects to
   * an address of that name. A patch replaces all entries. (an array of strings)
   */
  allowOut?: string[] | undefined;
  /**
   * Whether requests wake the sandbox when it is paused. Requires onTimeout or onIdle to be pause.
   * (a boolean)
   */
  autoResume?: boolean | undefined;
  /**
   * How often to write a checkpoint while the sandbox runs, so that a crash loses no more than
   * that; at least 10. A checkpoint is a pause followed at once by a resume: requests wait for it,
   * open streams are closed, and clocks continue. (seconds, fractions allowed, 0 for no limit)
   */
  checkpointEverySeconds?: number | undefined;
  /**
   * Addresses and networks that the sandbox may not reach. A patch replaces all entries and closes
   * connections that are no longer allowed. (an array of strings)
   */
  denyOut?: string[] | undefined;
  /**
   * A SOCKS 5 or HTTP proxy through which connections from the sandbox go out, once allowOut and
   * denyOut allow them; the proxy is told addresses, and names are resolved by the server. Its
   * password is stored encrypted and in no answer. In a patch, {} is none. (an object with
   * address, username and password)
   */
  egressProxy?: { address: string; password?: string; username?: string } | undefined;
  /**
   * Whether a resume boots the sandbox from its files if the server's runtime cannot read the
   * memory image, for example after an upgrade (default: false). The result is the same as after a
   * pause with mode filesystem. With false, the sandbox stays paused and the error says why. It
   * also lets traffic boot a sandbox whose memory could not be captured (memory_not_capturable).
   * (a boolean)
   */
  filesystemFallback?: boolean | undefined;
  /**
   * How long the sandbox may be idle. onIdle says what happens then. (seconds, fractions allowed,
   * 0 for no limit)
   */
  idleTimeoutSeconds?: number | undefined;
  /**
   * How long the sandbox may exist, running or paused. Then it is terminated and its data deleted.
   * (seconds, fractions allowed, 0 for no limit)
   */
  maxLifetimeSeconds?: number | undefined;
  /**
   * Labels by which to find the sandbox. A patch replaces all of them. (an object with string
   * values)
   */
  metadata?: Record<string, string> | undefined;
  /**
   * What happens when the idle timeout ends: kill or pause (default: the same as onTimeout).
   * ("kill" or "pause")
   */
  onIdle?: "kill" | "pause" | undefined;
  /**
   * What happens when the soft timeout ends: kill or pause (default: the server's, kill). ("kill"
   * or "pause")
   */
  onTimeout?: "kill" | "pause" | undefined;
  /**
   * How long the sandbox may stay paused (default: the server's). Then it is terminated and its
   * data deleted. (seconds, fractions allowed, 0 for no limit)
   */
  pausedRetentionSeconds?: number | undefined;
  /**
   * What requests do, by port or by port and path: wake the sandbox and count as activity (wake,
   * the default), count as activity only (keep), or neither (ignore). A path also matches
   * everything below it, and the longest match applies. A request's path is decoded and cleaned
   * before the comparison. A patch replaces all rules. (an object with "wake", "keep" or "ignore"
   * by port or by port and path: {"8080": "wake", "8080/healthz": "ignore"})
   */
  ports?: Record<string, "wake" | "keep" | "ignore"> | undefined;
  /**
   * Whether activity restarts the soft timeout; it does not end while work is in progress. With
   * true, everything that keeps a sandbox from being idle is activity. With "requests", processes
   * are not: only requests, streams (such as that of a command whose client is connected) and
   * holds that somebody asked for. (a boolean, or "requests")
   */
  refreshOnActivity?: boolean | "requests" | undefined;
  /**
   * How long a hold without progress keeps the sandbox awake (default: the server's). (seconds,
   * fractions allowed, 0 for never)
   */
  stallAfterSeconds?: number | undefined;
}

export interface Checkpoint {
  /** What the pause wrote. */
  bytes: number;
  /** What kept the memory from being captured. */
  detail: string | null;
  /**
   * Where it is. local: on the disk of its server alone. replicated: in object storage too, so
   * that another server can go on with the sandbox if its own is gone. null without object
   * storage, and while another server has the sandbox.
   */
  durability: string | null;
  mode: "memory" | "filesystem";
  /**
   * memory_not_capturable, where a pause that was to keep the memory has kept the files alone;
   * null otherwise.
   */
  reason: string | null;
  /**
   * Why the last try to copy it to object storage has failed, which is tried again; null for no
   * failure.
   */
  replicationError: string | null;
}

export interface Clock {
  /** What happens when it ends. */
  action: "kill" | "pause" | "checkpoint";
  clock: string;
  deadline: string | null;
  /** 0 for no limit. */
  limitSeconds: number;
  /** The reason in the tombstone of a sandbox that this clock ended; null if it ends none. */
  reason: string | null;
  status: "off" | "running" | "held" | "stopped";
}

/** What a new sandbox is to be. All of it can be left out. */
export interface CreateOptions {
  /**
   * Whether the sandbox may reach the internet (default: true); allowOut and denyOut change that
   * for single destinations. Private and link-local addresses, this machine and other sandboxes
   * can never be reached. Only TCP over IPv4 is supported. DNS works while anything can be
   * reached; without internet access, only names in allowOut are resolved. (a boolean)
   */
  allowInternetAccess?: boolean | undefined;
  /**
   * Addresses, networks and names (example.com; *.example.com for all names below it) that the
   * sandbox may reach. This overrides denyOut and allowInternetAccess. Names require that
   * everything else is denied: 0.0.0.0/0 in denyOut, or no internet access. The name of a
   * connection is read from its TLS greeting or its first HTTP request, and the server connects to
   * an address of that name. A patch replaces all entries. (an array of strings)
   */
  allowOut?: string[] | undefined;
  /**
   * Whether everybody who can reach the server may use the sandbox's ports, except the agent's
   * (default: true). With false, requests need the sandbox's traffic token. (a boolean)
   */
  allowPublicTraffic?: boolean | undefined;
  /**
   * Whether requests wake the sandbox when it is paused. Requires onTimeout or onIdle to be pause.
   * (a boolean)
   */
  autoResume?: boolean | undefined;
  /**
   * How often to write a checkpoint while the sandbox runs, so that a crash loses no more than
   * that; at least 10. A checkpoint is a pause followed at once by a resume: requests wait for it,
   * open streams are closed, and clocks continue. (seconds, fractions allowed, 0 for no limit)
   */
  checkpointEverySeconds?: number | undefined;
  /**
   * CPU limit (default: the server's); 0.5 is half of the time of one. (a number above 0, to the
   * hundredth)
   */
  cpus?: number | undefined;
  /**
   * Addresses and networks that the sandbox may not reach. A patch replaces all entries and closes
   * connections that are no longer allowed. (an array of strings)
   */
  denyOut?: string[] | undefined;
  /**
   * Disk limit of the sandbox's own files (default: the server's). It also limits the number of
   * files to one per 16 KiB. What was removed does not count, and holes in files do not; df inside
   * shows what does. A sandbox over its limit is paused, and nothing is lost; after a wake it may
   * remove files, and is paused again if it takes much more. If the server's disk has no space for
   * that pause, the sandbox ends with OutOfDisk, or goes back to its last checkpoint. (an integer
   * from 1)
   */
  diskMiB?: number | undefined;
  /**
   * A SOCKS 5 or HTTP proxy through which connections from the sandbox go out, once allowOut and
   * denyOut allow them; the proxy is told addresses, and names are resolved by the server. Its
   * password is stored encrypted and in no answer. In a patch, {} is none. (an object with
   * address, username and password)
   */
  egressProxy?: { address: string; password?: string; username?: string } | undefined;
  /** Environment variables of every process in the sandbox. (an object of environment variables) */
  env?: Record<string, string> | undefined;
  /**
   * Whether a resume boots the sandbox from its files if the server's runtime cannot read the
   * memory image, for example after an upgrade (default: false). The result is the same as after a
   * pause with mode filesystem. With false, the sandbox stays paused and the error says why. It
   * also lets traffic boot a sandbox whose memory could not be captured (memory_not_capturable).
   * (a boolean)
   */
  filesystemFallback?: boolean | undefined;
  /**
   * Commands that run inside the sandbox before a pause, after a resume or before a kill. If one
   * fails, the operation continues. (an object of commands)
   */
  hooks?: Hooks | undefined;
  /** Ports whose servers speak TLS. Their certificates are not verified. (an array of ports) */
  httpsPorts?: number[] | undefined;
  /**
   * How long the sandbox may be idle. onIdle says what happens then. (seconds, fractions allowed,
   * 0 for no limit)
   */
  idleTimeoutSeconds?: number | undefined;
  /**
   * The Host header that servers in the sandbox receive (default: the requested host). (a host,
   * with or without a port, in which ${PORT} stands for the port asked for)
   */
  maskRequestHost?: string | undefined;
  /**
   * How long the sandbox may exist, running or paused. Then it is terminated and its data deleted.
   * (seconds, fractions allowed, 0 for no limit)
   */
  maxLifetimeSeconds?: number | undefined;
  /**
   * Memory limit, including files in /tmp and /dev/shm (default: the server's). Past it, it ends
   * with OutOfMemory, or goes back to where it last slept. (an integer from 1)
   */
  memoryMiB?: number | undefined;
  /**
   * Labels by which to find the sandbox. A patch replaces all of them. (an object with string
   * values)
   */
  metadata?: Record<string, string> | undefined;
  /**
   * A name by which to find the sandbox: letters, digits, - and _, 64 at most, beginning with a
   * letter or digit. Until the sandbox ends, no other sandbox of the same API key can have the
   * name. (a name for a sandbox)
   */
  name?: string | undefined;
  /**
   * What happens when the idle timeout ends: kill or pause (default: the same as onTimeout).
   * ("kill" or "pause")
   */
  onIdle?: "kill" | "pause" | undefined;
  /**
   * What happens when the soft timeout ends: kill or pause (default: the server's, kill). ("kill"
   * or "pause")
   */
  onTimeout?: "kill" | "pause" | undefined;
  /**
   * What automatic pauses keep (default: memory). filesystem keeps only the files: the sandbox
   * boots without its processes, and /tmp, /run and /dev/shm, which are in memory, are empty.
   * /var/tmp and everything else is on disk. ("memory" or "filesystem")
   */
  pauseMode?: "memory" | "filesystem" | undefined;
  /**
   * How long the sandbox may stay paused (default: the server's). Then it is terminated and its
   * data deleted. (seconds, fractions allowed, 0 for no limit)
   */
  pausedRetentionSeconds?: number | undefined;
  /**
   * Limit on tasks: a process counts as two, and each further thread as one (default: the
   * server's). A sandbox over it ends with OutOfProcesses, or goes back to its last checkpoint.
   * (an integer from 1)
   */
  pids?: number | undefined;
  /**
   * What requests do, by port or by port and path: wake the sandbox and count as activity (wake,
   * the default), count as activity only (keep), or neither (ignore). A path also matches
   * everything below it, and the longest match applies. A request's path is decoded and cleaned
   * before the comparison. A patch replaces all rules. (an object with "wake", "keep" or "ignore"
   * by port or by port and path: {"8080": "wake", "8080/healthz": "ignore"})
   */
  ports?: Record<string, "wake" | "keep" | "ignore"> | undefined;
  /**
   * Whether activity restarts the soft timeout; it does not end while work is in progress. With
   * true, everything that keeps a sandbox from being idle is activity. With "requests", processes
   * are not: only requests, streams (such as that of a command whose client is connected) and
   * holds that somebody asked for. (a boolean, or "requests")
   */
  refreshOnActivity?: boolean | "requests" | undefined;
  /**
   * Secrets of the API key that the sandbox may use without having them. Each is a placeholder in
   * an environment variable; in requests to the hosts of the secret, the server puts the value in.
   * The connections to these hosts are opened for that, by a certificate authority of the
   * sandbox's own. (an array of names of secrets, each alone or with a variable ({"name":
   * "github", "env": "GITHUB_TOKEN"}), or an object with names by variable: {"GITHUB_TOKEN":
   * "github"})
   */
  secrets?: (string | { env?: string; name: string })[] | Record<string, string> | undefined;
  /** Whether requests to the agent need the sandbox's access token (default: true). (a boolean) */
  secure?: boolean | undefined;
  /**
   * Processes that start with the sandbox and are started again when they end; see
   * docs/services.md. With resume, requests to a service wake a sandbox that sleeps without its
   * memory. (an array of services)
   */
  services?: Service[] | undefined;
  /**
   * The snapshot that the sandbox starts from, by its id or the name that the API key has given
   * it, instead of a template. The sandbox has the template, the processors, the memory limit and
   * the volumes of the snapshot, and its environment variables where env does not replace them. (a
   * string)
   */
  snapshot?: string | undefined;
  /**
   * How long a hold without progress keeps the sandbox awake (default: the server's). (seconds,
   * fractions allowed, 0 for never)
   */
  stallAfterSeconds?: number | undefined;
  /**
   * What the sandbox starts from (default: base): a template, by its id or alias, or a snapshot,
   * by its id or name. Where both have a name it is the template; a name never stands for what
   * another API key has named. (an id, alias, alias:tag or namespace/alias)
   */
  template?: string | undefined;
  /**
   * The soft timeout: how long the sandbox runs after each start or wake. onTimeout says what
   * happens then. (seconds, fractions allowed, 0 for no limit)
   */
  timeoutSeconds?: number | undefined;
  /**
   * Volumes to mount, by absolute path; mounts cannot be nested. All sandboxes that mount a volume
   * can write to it and see each other's changes. Lines that several append to one file (O_APPEND)
   * are all kept. File locks work within one sandbox only. (an object with names of volumes by
   * path: {"/mnt/data": "data"})
   */
  volumes?: Record<string, string> | undefined;
}

export interface Event {
  actor: string | null;
  /** Bytes that the operation wrote. */
  bytes: number | null;
  cause: string | null;
  detail: string | null;
  /** Duration of the operation that ended. */
  durationSeconds: number | null;
  /** Bytes of host memory that were freed; null if unknown. */
  freed: number | null;
  from: "pending" | "creating" | "running" | "snapshotting" | "pausing" | "paused" | "resuming" | "killing" | "terminated";
  generation: number;
  /** Strictly increasing over all sandboxes; use it as a cursor. */
  id: number;
  /** The operation that the event belongs to. */
  operation: string | null;
  sandbox: string;
  time: string;
  to: "pending" | "creating" | "running" | "snapshotting" | "pausing" | "paused" | "resuming" | "killing" | "terminated";
  type: string;
}

export interface Explanation {
  /** Whether a hold counts, so that the sandbox is not idle. */
  busy: boolean;
  /** What a resume restores. */
  checkpoint: Checkpoint | null;
  /** In order of precedence if several end at once. */
  clocks: Clock[];
  generation: number;
  /** What keeps the sandbox awake now; holds that count come first. */
  holds: Hold[];
  lastError: string | null;
  /**
   * What the sandbox started from, and what that was of, nearest first, at most 20; empty for one
   * that started from a template.
   */
  lineage: Ancestor[];
  /** What happens next by itself. */
  next: Next;
  /** The operation in flight. */
  operation: Operation | null;
  /** How many automatic pauses have failed in a row. */
  pauseFailures: number;
  /** No automatic pause is tried before this time. */
  pauseRetryAt: string | null;
  phase: "creating" | "snapshotting" | "pausing" | "resuming" | "killing" | null;
  /**
   * The last connections out that were rejected, newest first. Connections that are denied by
   * address are rejected inside the sandbox and are not listed.
   */
  refusals: Refusal[];
  /** The snapshot that the sandbox went back to last; null if it never did. */
  restored: Restore | null;
  sandbox: string;
  /** Its services and how they are. */
  services: ServiceInfo[];
  /** How it sleeps, as in the sandbox itself: light or deep while state is paused. */
  sleep?: "light" | "deep";
  state: "pending" | "running" | "paused" | "terminated";
  /** Whether the sandbox reports the work inside. */
  telemetry: Telemetry;
  tombstone: Tombstone | null;
  /** The last entries of its event log, newest first. */
  transitions: Event[];
}

export interface Hold {
  /**
   * False if it has stalled, if its port's policy is ignore, and of a process where
   * refreshOnActivity is requests and there is no idle timeout.
   */
  counts: boolean;
  /** The port, command or reason. */
  detail: string;
  id: string;
  kind: "request" | "stream" | "process" | "lease";
  lastProgress: string | null;
  since: string;
  /** When it stops counting without progress; null for never. */
  until: string | null;
}

export interface Hook {
  /** Run by a shell, as root. */
  command: string;
  /** It is killed after this: 5 if not said, 30 at most. */
  timeoutSeconds?: number;
}

export interface Hooks {
  /** After each resume. Also spelled post_resume. */
  postResume?: Hook;
  /** Before the end. Also spelled pre_kill. */
  preKill?: Hook;
  /** Before each pause. Also spelled pre_pause. */
  prePause?: Hook;
}

export interface Image {
  cmd: string[];
  /** What pins it, whatever becomes of its tag. */
  digest: string;
  entrypoint: string[];
  env: string[];
  exposedPorts: string[];
  /** Bottom first. Images share layers. */
  layers: Layer[];
  platform: string;
  /** The reference it was fetched by; empty for an archive that names none. */
  ref: string;
  /** As the image says it; empty for nobody in particular. */
  user: string;
  workingDir: string;
}

export interface Layer {
  /** In its files. */
  bytes: number;
  digest: string;
  entries: number;
}

export interface Limits {
  cpus: number;
  /** Limit of its own files; 0 for no limit. */
  diskMiB: number;
  memoryMiB: number;
  pids: number;
}

export interface LogLine {
  /** By the sandbox's clock. */
  at: string;
  /** From 1 since the sandbox booted. */
  seq: number;
  /** Without what a terminal would act on. */
  text: string;
}

export interface Next {
  /** pause, kill, finish (the operation in flight) or forget (the record); null if nothing is due. */
  action: string | null;
  at: string | null;
  clock: string | null;
  /** For people. */
  text: string;
  /**
   * What else has to happen first: for the idle timeout to begin, the end of a hold (request,
   * stream, process, lease) or word from inside (telemetry); for a paused sandbox to wake, traffic
   * or a resume, or repair where its checkpoint is found damaged; null for nothing.
   */
  waitsFor: string | null;
}

export interface Operation {
  actor: string | null;
  attempt: number;
  /** Whether a request may cancel this pause. */
  cancelable: boolean;
  cause: string;
  /** When the operation is given up, and the sandbox goes to the safer of its two states. */
  deadline: string;
  id: string;
  /** Of a pause. */
  mode: "memory" | "filesystem" | null;
  phase: "creating" | "snapshotting" | "pausing" | "resuming" | "killing";
  startedAt: string;
}

export interface Preview {
  /** Who created it. */
  actor: string | null;
  createdAt: string;
  expiresAt: string;
  id: string;
  port: number;
  /** The URL; only in the answer that creates it. */
  url?: string;
}

/** What a preview link is to be. */
export interface PreviewOptions {
  /**
   * How long the link is valid, at most 30 days (default: one hour). The end is rounded up to a
   * whole second. (seconds, fractions allowed, more than 0)
   */
  expiresInSeconds?: number | undefined;
  /**
   * The path that the link opens, with a query if needed (default: /). It is no restriction: the
   * link gives access to the whole port. (a path that begins with a slash)
   */
  path?: string | undefined;
  /** The port of a server in the sandbox. (an integer from 1 to 65535) */
  port: number;
}

export interface Proxy {
  /** host:port or socks5://host:port for SOCKS 5, http://host:port for CONNECT. */
  address: string;
  /** Whom to log in as. */
  username?: string;
}

export interface Refusal {
  at: string;
  /**
   * closed: out of reach of every sandbox; denied: by its rules; name: only names are allowed, and
   * this is none of them; no address: the name has none; no answer: the other side did not take
   * it; too many: it has too many connections. Of connections through its egress proxy: proxy
   * unreachable: the proxy has no address that can be reached, or did not take the connection;
   * proxy login: it did not accept the credentials; proxy refused: it did not connect on; proxy
   * protocol: it broke off, or gave no proper answer in time. Of connections to the hosts of its
   * secrets: not TLS: it asked without; pinned: the program did not accept the certificate of the
   * sandbox's own authority; certificate: that of the host could not be verified; other host: the
   * request was for another host than the connection; protocol: it was no request of HTTP/1.1 that
   * can be passed on; not logged: the use could not be logged; unreadable: the value could not be
   * read.
   */
  reason: string;
  /** An address and port, with the name that was asked for if one was; or a name. */
  target: string;
}

export interface Restore {
  at: string;
  /** Its id; it may have been deleted. */
  snapshot: string;
}

export interface SandboxInfo {
  /** The template's alias. */
  alias: string | null;
  /** Whether the sandbox may reach the internet, as requested; null if not given, which allows it. */
  allowInternetAccess: boolean | null;
  /** Destinations that are always allowed. */
  allowOut: string[];
  /** Whether its ports are open without the traffic token. */
  allowPublicTraffic: boolean;
  /** The hold that keeps it awake, the oldest of several, as in its lifecycle; null for none. */
  awakeBecause: string | null;
  /** What a resume restores. */
  checkpoint: Checkpoint | null;
  createdAt: string;
  /** Destinations that are denied. */
  denyOut: string[];
  /** The proxy through which its connections go out, without the password; null for none. */
  egressProxy: Proxy | null;
  /** When the soft timeout ends; null for never, and while it does not run. */
  endAt: string | null;
  /** Settings that were not given at create, so that they are the server's defaults of that time. */
  fromServer: string[];
  /** Of the runtime that serves or last served; 0 before the first. */
  generation: number;
  hooks: Hooks;
  /** Ports whose servers speak TLS. */
  httpsPorts: number[];
  id: string;
  isolation: string;
  /** The id of the API key that created it; null if unknown. */
  key: string | null;
  /** When it was last active: now, while a hold counts; null if that is not known. */
  lastActiveAt: string | null;
  /** Why the last operation failed. */
  lastError: string | null;
  limits: Limits;
  /** The Host header that its servers receive; null for the requested one. */
  maskRequestHost: string | null;
  metadata: Record<string, string>;
  /**
   * The name that it was given at create, in the space of names of the API key that created it;
   * null for none.
   */
  name: string | null;
  /**
   * In the answer to an import only: the name of the sandbox that was exported, which this one
   * could not keep, because another sandbox of the API key has it.
   */
  nameTaken?: string;
  /** What happens next by itself. */
  next: Next | null;
  /** How many streams to the sandbox are open: commands, terminals, watches, WebSockets. */
  openStreams: number;
  /** When the last pause was committed. */
  pausedAt: string | null;
  /** The operation in flight. */
  phase: "creating" | "snapshotting" | "pausing" | "resuming" | "killing" | null;
  /** Ports, and paths of ports, whose traffic has a policy of its own. */
  ports: Record<string, "wake" | "keep" | "ignore">;
  /** In the answer to a resume: whether it slept, and was woken by this call or one that it joined. */
  resumed?: boolean;
  /** Secrets that it has the use of. */
  secrets: UsedSecret[];
  /** The id of the server that has it, where several have one database; null otherwise. */
  server: string | null;
  settings: Settings;
  /**
   * How a paused sandbox sleeps; only while state is paused. light: its frozen runtime stands by,
   * so that a wake takes milliseconds. deep: it takes no memory, and a wake restores its
   * checkpoint. It changes by itself from light to deep.
   */
  sleep?: "light" | "deep";
  /** The last start or resume. */
  startedAt: string | null;
  /** The committed state; pending until it has first run. */
  state: "pending" | "running" | "paused" | "terminated";
  template: string;
  /** The soft timeout asked for at create; 0 for none. */
  timeoutSeconds: number;
  /** What ended it. */
  tombstone: Tombstone | null;
  /** Names of volumes, by mount path. */
  volumes: Record<string, string>;
}

export interface Secret {
  createdAt: string;
  /** The environment variable with the placeholder. */
  env: string;
  /** Headers that every request to the hosts gets; {} stands for the value. */
  headers: Record<string, string>;
  hosts: string[];
  id: string;
  name: string;
  /** Whether the value may go out over HTTP without TLS. */
  plain: boolean;
  /** Parameters, likewise. */
  query: Record<string, string>;
  /** When the value or a rule was changed last. */
  updatedAt: string;
  /** Of the value: 1, and one more with each new value. */
  version: number;
}

/** Where the value of a secret goes. */
export interface SecretOptions {
  /**
   * The environment variable that has the placeholder in the sandbox (default: the name in
   * capitals, with _ for -). Where a program sends the placeholder to one of the hosts in a header
   * or in the URL, the value takes its place. (a string)
   */
  env?: string | undefined;
  /**
   * Headers that every request to the hosts gets, with {} for the value: {"Authorization": "Bearer
   * {}"}. They replace those of the program. At most 16. (an object with string values)
   */
  headers?: Record<string, string> | undefined;
  /**
   * The hosts that the value is for: api.example.com, or *.example.com for all below it, either
   * with a port (default: 443). At most 32. (an array of strings)
   */
  hosts: string[];
  /**
   * Whether the value may go out over HTTP without TLS (default: false, and such requests to the
   * hosts are refused). (a boolean)
   */
  plain?: boolean | undefined;
  /** Parameters of the query string, likewise: {"key": "{}"}. (an object with string values) */
  query?: Record<string, string> | undefined;
  /**
   * The value: one line, at most 64 KiB. It is stored encrypted, and no answer has it. A secret
   * that exists keeps its value if this is left out. (a string)
   */
  value?: string | undefined;
}

export interface Service {
  /** Services that must be ready before this one starts. */
  after?: string[];
  /**
   * What to run: a program and its arguments, or a line for a shell. It must stay in the
   * foreground.
   */
  command: string[] | string;
  /** Working directory (default: the one that commands have). */
  cwd?: string;
  /** Environment variables, besides those of the sandbox. */
  env?: Record<string, string>;
  /** The longest wait before it is started again (default: 60). */
  maxBackoffSeconds?: number;
  /** Lower-case letters, digits and hyphens; 40 at most. */
  name: string;
  /**
   * On which it serves. The process has it in PORT. Requests to the port wait until the service is
   * ready.
   */
  port?: number;
  /**
   * How it shows that it is ready (default: its port takes connections, or its process has run for
   * a second).
   */
  ready?: ServiceReady;
  /** When it is started again after it has ended (default: on-failure). */
  restart?: "always" | "on-failure" | "never";
  /**
   * Whether requests to it boot a sandbox that was paused with mode filesystem, where its
   * autoResume is on.
   */
  resume?: boolean;
  /** The path at or below which requests to the port are the service's (default: all). */
  route?: string;
  /** As whom it runs (default: as commands). */
  user?: string;
}

export interface ServiceInfo {
  service: Service;
  /** How it is; null while the sandbox sleeps, or if its agent does not answer. */
  status: ServiceStatus | null;
}

export interface ServiceReady {
  /** This line for a shell succeeds. */
  command?: string;
  /** A GET of this path on its port is answered with 2xx or 3xx. */
  http?: string;
  /** How often it is asked (default: 0.2). */
  intervalSeconds?: number;
  /** Its port takes connections; with false, its process has run for a second. */
  port?: boolean;
  /** How long it may take (default: 30). */
  timeoutSeconds?: number;
}

export interface ServiceStatus {
  /** How often it has ended in a row. It is 0 again once it has been ready for 10 seconds. */
  failures: number;
  /** What it ended of last. */
  lastEnd: string | null;
  /** When it is started again. */
  nextAt: string | null;
  pid: number | null;
  readyAt: string | null;
  /** Of the state. */
  since: string | null;
  startedAt: string | null;
  /** How often it was started since the sandbox booted. */
  starts: number;
  /**
   * waiting: for the services that it starts after; starting: its process runs and is not ready
   * yet; ready; backing-off: it has ended and is started again at nextAt; done: it has ended with
   * success and is not started again; failed: it has ended without and is not started again;
   * stopping.
   */
  state: "waiting" | "starting" | "ready" | "backing-off" | "done" | "failed" | "stopping";
  waitsFor: string | null;
}

export interface Settings {
  autoResume: boolean;
  /** 0 for no checkpoints while it runs. */
  checkpointEverySeconds: number;
  filesystemFallback: boolean;
  /** 0 for no limit. */
  idleTimeoutSeconds: number;
  /** 0 for no limit. */
  maxLifetimeSeconds: number;
  onIdle: "kill" | "pause";
  onTimeout: "kill" | "pause";
  pauseMode: "memory" | "filesystem";
  /** 0 for no limit. */
  pausedRetentionSeconds: number;
  refreshOnActivity: boolean | "requests";
  /** 0 for never, null for the server's default. */
  stallAfterSeconds: number | null;
}

export interface Snapshot {
  /** The template's alias. */
  alias: string | null;
  /** What was written for it, or by the pause that it keeps. Other files are shared. */
  bytes: number;
  createdAt: string;
  /**
   * Where it is. local: on the disk of its server alone. replicated: in object storage too, so
   * that another server can go on with it if its own is gone. null without object storage.
   */
  durability: string | null;
  /** When it is deleted, unless it is pinned; null for never. */
  expiresAt: string | null;
  /** How long the running sandbox was frozen for it; null for one that was paused. */
  frozenMs: number | null;
  /** Of the sandbox at that time. */
  generation: number;
  id: string;
  /** Of how many it is one that are kept of the sandbox; 0 if it is not deleted for newer ones. */
  keepLast: number;
  /** The id of the API key that created it; null if unknown. */
  key: string | null;
  limits: Limits;
  /**
   * memory has processes, memory and files; filesystem has files only, and sandboxes boot from
   * them.
   */
  mode: "memory" | "filesystem";
  name: string | null;
  /** It neither expires nor makes room for newer ones. */
  pinned: boolean;
  /** The sandbox that it was taken of, which may have ended. */
  sandbox: string;
  template: string;
  /**
   * It keeps what the sandbox was before it went back to another snapshot, until the next time, or
   * until the sandbox ends.
   */
  undo: boolean;
}

/** What is to change of a snapshot. */
export interface SnapshotChange {
  /** How long the snapshot is kept from now. (seconds, fractions allowed, 0 for never) */
  expiresInSeconds?: number | undefined;
  /**
   * Whether the snapshot is kept whatever expires, and whichever ones are to be kept last
   * (default: false). (a boolean)
   */
  pinned?: boolean | undefined;
}

/** What a snapshot is to be. */
export interface SnapshotOptions {
  /** How long the snapshot is kept (default: for ever). (seconds, fractions allowed, more than 0) */
  expiresInSeconds?: number | undefined;
  /**
   * How many snapshots of the sandbox are kept that the API key has taken with keepLast, this one
   * included; older ones are deleted, but for pinned ones (default: none is deleted, and this one
   * is not deleted for a later one). (an integer from 1)
   */
  keepLast?: number | undefined;
  /**
   * What the snapshot keeps (default: memory, or what the sandbox was paused with). filesystem
   * keeps only the files: the sandbox boots without its processes, and /tmp, /run and /dev/shm,
   * which are in memory, are empty. /var/tmp and everything else is on disk. ("memory" or
   * "filesystem")
   */
  mode?: "memory" | "filesystem" | undefined;
  /**
   * What the snapshot is to be called: lower-case letters, digits, and . _ / : - between them, at
   * most 128, unique among snapshots (default: none). (a string)
   */
  name?: string | undefined;
  /**
   * Whether the snapshot is kept whatever expires, and whichever ones are to be kept last
   * (default: false). (a boolean)
   */
  pinned?: boolean | undefined;
  /**
   * Take the name from the snapshot that has it, which is deleted (default: false: the snapshot is
   * rejected). (a boolean)
   */
  replace?: boolean | undefined;
}

export interface Telemetry {
  /**
   * Until when it is held back, or was; null without an idle timeout, and where its end would be
   * the sandbox's: then it is held back for as long as that lasts.
   */
  deferredUntil: string | null;
  /** Whether the idle timeout is deferred because of that. */
  defersIdle: boolean;
  /** Since when the sandbox has not reported the work inside; null if it does. */
  missingSince: string | null;
}

export interface Template {
  /** How it was built; left out of what was not. */
  build?: Built;
  id: string;
  /** What it was made of; left out of what is no image. */
  image?: Image;
  madeAt: string;
  /** What it is called, in the order of the alphabet. */
  names: string[];
  /** host for the host's own system, image for an OCI image, build for what was built of steps. */
  source: string;
  /** As whom commands run that do not say. */
  user: string;
}

export interface Tombstone {
  /** Who ended it, if somebody did. */
  actor: string | null;
  at: string;
  /** The error code that calls on this sandbox get, such as idle_timeout. */
  code: string;
  detail: string | null;
  reason: string;
  /** What to do. */
  remediation: string;
}

export interface UsedSecret {
  /** The environment variable with the placeholder. */
  env: string;
  /**
   * Whether the API key of the sandbox has no such secret now, so that requests go out with the
   * placeholder.
   */
  missing: boolean;
  name: string;
  /**
   * Whether the sandbox may not use it, and requests go out with the placeholder: it was forked or
   * started from a sandbox of another API key, or imported without secrets=true.
   */
  withheld: boolean;
}

export interface Volume {
  createdAt: string;
  /**
   * What its files took when they were last measured; null if unknown, as for a while after a
   * start of the server, and for a volume with too many files to count.
   */
  diskBytes: number | null;
  /**
   * When that measurement began. A volume whose files have not changed since is not measured
   * again.
   */
  diskMeasuredAt: string | null;
  /** Disk limit; 0 for no limit. */
  diskMiB: number;
  id: string;
  name: string;
}
