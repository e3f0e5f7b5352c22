package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/serve/settings"
	"github.com/drowse-dev/drowse/internal/version"
)

func (a *app) serveCommand() *cobra.Command {
	var o settings.Server
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "run the server",
		Long: `Run the server until it gets SIGINT or SIGTERM. Running sandboxes keep running
without it, or are paused first with --on-shutdown=pause. A second signal stops
the server at once.

Every flag can be set in the environment: --log-level is DROWSE_LOG_LEVEL. The
first start writes an API key to the file api-key in the state directory.`,
		Args: exactArgs(),
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:3000", "`address` for API and sandbox traffic")
	f.StringVar(&o.SSHListen, "ssh-listen", "", "`address` for SSH clients, such as :2222, which log in with the keys of drowse ssh-keys: ssh -p 2222 ID@host (default: none)")
	spanVar(f, &o.SSHKeepalive, "ssh-keepalive", 40*time.Second, "how often an SSH client is asked whether it is there; one that does not answer for so long is disconnected")
	f.StringVar(&o.Domain, "domain", "", "wildcard `domain` of sandboxes, such as sandboxes.example.com, with the port unless it is the default; URLs of sandboxes are then host names below it")
	f.StringVar(&o.Store, "store", "", "`URL` of a PostgreSQL database that keeps the records, such as postgres://drowse@db.example.com/drowse (default: a file of SQLite in the state directory). At the first start with it, what is in that file is copied. Others on this machine can read a command line: give a password by PGPASSFILE, or set DROWSE_STORE")
	f.StringVar(&o.PeerListen, "peer-listen", "", "`address` of this machine, such as 10.0.0.2:3443, for the other servers of the database of --store: requests that come to one of them for a sandbox here are passed on to it, with mutual TLS (default: none)")
	f.StringVar(&o.Blobs, "blobs", "", "`URL` of object storage for all servers of the database of --store, such as s3://bucket/prefix, with endpoint and credentials in the environment as for AWS (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY); or a directory that all of them have. Checkpoints of sandboxes that sleep are copied there, and another server can wake them when this one is gone (default: none)")
	f.StringVar(&o.Durability, "durability", settings.Local, "what a pause that is asked for promises: local answers when the checkpoint is on the disk of this server, and copies it to --blobs afterwards; replicated answers when it is there too")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json")
	f.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	most, timeout, refresh := limitFlag{Duration: client.Never}, limitFlag{}, lifecycle.NoRefresh
	f.Var(&most, "max-timeout", "longest timeout a sandbox may have; longer ones, and none, are rejected; none for no limit")
	f.Var(&timeout, "default-timeout", "timeout of sandboxes that E2B clients create or wake without giving one, or none (default: as at E2B, 15s for version 1 of a call and 5m for version 2)")
	f.Lookup("default-timeout").DefValue = ""
	f.StringVar(&o.DefaultOnTimeout, "default-on-timeout", "kill", "default of --on-timeout: kill or pause")
	clockVar(f, &o.DefaultIdleTimeout, "default-idle-timeout", 0, "default of --idle-timeout")
	f.StringVar(&o.DefaultOnIdle, "default-on-idle", "", "default of --on-idle: kill or pause (default: the sandbox's --on-timeout)")
	f.BoolVar(&o.DefaultAutoResume, "default-auto-resume", false, "default of --auto-resume, for sandboxes that pause by themselves")
	refreshVar(f, &refresh, "default-refresh-on-activity", "default of --refresh-on-activity, =requests too")
	f.BoolVar(&o.DefaultFallback, "default-filesystem-fallback", false, "default of --filesystem-fallback")
	clockVar(f, &o.DefaultMaxLifetime, "default-max-lifetime", 0, "default of --max-lifetime")
	clockVar(f, &o.DefaultCheckpointEvery, "default-checkpoint-every", 0, "default of --checkpoint-every")
	clockVar(f, &o.DefaultRetention, "default-retention", 0, "default of --paused-retention")
	clockVar(f, &o.StallAfter, "stall-after", 30*time.Minute, "how long work without progress keeps a sandbox awake, unless it has a --stall-after of its own; none for no limit")
	spanVar(f, &o.WakeTimeout, "wake-timeout", 30*time.Second, "how long a request waits for a sandbox to wake")
	f.IntVar(&o.WakeQueue, "wake-queue", 4096, "how many requests may wait for one sandbox to wake, and for its services to be ready")
	spanVar(f, &o.Drain, "drain", 5*time.Second, "how long an automatic pause waits for requests in flight; streams are not waited for, and an explicit pause waits 1s; 0 not to wait")
	f.IntVar(&o.MaxRunning, "max-running", 0, "how many sandboxes may run at once; 0 for no limit")
	mibVar(f, &o.VolumeDiskMiB, "volume-disk", 10240, "disk limit, in MiB or as a `size` such as 2g, of volumes that have none of their own; 0 for no limit")
	mibVar(f, &o.DiskReadMiB, "disk-read-rate", 0, "how much per second, in MiB or as a `size` such as 1g, each sandbox may read from the disk of the state directory; 0 for no limit")
	mibVar(f, &o.DiskWriteMiB, "disk-write-rate", 0, "how much per second, in MiB or as a `size` such as 1g, each sandbox may write to that disk; 0 for no limit. With cgroup v1, writes that the guest does not wait for are not limited")
	f.BoolVar(&o.Trial, "trial", true, "start a trial sandbox before the server reports ready; with false, a host that cannot run sandboxes shows at the first create")
	f.BoolVar(&o.ShareOpt, "share-opt", false, "share the host's /opt with sandboxes, as far as every user of the host may read it")
	mibVar(f, &o.EarlyWakeMiB, "early-wake", 64, "let a sandbox whose memory image has this `size` (in MiB, or such as 1g) or more run before all of it is read; each part is verified before the sandbox sees it; 0 for none")
	mibVar(f, &o.DeltaPausesMiB, "delta-pauses", 128, "have a pause of a sandbox that uses this `size` of memory (in MiB, or such as 1g) or more write only the pages that have changed since the last wake; the image shares the others with the one before; 0 for none")
	f.IntVar(&o.WarmRuntimes, "warm-runtimes", 1, "how many empty runtimes to keep ready, to make the next start or wake faster; 0 for none")
	spanVar(f, &o.LightSleep, "light-sleep", 5*time.Minute, "how long the frozen runtime of a paused sandbox may stay in memory, so that a wake only thaws it; 0 for none")
	mibVar(f, &o.LightSleepMiB, "light-sleep-memory", 0, "how much memory, in MiB or as a `size` such as 2g, those runtimes may hold; an API key has half of it; 0 for a quarter of the memory that is available")
	mibVar(f, &o.LightFloorMiB, "light-sleep-floor", 0, "let those runtimes go when less memory than this `size` (in MiB, or such as 2g) is available; 0 for a tenth of the machine's")
	f.Var((*addrPort)(&o.DNS), "dns", "`address` and port of the DNS server for sandboxes, such as 192.0.2.1:53 (default: this machine's resolver)")
	f.StringVar(&o.EgressCA, "egress-ca", "", "PEM `file` with certificate authorities to trust, besides this machine's, for the hosts that secrets go to")
	f.StringVar(&o.OTLPEndpoint, "otlp-endpoint", "", "send traces of creates, wakes, pauses and snapshots to the OpenTelemetry collector at this `URL`, such as http://localhost:4318 (OTLP over HTTP; default: none are sent)")
	f.StringVar(&o.OTLPHeaders, "otlp-headers", "", "`headers` to send along: NAME=VALUE with commas between them, values percent-encoded. Others on this machine can read a command line: better set DROWSE_OTLP_HEADERS")
	f.StringVar(&o.OnShutdown, "on-shutdown", "keep", "what to do with running sandboxes when the server stops: keep (they run on) or pause")
	spanVar(f, &o.ShutdownTimeout, "shutdown-timeout", time.Minute, "time limit for pausing sandboxes at shutdown, and for copying them to --blobs; those not paused by then run on")
	f.StringVar(&o.TLSCert, "tls-cert", "", "PEM `file` with the certificate chain for *.domain; read again when it changes")
	f.StringVar(&o.TLSKey, "tls-key", "", "PEM `file` with the certificate's key")
	f.StringVar(&o.ACMEEmail, "acme-email", "", "get the certificate for --domain by ACME, with an account of this `address`, and renew it; this agrees to the terms of the certificate authority")
	f.StringVar(&o.ACMEDNSHook, "acme-dns-hook", "", "`program` that sets DNS records: it is run with set NAME VALUE, and later with remove NAME VALUE, for a TXT record; the certificate is then for *.domain too, without it for the domain, api.domain and sandbox.domain alone")
	f.StringVar(&o.ACMEDirectory, "acme-directory", letsEncrypt, "`URL` of the certificate authority's directory")
	f.StringVar(&o.ACMECA, "acme-ca", "", "PEM `file` with certificate authorities to trust for that URL (default: this machine's)")
	f.IntVar(&o.MaxKeyRate, "max-key-rate", 0, "how many calls of the API one API key without its own limit may make per second; after a pause, ten times as many at once; 0 for no limit")
	f.IntVar(&o.MaxClientConnections, "max-client-connections", 4096, "how many connections one client address may have, and how many requests over HTTP/2 on all of them; 0 for no limit")
	f.IntVar(&o.MaxSandboxRequests, "max-sandbox-requests", 4096, "how many requests and streams one sandbox may have open; 0 for no limit")
	clockVar(f, &o.IdleStream, "idle-stream", 0, "close a request or stream that transfers nothing for this long; none for no limit")
	f.BoolVar(&o.AccessLog, "access-log", false, "log each request to a sandbox, without its query string")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.fromEnv(cmd.LocalFlags()); err != nil {
			return err
		}
		o.MaxTimeout, o.DefaultTimeout, o.DefaultRefresh = max(most.Duration, 0), timeout.Duration, string(refresh)
		o.StateDir, o.APIKey = a.stateDirectory(), a.key
		if o.APIKey == "" {
			o.APIKey = a.Getenv("DROWSE_API_KEY")
		}
		if err := checkServe(o); err != nil {
			return err
		}
		if a.Serve == nil {
			return errors.New("this build has no server")
		}
		return a.Serve(cmd.Context(), o)
	}
	return cmd
}

// fromEnv sets the flags that the command line left alone.
func (a *app) fromEnv(flags *pflag.FlagSet) error {
	var bad error
	flags.VisitAll(func(f *pflag.Flag) {
		name := "DROWSE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		text := a.Getenv(name)
		if text == "" || f.Changed || f.Name == "help" {
			return
		}
		if err := f.Value.Set(text); err != nil && bad == nil {
			bad = usagef("%s=%s: %w", name, text, err)
		}
	})
	return bad
}

// mostDiskRate is more than any disk can do, in MiB per second.
const mostDiskRate = 1 << 20

var domainForm = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$`)

// letsEncrypt is the certificate authority that is asked unless another one is named.
const letsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"

// checkACME says what is wrong with how a certificate is to be got.
func checkACME(o settings.Server) error {
	host, _, hasPort := strings.Cut(o.Domain, ":")
	directory, err := url.Parse(o.ACMEDirectory)
	switch {
	case o.ACMEEmail == "" && (o.ACMEDNSHook != "" || o.ACMECA != "" || o.ACMEDirectory != letsEncrypt):
		return usagef("--acme-dns-hook, --acme-directory and --acme-ca: give --acme-email too, or none of them")
	case o.ACMEEmail == "":
		return nil
	case !emailForm.MatchString(o.ACMEEmail):
		return usagef("--acme-email %s: want an address such as you@example.com", o.ACMEEmail)
	case o.TLSCert != "":
		return usagef("--acme-email and --tls-cert: give one; with --acme-email the server gets its certificate itself")
	case o.Domain == "":
		return usagef("--acme-email: give --domain too, which the certificate is for")
	case err != nil || directory.Scheme != "https" || directory.Host == "":
		return usagef("--acme-directory %s: want a URL such as %s", o.ACMEDirectory, letsEncrypt)
	case o.ACMEDirectory == letsEncrypt && !isPublic(host):
		return usagef("--acme-email: Let's Encrypt gives no certificate for %s; give a --domain that others can resolve, or an authority of your own with --acme-directory", host)
	case hasPort && o.ACMEDNSHook == "":
		return usagef("--acme-email with --domain %s: without --acme-dns-hook the authority asks at port 443; give --domain without a port, or --acme-dns-hook", o.Domain)
	}
	return nil
}

var emailForm = lazyregexp.New(`^[^\s@<>?,]+@[^\s@<>?,]+$`)

// isPublic says whether a domain may be one of the public DNS.
func isPublic(host string) bool {
	_, err := netip.ParseAddr(host)
	top := host[strings.LastIndex(host, ".")+1:]
	return err != nil && top != host && top != "localhost" && top != "local" && top != "internal" && top != "test"
}

// isReachable says whether an address to listen on is one that others can be told.
func isReachable(address string) bool {
	host, port, err := net.SplitHostPort(address)
	ip, notIP := netip.ParseAddr(host)
	return err == nil && host != "" && port != "" && (notIP != nil || !ip.IsUnspecified())
}

func checkServe(o settings.Server) error {
	switch {
	case o.Domain != "" && !domainForm.MatchString(o.Domain):
		return usagef("--domain %s: want a domain such as sandboxes.example.com or localhost:3000, without a scheme or *", o.Domain)
	case o.Store != "" && !strings.HasPrefix(o.Store, "postgres://") && !strings.HasPrefix(o.Store, "postgresql://"):
		return usagef("--store: want a URL such as postgres://drowse@db.example.com/drowse") // what was given may have a password
	case o.PeerListen != "" && o.Store == "":
		return usagef("--peer-listen is for servers that have one database: give --store too")
	case o.PeerListen != "" && !isReachable(o.PeerListen):
		return usagef("--peer-listen %s: want the address at which the other servers reach this machine, such as 10.0.0.2:3443", o.PeerListen)
	case o.Blobs != "" && o.PeerListen == "":
		return usagef("--blobs is for servers that have one database: give --store and --peer-listen too")
	case o.Durability != settings.Local && o.Durability != settings.Replicated:
		return usagef("--durability %s: want local or replicated", o.Durability)
	case o.Durability == settings.Replicated && o.Blobs == "":
		return usagef("--durability replicated: give --blobs too, for the copies")
	case o.LogFormat != "text" && o.LogFormat != "json":
		return usagef("--log-format %s: want text or json", o.LogFormat)
	case !strings.Contains(" debug info warn error ", " "+o.LogLevel+" "):
		return usagef("--log-level %s: want debug, info, warn or error", o.LogLevel)
	case o.MaxTimeout > 0 && (o.DefaultTimeout < 0 || o.DefaultTimeout > o.MaxTimeout):
		return usagef("--default-timeout: want at most --max-timeout (%s)", o.MaxTimeout)
	case o.DefaultOnIdle != "" && o.DefaultOnIdle != "kill" && o.DefaultOnIdle != "pause":
		return usagef("--default-on-idle %s: want kill or pause", o.DefaultOnIdle)
	case o.DefaultCheckpointEvery != 0 && o.DefaultCheckpointEvery < lifecycle.MinCheckpointEvery:
		return usagef("--default-checkpoint-every %s: want %s or more, or none", o.DefaultCheckpointEvery, lifecycle.MinCheckpointEvery)
	case o.DefaultOnTimeout != "kill" && o.DefaultOnTimeout != "pause":
		return usagef("--default-on-timeout %s: want kill or pause", o.DefaultOnTimeout)
	case o.OnShutdown != "keep" && o.OnShutdown != "pause":
		return usagef("--on-shutdown %s: want keep or pause", o.OnShutdown)
	case o.ShutdownTimeout <= 0:
		return usagef("--shutdown-timeout %s: want more than 0", o.ShutdownTimeout)
	case o.SSHKeepalive <= 0:
		return usagef("--ssh-keepalive %s: want more than 0", o.SSHKeepalive)
	case o.WakeTimeout <= 0:
		return usagef("--wake-timeout %s: want more than 0", o.WakeTimeout)
	case o.WakeQueue <= 0:
		return usagef("--wake-queue %d: want more than 0", o.WakeQueue)
	case o.Drain < 0 || o.Drain > time.Minute:
		return usagef("--drain %s: want 0 to 1m", o.Drain)
	case o.LightSleep < 0 || o.LightSleepMiB < 0 || o.LightFloorMiB < 0:
		return usagef("--light-sleep, --light-sleep-memory and --light-sleep-floor: want 0 or more")
	case (o.TLSCert == "") != (o.TLSKey == ""):
		return usagef("--tls-cert and --tls-key: give both or neither")
	case o.MaxKeyRate < 0 || o.MaxClientConnections < 0 || o.MaxSandboxRequests < 0:
		return usagef("--max-key-rate, --max-client-connections and --max-sandbox-requests: want 0 or more")
	case o.DiskReadMiB < 0 || o.DiskWriteMiB < 0 || max(o.DiskReadMiB, o.DiskWriteMiB) > mostDiskRate:
		return usagef("--disk-read-rate and --disk-write-rate: want 1 to %d MiB per second, or 0 for no limit", mostDiskRate)
	case o.MaxRunning < 0 || o.WarmRuntimes < 0 || o.VolumeDiskMiB < 0 || o.EarlyWakeMiB < 0 || o.DeltaPausesMiB < 0:
		return usagef("--max-running, --volume-disk, --early-wake, --delta-pauses and --warm-runtimes: want 0 or more")
	}
	return checkACME(o)
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "check whether this machine can run a server, and explain what is missing",
		Args:  exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Doctor == nil {
				return errors.New("this build has no server")
			}
			ok, err := a.Doctor(cmd.Context(), folded(a), a.output == "json", a.stateDirectory())
			if err == nil && !ok {
				return &exitError{code: exitFailure}
			}
			return err
		},
	}
}

const gvisorModule = "gvisor.dev/gvisor"

// versions is the JSON of version.
type versions struct {
	Drowse   string `json:"drowse"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	GVisor   string `json:"gvisor"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version of drowse and of what is linked into it",
		Args:  exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			v := readVersions()
			return a.print(v, func(w io.Writer) {
				table(w, [][]string{{"drowse", v.Drowse}, {"commit", cmp.Or(v.Commit, "unknown")}, {"go", v.Go}, {"gvisor", v.GVisor}, {"platform", v.Platform}})
			})
		},
	}
}

func readVersions() versions {
	v := versions{
		Drowse:   version.String(),
		Commit:   version.Commit(),
		Go:       runtime.Version(),
		GVisor:   "not linked in",
		Platform: fmt.Sprintf("%s/%s", runtime.GOOS, runtime.GOARCH),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, dep := range info.Deps {
		if dep.Path == gvisorModule {
			v.GVisor = dep.Version
			if dep.Replace != nil { // as "make build" does
				v.GVisor += ", edited"
			}
		}
	}
	return v
}

// addrPort is a flag with an IP address and a port.
type addrPort netip.AddrPort

// String implements pflag.Value.
func (a *addrPort) String() string {
	if at := netip.AddrPort(*a); at.IsValid() {
		return at.String()
	}
	return ""
}

// Type implements pflag.Value.
func (a *addrPort) Type() string { return "address" }

// Set implements pflag.Value.
func (a *addrPort) Set(text string) error {
	at, err := netip.ParseAddrPort(text)
	*a = addrPort(at)
	return err
}
