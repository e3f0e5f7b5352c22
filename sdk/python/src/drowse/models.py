# Generated from docs/api/openapi.json by sdk/gen. Do not edit.
"""What the API answers, and what it can be asked for.

Durations are in seconds; where one is asked for, a timedelta is one too. A field
that a server of an older version does not send is None, or empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

__all__ = [
    "Ancestor",
    "Built",
    "ChangeOptions",
    "Checkpoint",
    "Clock",
    "CreateOptions",
    "Event",
    "Explanation",
    "Hold",
    "Hook",
    "Hooks",
    "Image",
    "Layer",
    "Limits",
    "LogLine",
    "Next",
    "Operation",
    "Preview",
    "PreviewOptions",
    "Proxy",
    "Refusal",
    "Restore",
    "SandboxInfo",
    "Secret",
    "SecretOptions",
    "Service",
    "ServiceInfo",
    "ServiceReady",
    "ServiceStatus",
    "Settings",
    "Snapshot",
    "SnapshotChange",
    "SnapshotOptions",
    "Telemetry",
    "Template",
    "Tombstone",
    "UsedSecret",
    "Volume",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    at: datetime
    generation: int
    name: str | None = None
    """The name that the snapshot had then."""
    sandbox: str
    snapshot: str | None = None
    """The id of the snapshot, which may have been deleted; null for a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    builds: int
    """How many builds are remembered."""
    key: str
    """The id of the API key that has built it."""
    name: str
    """What the API key that has built it calls it. To other keys the name means nothing."""
    reason: str | None = None
    """Why the newest build failed."""
    status: str
    """Of the newest build: waiting, building, ready or error. What an older build has led to stays
    while a newer one runs or has failed.
    """


class ChangeOptions(TypedDict, total=False):
    """What is to change of a sandbox, running or paused."""

    allow_internet_access: bool
    """Whether the sandbox may reach the internet (default: true); allowOut and denyOut change that
    for single destinations. Private and link-local addresses, this machine and other sandboxes
    can never be reached. Only TCP over IPv4 is supported. DNS works while anything can be
    reached; without internet access, only names in allowOut are resolved. (a boolean)
    """
    allow_out: Sequence[str]
    """Addresses, networks and names (example.com; *.example.com for all names below it) that the
    sandbox may reach. This overrides denyOut and allowInternetAccess. Names require that
    everything else is denied: 0.0.0.0/0 in denyOut, or no internet access. The name of a
    connection is read from its TLS greeting or its first HTTP request, and the server connects
    to an address of that name. A patch replaces all entries. (an array of strings)
    """
    auto_resume: bool
    """Whether requests wake the sandbox when it is paused. Requires onTimeout or onIdle to be
    pause. (a boolean)
    """
    checkpoint_every: float | timedelta
    """How often to write a checkpoint while the sandbox runs, so that a crash loses no more than
    that; at least 10. A checkpoint is a pause followed at once by a resume: requests wait for
    it, open streams are closed, and clocks continue. (seconds, fractions allowed, 0 for no
    limit)
    """
    deny_out: Sequence[str]
    """Addresses and networks that the sandbox may not reach. A patch replaces all entries and
    closes connections that are no longer allowed. (an array of strings)
    """
    egress_proxy: Mapping[str, Any]
    """A SOCKS 5 or HTTP proxy through which connections from the sandbox go out, once allowOut and
    denyOut allow them; the proxy is told addresses, and names are resolved by the server. Its
    password is stored encrypted and in no answer. In a patch, {} is none. (an object with
    address, username and password)
    """
    filesystem_fallback: bool
    """Whether a resume boots the sandbox from its files if the server's runtime cannot read the
    memory image, for example after an upgrade (default: false). The result is the same as after
    a pause with mode filesystem. With false, the sandbox stays paused and the error says why.
    It also lets traffic boot a sandbox whose memory could not be captured
    (memory_not_capturable). (a boolean)
    """
    idle_timeout: float | timedelta
    """How long the sandbox may be idle. onIdle says what happens then. (seconds, fractions
    allowed, 0 for no limit)
    """
    max_lifetime: float | timedelta
    """How long the sandbox may exist, running or paused. Then it is terminated and its data
    deleted. (seconds, fractions allowed, 0 for no limit)
    """
    metadata: Mapping[str, str]
    """Labels by which to find the sandbox. A patch replaces all of them. (an object with string
    values)
    """
    on_idle: Literal["kill", "pause"]
    """What happens when the idle timeout ends: kill or pause (default: the same as onTimeout).
    ("kill" or "pause")
    """
    on_timeout: Literal["kill", "pause"]
    """What happens when the soft timeout ends: kill or pause (default: the server's, kill).
    ("kill" or "pause")
    """
    paused_retention: float | timedelta
    """How long the sandbox may stay paused (default: the server's). Then it is terminated and its
    data deleted. (seconds, fractions allowed, 0 for no limit)
    """
    ports: Mapping[str, Literal["wake", "keep", "ignore"]]
    """What requests do, by port or by port and path: wake the sandbox and count as activity (wake,
    the default), count as activity only (keep), or neither (ignore). A path also matches
    everything below it, and the longest match applies. A request's path is decoded and cleaned
    before the comparison. A patch replaces all rules. (an object with "wake", "keep" or
    "ignore" by port or by port and path: {"8080": "wake", "8080/healthz": "ignore"})
    """
    refresh_on_activity: bool | Literal["requests"]
    """Whether activity restarts the soft timeout; it does not end while work is in progress. With
    true, everything that keeps a sandbox from being idle is activity. With "requests",
    processes are not: only requests, streams (such as that of a command whose client is
    connected) and holds that somebody asked for. (a boolean, or "requests")
    """
    stall_after: float | timedelta
    """How long a hold without progress keeps the sandbox awake (default: the server's). (seconds,
    fractions allowed, 0 for never)
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    bytes: int
    """What the pause wrote."""
    detail: str | None = None
    """What kept the memory from being captured."""
    durability: str | None = None
    """Where it is. local: on the disk of its server alone. replicated: in object storage too, so
    that another server can go on with the sandbox if its own is gone. null without object
    storage, and while another server has the sandbox.
    """
    mode: Literal["memory", "filesystem"]
    reason: str | None = None
    """memory_not_capturable, where a pause that was to keep the memory has kept the files alone;
    null otherwise.
    """
    replication_error: str | None = None
    """Why the last try to copy it to object storage has failed, which is tried again; null for no
    failure.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    action: Literal["kill", "pause", "checkpoint"]
    """What happens when it ends."""
    clock: str
    deadline: datetime | None = None
    limit: float
    """0 for no limit."""
    reason: str | None = None
    """The reason in the tombstone of a sandbox that this clock ended; null if it ends none."""
    status: Literal["off", "running", "held", "stopped"]


class CreateOptions(TypedDict, total=False):
    """What a new sandbox is to be. All of it can be left out."""

    allow_internet_access: bool
    """Whether the sandbox may reach the internet (default: true); allowOut and denyOut change that
    for single destinations. Private and link-local addresses, this machine and other sandboxes
    can never be reached. Only TCP over IPv4 is supported. DNS works while anything can be
    reached; without internet access, only names in allowOut are resolved. (a boolean)
    """
    allow_out: Sequence[str]
    """Addresses, networks and names (example.com; *.example.com for all names below it) that the
    sandbox may reach. This overrides denyOut and allowInternetAccess. Names require that
    everything else is denied: 0.0.0.0/0 in denyOut, or no internet access. The name of a
    connection is read from its TLS greeting or its first HTTP request, and the server connects
    to an address of that name. A patch replaces all entries. (an array of strings)
    """
    allow_public_traffic: bool
    """Whether everybody who can reach the server may use the sandbox's ports, except the agent's
    (default: true). With false, requests need the sandbox's traffic token. (a boolean)
    """
    auto_resume: bool
    """Whether requests wake the sandbox when it is paused. Requires onTimeout or onIdle to be
    pause. (a boolean)
    """
    checkpoint_every: float | timedelta
    """How often to write a checkpoint while the sandbox runs, so that a crash loses no more than
    that; at least 10. A checkpoint is a pause followed at once by a resume: requests wait for
    it, open streams are closed, and clocks continue. (seconds, fractions allowed, 0 for no
    limit)
    """
    cpus: float
    """CPU limit (default: the server's); 0.5 is half of the time of one. (a number above 0, to the
    hundredth)
    """
    deny_out: Sequence[str]
    """Addresses and networks that the sandbox may not reach. A patch replaces all entries and
    closes connections that are no longer allowed. (an array of strings)
    """
    disk_mib: int
    """Disk limit of the sandbox's own files (default: the server's). It also limits the number of
    files to one per 16 KiB. What was removed does not count, and holes in files do not; df
    inside shows what does. A sandbox over its limit is paused, and nothing is lost; after a
    wake it may remove files, and is paused again if it takes much more. If the server's disk
    has no space for that pause, the sandbox ends with OutOfDisk, or goes back to its last
    checkpoint. (an integer from 1)
    """
    egress_proxy: Mapping[str, Any]
    """A SOCKS 5 or HTTP proxy through which connections from the sandbox go out, once allowOut and
    denyOut allow them; the proxy is told addresses, and names are resolved by the server. Its
    password is stored encrypted and in no answer. In a patch, {} is none. (an object with
    address, username and password)
    """
    env: Mapping[str, str]
    """Environment variables of every process in the sandbox. (an object of environment variables)"""
    filesystem_fallback: bool
    """Whether a resume boots the sandbox from its files if the server's runtime cannot read the
    memory image, for example after an upgrade (default: false). The result is the same as after
    a pause with mode filesystem. With false, the sandbox stays paused and the error says why.
    It also lets traffic boot a sandbox whose memory could not be captured
    (memory_not_capturable). (a boolean)
    """
    hooks: Hooks
    """Commands that run inside the sandbox before a pause, after a resume or before a kill. If one
    fails, the operation continues. (an object of commands)
    """
    https_ports: Sequence[int]
    """Ports whose servers speak TLS. Their certificates are not verified. (an array of ports)"""
    idle_timeout: float | timedelta
    """How long the sandbox may be idle. onIdle says what happens then. (seconds, fractions
    allowed, 0 for no limit)
    """
    mask_request_host: str
    """The Host header that servers in the sandbox receive (default: the requested host). (a host,
    with or without a port, in which ${PORT} stands for the port asked for)
    """
    max_lifetime: float | timedelta
    """How long the sandbox may exist, running or paused. Then it is terminated and its data
    deleted. (seconds, fractions allowed, 0 for no limit)
    """
    memory_mib: int
    """Memory limit, including files in /tmp and /dev/shm (default: the server's). Past it, it ends
    with OutOfMemory, or goes back to where it last slept. (an integer from 1)
    """
    metadata: Mapping[str, str]
    """Labels by which to find the sandbox. A patch replaces all of them. (an object with string
    values)
    """
    name: str
    """A name by which to find the sandbox: letters, digits, - and _, 64 at most, beginning with a
    letter or digit. Until the sandbox ends, no other sandbox of the same API key can have the
    name. (a name for a sandbox)
    """
    on_idle: Literal["kill", "pause"]
    """What happens when the idle timeout ends: kill or pause (default: the same as onTimeout).
    ("kill" or "pause")
    """
    on_timeout: Literal["kill", "pause"]
    """What happens when the soft timeout ends: kill or pause (default: the server's, kill).
    ("kill" or "pause")
    """
    pause_mode: Literal["memory", "filesystem"]
    """What automatic pauses keep (default: memory). filesystem keeps only the files: the sandbox
    boots without its processes, and /tmp, /run and /dev/shm, which are in memory, are empty.
    /var/tmp and everything else is on disk. ("memory" or "filesystem")
    """
    paused_retention: float | timedelta
    """How long the sandbox may stay paused (default: the server's). Then it is terminated and its
    data deleted. (seconds, fractions allowed, 0 for no limit)
    """
    pids: int
    """Limit on tasks: a process counts as two, and each further thread as one (default: the
    server's). A sandbox over it ends with OutOfProcesses, or goes back to its last checkpoint.
    (an integer from 1)
    """
    ports: Mapping[str, Literal["wake", "keep", "ignore"]]
    """What requests do, by port or by port and path: wake the sandbox and count as activity (wake,
    the default), count as activity only (keep), or neither (ignore). A path also matches
    everything below it, and the longest match applies. A request's path is decoded and cleaned
    before the comparison. A patch replaces all rules. (an object with "wake", "keep" or
    "ignore" by port or by port and path: {"8080": "wake", "8080/healthz": "ignore"})
    """
    refresh_on_activity: bool | Literal["requests"]
    """Whether activity restarts the soft timeout; it does not end while work is in progress. With
    true, everything that keeps a sandbox from being idle is activity. With "requests",
    processes are not: only requests, streams (such as that of a command whose client is
    connected) and holds that somebody asked for. (a boolean, or "requests")
    """
    secrets: Sequence[str | Mapping[str, Any]] | Mapping[str, str]
    """Secrets of the API key that the sandbox may use without having them. Each is a placeholder
    in an environment variable; in requests to the hosts of the secret, the server puts the
    value in. The connections to these hosts are opened for that, by a certificate authority of
    the sandbox's own. (an array of names of secrets, each alone or with a variable ({"name":
    "github", "env": "GITHUB_TOKEN"}), or an object with names by variable: {"GITHUB_TOKEN":
    "github"})
    """
    secure: bool
    """Whether requests to the agent need the sandbox's access token (default: true). (a boolean)"""
    services: Sequence[Service]
    """Processes that start with the sandbox and are started again when they end; see
    docs/services.md. With resume, requests to a service wake a sandbox that sleeps without its
    memory. (an array of services)
    """
    snapshot: str
    """The snapshot that the sandbox starts from, by its id or the name that the API key has given
    it, instead of a template. The sandbox has the template, the processors, the memory limit
    and the volumes of the snapshot, and its environment variables where env does not replace
    them. (a string)
    """
    stall_after: float | timedelta
    """How long a hold without progress keeps the sandbox awake (default: the server's). (seconds,
    fractions allowed, 0 for never)
    """
    timeout: float | timedelta
    """The soft timeout: how long the sandbox runs after each start or wake. onTimeout says what
    happens then. (seconds, fractions allowed, 0 for no limit)
    """
    volumes: Mapping[str, str]
    """Volumes to mount, by absolute path; mounts cannot be nested. All sandboxes that mount a
    volume can write to it and see each other's changes. Lines that several append to one file
    (O_APPEND) are all kept. File locks work within one sandbox only. (an object with names of
    volumes by path: {"/mnt/data": "data"})
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    actor: str | None = None
    bytes: int | None = None
    """Bytes that the operation wrote."""
    cause: str | None = None
    detail: str | None = None
    duration: float | None = None
    """Duration of the operation that ended."""
    freed: int | None = None
    """Bytes of host memory that were freed; null if unknown."""
    from_: Literal["pending", "creating", "running", "snapshotting", "pausing", "paused", "resuming", "killing", "terminated"]
    generation: int
    id: int
    """Strictly increasing over all sandboxes; use it as a cursor."""
    operation: str | None = None
    """The operation that the event belongs to."""
    sandbox: str
    time: datetime
    to: Literal["pending", "creating", "running", "snapshotting", "pausing", "paused", "resuming", "killing", "terminated"]
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    busy: bool
    """Whether a hold counts, so that the sandbox is not idle."""
    checkpoint: Checkpoint | None = None
    """What a resume restores."""
    clocks: list[Clock]
    """In order of precedence if several end at once."""
    generation: int
    holds: list[Hold]
    """What keeps the sandbox awake now; holds that count come first."""
    last_error: str | None = None
    lineage: list[Ancestor]
    """What the sandbox started from, and what that was of, nearest first, at most 20; empty for
    one that started from a template.
    """
    next: Next
    """What happens next by itself."""
    operation: Operation | None = None
    """The operation in flight."""
    pause_failures: int
    """How many automatic pauses have failed in a row."""
    pause_retry_at: datetime | None = None
    """No automatic pause is tried before this time."""
    phase: Literal["creating", "snapshotting", "pausing", "resuming", "killing"] | None = None
    refusals: list[Refusal]
    """The last connections out that were rejected, newest first. Connections that are denied by
    address are rejected inside the sandbox and are not listed.
    """
    restored: Restore | None = None
    """The snapshot that the sandbox went back to last; null if it never did."""
    sandbox: str
    services: list[ServiceInfo]
    """Its services and how they are."""
    sleep: Literal["light", "deep"] | None = None
    """How it sleeps, as in the sandbox itself: light or deep while state is paused."""
    state: Literal["pending", "running", "paused", "terminated"]
    telemetry: Telemetry
    """Whether the sandbox reports the work inside."""
    tombstone: Tombstone | None = None
    transitions: list[Event]
    """The last entries of its event log, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    counts: bool
    """False if it has stalled, if its port's policy is ignore, and of a process where
    refreshOnActivity is requests and there is no idle timeout.
    """
    detail: str
    """The port, command or reason."""
    id: str
    kind: Literal["request", "stream", "process", "lease"]
    last_progress: datetime | None = None
    since: datetime
    until: datetime | None = None
    """When it stops counting without progress; null for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    command: str
    """Run by a shell, as root."""
    timeout: float | None = None
    """It is killed after this: 5 if not said, 30 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    post_resume: Hook | None = None
    """After each resume. Also spelled post_resume."""
    pre_kill: Hook | None = None
    """Before the end. Also spelled pre_kill."""
    pre_pause: Hook | None = None
    """Before each pause. Also spelled pre_pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    cmd: list[str]
    digest: str
    """What pins it, whatever becomes of its tag."""
    entrypoint: list[str]
    env: list[str]
    exposed_ports: list[str]
    layers: list[Layer]
    """Bottom first. Images share layers."""
    platform: str
    ref: str
    """The reference it was fetched by; empty for an archive that names none."""
    user: str
    """As the image says it; empty for nobody in particular."""
    working_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    bytes: int
    """In its files."""
    digest: str
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    cpus: float
    disk_mib: int
    """Limit of its own files; 0 for no limit."""
    memory_mib: int
    pids: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    at: datetime
    """By the sandbox's clock."""
    seq: int
    """From 1 since the sandbox booted."""
    text: str
    """Without what a terminal would act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    action: str | None = None
    """pause, kill, finish (the operation in flight) or forget (the record); null if nothing is
    due.
    """
    at: datetime | None = None
    clock: str | None = None
    text: str
    """For people."""
    waits_for: str | None = None
    """What else has to happen first: for the idle timeout to begin, the end of a hold (request,
    stream, process, lease) or word from inside (telemetry); for a paused sandbox to wake,
    traffic or a resume, or repair where its checkpoint is found damaged; null for nothing.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    actor: str | None = None
    attempt: int
    cancelable: bool
    """Whether a request may cancel this pause."""
    cause: str
    deadline: datetime
    """When the operation is given up, and the sandbox goes to the safer of its two states."""
    id: str
    mode: Literal["memory", "filesystem"] | None = None
    """Of a pause."""
    phase: Literal["creating", "snapshotting", "pausing", "resuming", "killing"]
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    actor: str | None = None
    """Who created it."""
    created_at: datetime
    expires_at: datetime
    id: str
    port: int
    url: str | None = None
    """The URL; only in the answer that creates it."""


class PreviewOptions(TypedDict, total=False):
    """What a preview link is to be."""

    expires_in: float | timedelta
    """How long the link is valid, at most 30 days (default: one hour). The end is rounded up to a
    whole second. (seconds, fractions allowed, more than 0)
    """
    path: str
    """The path that the link opens, with a query if needed (default: /). It is no restriction: the
    link gives access to the whole port. (a path that begins with a slash)
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    address: str
    """host:port or socks5://host:port for SOCKS 5, http://host:port for CONNECT."""
    username: str | None = None
    """Whom to log in as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    at: datetime
    reason: str
    """closed: out of reach of every sandbox; denied: by its rules; name: only names are allowed,
    and this is none of them; no address: the name has none; no answer: the other side did not
    take it; too many: it has too many connections. Of connections through its egress proxy:
    proxy unreachable: the proxy has no address that can be reached, or did not take the
    connection; proxy login: it did not accept the credentials; proxy refused: it did not
    connect on; proxy protocol: it broke off, or gave no proper answer in time. Of connections
    to the hosts of its secrets: not TLS: it asked without; pinned: the program did not accept
    the certificate of the sandbox's own authority; certificate: that of the host could not be
    verified; other host: the request was for another host than the connection; protocol: it was
    no request of HTTP/1.1 that can be passed on; not logged: the use could not be logged;
    unreadable: the value could not be read.
    """
    target: str
    """An address and port, with the name that was asked for if one was; or a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    at: datetime
    snapshot: str
    """Its id; it may have been deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    alias: str | None = None
    """The template's alias."""
    allow_internet_access: bool | None = None
    """Whether the sandbox may reach the internet, as requested; null if not given, which allows
    it.
    """
    allow_out: list[str]
    """Destinations that are always allowed."""
    allow_public_traffic: bool
    """Whether its ports are open without the traffic token."""
    awake_because: str | None = None
    """The hold that keeps it awake, the oldest of several, as in its lifecycle; null for none."""
    checkpoint: Checkpoint | None = None
    """What a resume restores."""
    created_at: datetime
    deny_out: list[str]
    """Destinations that are denied."""
    egress_proxy: Proxy | None = None
    """The proxy through which its connections go out, without the password; null for none."""
    end_at: datetime | None = None
    """When the soft timeout ends; null for never, and while it does not run."""
    from_server: list[str]
    """Settings that were not given at create, so that they are the server's defaults of that time."""
    generation: int
    """Of the runtime that serves or last served; 0 before the first."""
    hooks: Hooks
    https_ports: list[int]
    """Ports whose servers speak TLS."""
    id: str
    isolation: str
    key: str | None = None
    """The id of the API key that created it; null if unknown."""
    last_active_at: datetime | None = None
    """When it was last active: now, while a hold counts; null if that is not known."""
    last_error: str | None = None
    """Why the last operation failed."""
    limits: Limits
    mask_request_host: str | None = None
    """The Host header that its servers receive; null for the requested one."""
    metadata: dict[str, str]
    name: str | None = None
    """The name that it was given at create, in the space of names of the API key that created it;
    null for none.
    """
    name_taken: str | None = None
    """In the answer to an import only: the name of the sandbox that was exported, which this one
    could not keep, because another sandbox of the API key has it.
    """
    next: Next | None = None
    """What happens next by itself."""
    open_streams: int
    """How many streams to the sandbox are open: commands, terminals, watches, WebSockets."""
    paused_at: datetime | None = None
    """When the last pause was committed."""
    phase: Literal["creating", "snapshotting", "pausing", "resuming", "killing"] | None = None
    """The operation in flight."""
    ports: dict[str, Literal["wake", "keep", "ignore"]]
    """Ports, and paths of ports, whose traffic has a policy of its own."""
    resumed: bool | None = None
    """In the answer to a resume: whether it slept, and was woken by this call or one that it
    joined.
    """
    secrets: list[UsedSecret]
    """Secrets that it has the use of."""
    server: str | None = None
    """The id of the server that has it, where several have one database; null otherwise."""
    settings: Settings
    sleep: Literal["light", "deep"] | None = None
    """How a paused sandbox sleeps; only while state is paused. light: its frozen runtime stands
    by, so that a wake takes milliseconds. deep: it takes no memory, and a wake restores its
    checkpoint. It changes by itself from light to deep.
    """
    started_at: datetime | None = None
    """The last start or resume."""
    state: Literal["pending", "running", "paused", "terminated"]
    """The committed state; pending until it has first run."""
    template: str
    timeout: float
    """The soft timeout asked for at create; 0 for none."""
    tombstone: Tombstone | None = None
    """What ended it."""
    volumes: dict[str, str]
    """Names of volumes, by mount path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    created_at: datetime
    env: str
    """The environment variable with the placeholder."""
    headers: dict[str, str]
    """Headers that every request to the hosts gets; {} stands for the value."""
    hosts: list[str]
    id: str
    name: str
    plain: bool
    """Whether the value may go out over HTTP without TLS."""
    query: dict[str, str]
    """Parameters, likewise."""
    updated_at: datetime
    """When the value or a rule was changed last."""
    version: int
    """Of the value: 1, and one more with each new value."""


class SecretOptions(TypedDict, total=False):
    """Where the value of a secret goes."""

    env: str
    """The environment variable that has the placeholder in the sandbox (default: the name in
    capitals, with _ for -). Where a program sends the placeholder to one of the hosts in a
    header or in the URL, the value takes its place. (a string)
    """
    headers: Mapping[str, str]
    """Headers that every request to the hosts gets, with {} for the value: {"Authorization":
    "Bearer {}"}. They replace those of the program. At most 16. (an object with string values)
    """
    hosts: Sequence[str]
    """The hosts that the value is for: api.example.com, or *.example.com for all below it, either
    with a port (default: 443). At most 32. (an array of strings)
    """
    plain: bool
    """Whether the value may go out over HTTP without TLS (default: false, and such requests to the
    hosts are refused). (a boolean)
    """
    query: Mapping[str, str]
    """Parameters of the query string, likewise: {"key": "{}"}. (an object with string values)"""
    value: str
    """The value: one line, at most 64 KiB. It is stored encrypted, and no answer has it. A secret
    that exists keeps its value if this is left out. (a string)
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    after: list[str] | None = None
    """Services that must be ready before this one starts."""
    command: list[str] | str
    """What to run: a program and its arguments, or a line for a shell. It must stay in the
    foreground.
    """
    cwd: str | None = None
    """Working directory (default: the one that commands have)."""
    env: dict[str, str] | None = None
    """Environment variables, besides those of the sandbox."""
    max_backoff: float | None = None
    """The longest wait before it is started again (default: 60)."""
    name: str
    """Lower-case letters, digits and hyphens; 40 at most."""
    port: int | None = None
    """On which it serves. The process has it in PORT. Requests to the port wait until the service
    is ready.
    """
    ready: ServiceReady | None = None
    """How it shows that it is ready (default: its port takes connections, or its process has run
    for a second).
    """
    restart: Literal["always", "on-failure", "never"] | None = None
    """When it is started again after it has ended (default: on-failure)."""
    resume: bool | None = None
    """Whether requests to it boot a sandbox that was paused with mode filesystem, where its
    autoResume is on.
    """
    route: str | None = None
    """The path at or below which requests to the port are the service's (default: all)."""
    user: str | None = None
    """As whom it runs (default: as commands)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    service: Service
    status: ServiceStatus | None = None
    """How it is; null while the sandbox sleeps, or if its agent does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReady:
    command: str | None = None
    """This line for a shell succeeds."""
    http: str | None = None
    """A GET of this path on its port is answered with 2xx or 3xx."""
    interval: float | None = None
    """How often it is asked (default: 0.2)."""
    port: bool | None = None
    """Its port takes connections; with false, its process has run for a second."""
    timeout: float | None = None
    """How long it may take (default: 30)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    failures: int
    """How often it has ended in a row. It is 0 again once it has been ready for 10 seconds."""
    last_end: str | None = None
    """What it ended of last."""
    next_at: datetime | None = None
    """When it is started again."""
    pid: int | None = None
    ready_at: datetime | None = None
    since: datetime | None = None
    """Of the state."""
    started_at: datetime | None = None
    starts: int
    """How often it was started since the sandbox booted."""
    state: Literal["waiting", "starting", "ready", "backing-off", "done", "failed", "stopping"]
    """waiting: for the services that it starts after; starting: its process runs and is not ready
    yet; ready; backing-off: it has ended and is started again at nextAt; done: it has ended
    with success and is not started again; failed: it has ended without and is not started
    again; stopping.
    """
    waits_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    auto_resume: bool
    checkpoint_every: float
    """0 for no checkpoints while it runs."""
    filesystem_fallback: bool
    idle_timeout: float
    """0 for no limit."""
    max_lifetime: float
    """0 for no limit."""
    on_idle: Literal["kill", "pause"]
    on_timeout: Literal["kill", "pause"]
    pause_mode: Literal["memory", "filesystem"]
    paused_retention: float
    """0 for no limit."""
    refresh_on_activity: bool | Literal["requests"]
    stall_after: float | None = None
    """0 for never, null for the server's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    alias: str | None = None
    """The template's alias."""
    bytes: int
    """What was written for it, or by the pause that it keeps. Other files are shared."""
    created_at: datetime
    durability: str | None = None
    """Where it is. local: on the disk of its server alone. replicated: in object storage too, so
    that another server can go on with it if its own is gone. null without object storage.
    """
    expires_at: datetime | None = None
    """When it is deleted, unless it is pinned; null for never."""
    frozen_ms: float | None = None
    """How long the running sandbox was frozen for it; null for one that was paused."""
    generation: int
    """Of the sandbox at that time."""
    id: str
    keep_last: int
    """Of how many it is one that are kept of the sandbox; 0 if it is not deleted for newer ones."""
    key: str | None = None
    """The id of the API key that created it; null if unknown."""
    limits: Limits
    mode: Literal["memory", "filesystem"]
    """memory has processes, memory and files; filesystem has files only, and sandboxes boot from
    them.
    """
    name: str | None = None
    pinned: bool
    """It neither expires nor makes room for newer ones."""
    sandbox: str
    """The sandbox that it was taken of, which may have ended."""
    template: str
    undo: bool
    """It keeps what the sandbox was before it went back to another snapshot, until the next time,
    or until the sandbox ends.
    """


class SnapshotChange(TypedDict, total=False):
    """What is to change of a snapshot."""

    expires_in: float | timedelta
    """How long the snapshot is kept from now. (seconds, fractions allowed, 0 for never)"""
    pinned: bool
    """Whether the snapshot is kept whatever expires, and whichever ones are to be kept last
    (default: false). (a boolean)
    """


class SnapshotOptions(TypedDict, total=False):
    """What a snapshot is to be."""

    expires_in: float | timedelta
    """How long the snapshot is kept (default: for ever). (seconds, fractions allowed, more than 0)"""
    keep_last: int
    """How many snapshots of the sandbox are kept that the API key has taken with keepLast, this
    one included; older ones are deleted, but for pinned ones (default: none is deleted, and
    this one is not deleted for a later one). (an integer from 1)
    """
    mode: Literal["memory", "filesystem"]
    """What the snapshot keeps (default: memory, or what the sandbox was paused with). filesystem
    keeps only the files: the sandbox boots without its processes, and /tmp, /run and /dev/shm,
    which are in memory, are empty. /var/tmp and everything else is on disk. ("memory" or
    "filesystem")
    """
    pinned: bool
    """Whether the snapshot is kept whatever expires, and whichever ones are to be kept last
    (default: false). (a boolean)
    """
    replace: bool
    """Take the name from the snapshot that has it, which is deleted (default: false: the snapshot
    is rejected). (a boolean)
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    deferred_until: datetime | None = None
    """Until when it is held back, or was; null without an idle timeout, and where its end would be
    the sandbox's: then it is held back for as long as that lasts.
    """
    defers_idle: bool
    """Whether the idle timeout is deferred because of that."""
    missing_since: datetime | None = None
    """Since when the sandbox has not reported the work inside; null if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    build: Built | None = None
    """How it was built; left out of what was not."""
    id: str
    image: Image | None = None
    """What it was made of; left out of what is no image."""
    made_at: datetime
    names: list[str]
    """What it is called, in the order of the alphabet."""
    source: str
    """host for the host's own system, image for an OCI image, build for what was built of steps."""
    user: str
    """As whom commands run that do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    actor: str | None = None
    """Who ended it, if somebody did."""
    at: datetime
    code: str
    """The error code that calls on this sandbox get, such as idle_timeout."""
    detail: str | None = None
    reason: str
    remediation: str
    """What to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedSecret:
    env: str
    """The environment variable with the placeholder."""
    missing: bool
    """Whether the API key of the sandbox has no such secret now, so that requests go out with the
    placeholder.
    """
    name: str
    withheld: bool
    """Whether the sandbox may not use it, and requests go out with the placeholder: it was forked
    or started from a sandbox of another API key, or imported without secrets=true.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    created_at: datetime
    disk_bytes: int | None = None
    """What its files took when they were last measured; null if unknown, as for a while after a
    start of the server, and for a volume with too many files to count.
    """
    disk_measured_at: datetime | None = None
    """When that measurement began. A volume whose files have not changed since is not measured
    again.
    """
    disk_mib: int
    """Disk limit; 0 for no limit."""
    id: str
    name: str


#: The names of fields on the wire, where they are others.
WIRE_NAMES = {
    "allow_internet_access": "allowInternetAccess",
    "allow_out": "allowOut",
    "allow_public_traffic": "allowPublicTraffic",
    "auto_resume": "autoResume",
    "awake_because": "awakeBecause",
    "checkpoint_every": "checkpointEverySeconds",
    "created_at": "createdAt",
    "deferred_until": "deferredUntil",
    "defers_idle": "defersIdle",
    "deny_out": "denyOut",
    "disk_bytes": "diskBytes",
    "disk_measured_at": "diskMeasuredAt",
    "disk_mib": "diskMiB",
    "duration": "durationSeconds",
    "egress_proxy": "egressProxy",
    "end_at": "endAt",
    "expires_at": "expiresAt",
    "expires_in": "expiresInSeconds",
    "exposed_ports": "exposedPorts",
    "filesystem_fallback": "filesystemFallback",
    "from_": "from",
    "from_server": "fromServer",
    "frozen_ms": "frozenMs",
    "https_ports": "httpsPorts",
    "idle_timeout": "idleTimeoutSeconds",
    "interval": "intervalSeconds",
    "keep_last": "keepLast",
    "last_active_at": "lastActiveAt",
    "last_end": "lastEnd",
    "last_error": "lastError",
    "last_progress": "lastProgress",
    "limit": "limitSeconds",
    "made_at": "madeAt",
    "mask_request_host": "maskRequestHost",
    "max_backoff": "maxBackoffSeconds",
    "max_lifetime": "maxLifetimeSeconds",
    "memory_mib": "memoryMiB",
    "missing_since": "missingSince",
    "name_taken": "nameTaken",
    "next_at": "nextAt",
    "on_idle": "onIdle",
    "on_timeout": "onTimeout",
    "open_streams": "openStreams",
    "pause_failures": "pauseFailures",
    "pause_mode": "pauseMode",
    "pause_retry_at": "pauseRetryAt",
    "paused_at": "pausedAt",
    "paused_retention": "pausedRetentionSeconds",
    "post_resume": "postResume",
    "pre_kill": "preKill",
    "pre_pause": "prePause",
    "ready_at": "readyAt",
    "refresh_on_activity": "refreshOnActivity",
    "replication_error": "replicationError",
    "stall_after": "stallAfterSeconds",
    "started_at": "startedAt",
    "timeout": "timeoutSeconds",
    "updated_at": "updatedAt",
    "waits_for": "waitsFor",
    "working_dir": "workingDir",
}
