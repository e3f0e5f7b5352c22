package cli

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

func (a *app) serveCommand() *cobra.Command {
	var o ServeOptions
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "run the server",
		Long: `Run the server until it gets SIGINT or SIGTERM. Sandboxes live on without it,
unless --on-shutdown=pause puts them to sleep; a second signal ends it at once.

Every flag can be set in the environment: --log-level is DROWSE_LOG_LEVEL. The
first start leaves an API key in the file api-key of the state directory.`,
		Args: exactArgs(),
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:3000", "`address` for API and sandbox traffic")
	f.StringVar(&o.Domain, "domain", "", "wildcard `domain` under which sandboxes are reached, such as sandboxes.example.com, with the port if it is an unusual one; links to sandboxes then have host names")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json")
	f.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	most, timeout := limitFlag{Duration: client.Never}, limitFlag{}
	f.Var(&most, "max-timeout", "longest timeout granted, or none for no bound; a longer one, and no timeout, is refused")
	f.Var(&timeout, "default-timeout", "timeout of sandboxes that E2B clients create or wake without one, or none (default: as E2B, 15s for version 1 of a call and 5m for version 2)")
	f.Lookup("default-timeout").DefValue = ""
	f.StringVar(&o.DefaultOnTimeout, "default-on-timeout", "kill", "what a timeout does where the sandbox does not say: kill or pause")
	f.DurationVar(&o.DefaultIdleTimeout, "default-idle-timeout", 0, "how long sandboxes may do nothing, where they do not say; 0 for any time")
	f.StringVar(&o.DefaultOnIdle, "default-on-idle", "", "what the end of the idle timeout does where the sandbox does not say: kill or pause (default: as its timeout)")
	f.BoolVar(&o.DefaultAutoResume, "default-auto-resume", false, "let traffic wake sandboxes that do not say, and that pause by themselves")
	f.BoolVar(&o.DefaultRefresh, "default-refresh-on-activity", false, "let activity begin the timeout anew, where the sandbox does not say")
	f.BoolVar(&o.DefaultFallback, "default-filesystem-fallback", false, "boot sandboxes that do not say afresh from their files where their memory image cannot be read")
	f.DurationVar(&o.DefaultMaxLifetime, "default-max-lifetime", 0, "how long sandboxes may exist, asleep or not, where they do not say; 0 for ever")
	f.DurationVar(&o.DefaultCheckpointEvery, "default-checkpoint-every", 0, "how often sandboxes that do not say are checkpointed while they run; 0 for never")
	f.DurationVar(&o.DefaultRetention, "default-retention", 0, "how long sandboxes stay paused before they end, where they do not say; 0 for ever")
	f.DurationVar(&o.StallAfter, "stall-after", 30*time.Minute, "how long work may stand still and keep a sandbox awake; 0 for ever")
	f.DurationVar(&o.WakeTimeout, "wake-timeout", 30*time.Second, "how long a request waits for a sandbox to wake")
	f.IntVar(&o.WakeQueue, "wake-queue", 4096, "how many requests may wait for one sandbox")
	f.DurationVar(&o.Drain, "drain", 5*time.Second, "how long a pause at a timeout waits for requests in flight to end; streams are not waited for, and an explicit pause waits 1s; 0 for not at all")
	f.IntVar(&o.MaxRunning, "max-running", 0, "how many sandboxes run at once; 0 for no bound")
	f.IntVar(&o.VolumeDiskMiB, "volume-disk", 10240, "how many `MiB` a volume may hold that has no limit of its own; 0 for no limit")
	f.BoolVar(&o.Trial, "trial", true, "start a sandbox and remove it before the server is ready; false starts sooner, and finds out with the first create")
	f.BoolVar(&o.ShareOpt, "share-opt", false, "let sandboxes see the host's /opt, as far as everybody on the host may read it")
	f.IntVar(&o.WarmRuntimes, "warm-runtimes", 1, "how many empty runtimes wait to make the next start or wake faster; 0 for none")
	f.Var(&o.DNS, "dns", "`address` and port of the DNS server that resolves names for sandboxes, such as 192.0.2.1:53; without it they are resolved as on this machine")
	f.StringVar(&o.OnShutdown, "on-shutdown", "keep", "what becomes of running sandboxes when the server stops: keep lets them run, pause pauses them")
	f.DurationVar(&o.ShutdownTimeout, "shutdown-timeout", time.Minute, "how long pausing them may take; those that take longer go on")
	f.StringVar(&o.TLSCert, "tls-cert", "", "PEM `file` with the certificate chain for *.domain; read again when it changes")
	f.StringVar(&o.TLSKey, "tls-key", "", "PEM `file` with the certificate's key")
	f.IntVar(&o.MaxClientConnections, "max-client-connections", 4096, "how many connections one client address may have; 0 for no bound")
	f.IntVar(&o.MaxSandboxRequests, "max-sandbox-requests", 4096, "how many requests and streams one sandbox may have under way; 0 for no bound")
	f.DurationVar(&o.IdleStream, "idle-stream", 0, "how long a request or stream may pass without a byte before it is broken off; 0 for ever")
	f.BoolVar(&o.AccessLog, "access-log", false, "log each request for a sandbox, without its query")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.fromEnv(cmd.LocalFlags()); err != nil {
			return err
		}
		o.MaxTimeout, o.DefaultTimeout = max(most.Duration, 0), timeout.Duration
		o.StateDir, o.APIKey = a.stateDirectory(), a.key
		if o.APIKey == "" {
			o.APIKey = a.Getenv("DROWSE_API_KEY")
		}
		if err := o.check(); err != nil {
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

var domainForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$`)

func (o ServeOptions) check() error {
	switch {
	case o.Domain != "" && !domainForm.MatchString(o.Domain):
		return usagef("--domain %s: want a domain such as sandboxes.example.com or localhost:3000, without a scheme and a *", o.Domain)
	case o.LogFormat != "text" && o.LogFormat != "json":
		return usagef("--log-format %s: want text or json", o.LogFormat)
	case !strings.Contains(" debug info warn error ", " "+o.LogLevel+" "):
		return usagef("--log-level %s: want debug, info, warn or error", o.LogLevel)
	case o.MaxTimeout > 0 && (o.DefaultTimeout < 0 || o.DefaultTimeout > o.MaxTimeout):
		return usagef("--default-timeout: want at most --max-timeout (%s)", o.MaxTimeout)
	case o.DefaultOnIdle != "" && o.DefaultOnIdle != "kill" && o.DefaultOnIdle != "pause":
		return usagef("--default-on-idle %s: want kill or pause", o.DefaultOnIdle)
	case o.DefaultIdleTimeout < 0 || o.DefaultMaxLifetime < 0:
		return usagef("--default-idle-timeout and --default-max-lifetime: want 0 or more")
	case o.DefaultCheckpointEvery != 0 && o.DefaultCheckpointEvery < lifecycle.MinCheckpointEvery:
		return usagef("--default-checkpoint-every %s: want %s or more, or 0", o.DefaultCheckpointEvery, lifecycle.MinCheckpointEvery)
	case o.DefaultOnTimeout != "kill" && o.DefaultOnTimeout != "pause":
		return usagef("--default-on-timeout %s: want kill or pause", o.DefaultOnTimeout)
	case o.OnShutdown != "keep" && o.OnShutdown != "pause":
		return usagef("--on-shutdown %s: want keep or pause", o.OnShutdown)
	case o.ShutdownTimeout <= 0:
		return usagef("--shutdown-timeout %s: want more than 0", o.ShutdownTimeout)
	case o.WakeTimeout <= 0:
		return usagef("--wake-timeout %s: want more than 0", o.WakeTimeout)
	case o.WakeQueue <= 0:
		return usagef("--wake-queue %d: want more than 0", o.WakeQueue)
	case o.Drain < 0 || o.Drain > time.Minute:
		return usagef("--drain %s: want 0 to 1m", o.Drain)
	case (o.TLSCert == "") != (o.TLSKey == ""):
		return usagef("--tls-cert and --tls-key belong together")
	case o.MaxClientConnections < 0 || o.MaxSandboxRequests < 0 || o.IdleStream < 0:
		return usagef("--max-client-connections, --max-sandbox-requests and --idle-stream: want 0 or more")
	case o.DefaultRetention < 0 || o.StallAfter < 0 || o.MaxRunning < 0 || o.WarmRuntimes < 0 || o.VolumeDiskMiB < 0:
		return usagef("--default-retention, --stall-after, --max-running, --volume-disk and --warm-runtimes: want 0 or more")
	}
	return nil
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "tell whether this machine can run a server, and why not",
		Args:  exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Doctor == nil {
				return errors.New("this build has no server")
			}
			ok, err := a.Doctor(cmd.Context(), a.Stdout, a.output == "json", a.stateDirectory())
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
				table(w, [][]string{{"drowse", v.Drowse}, {"go", v.Go}, {"gvisor", v.GVisor}, {"platform", v.Platform}})
			})
		},
	}
}

func readVersions() versions {
	v := versions{
		Drowse:   "unknown",
		Go:       runtime.Version(),
		GVisor:   "not linked in",
		Platform: fmt.Sprintf("%s/%s", runtime.GOOS, runtime.GOARCH),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Drowse = info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path == gvisorModule {
			v.GVisor = dep.Version
		}
	}
	return v
}

// AddrPort is a flag with an IP address and a port.
type AddrPort struct{ netip.AddrPort }

// String implements pflag.Value.
func (a *AddrPort) String() string {
	if !a.IsValid() {
		return ""
	}
	return a.AddrPort.String()
}

// Type implements pflag.Value.
func (a *AddrPort) Type() string { return "address" }

// Set implements pflag.Value.
func (a *AddrPort) Set(text string) (err error) {
	a.AddrPort, err = netip.ParseAddrPort(text)
	return err
}
