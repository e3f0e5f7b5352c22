package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// lifeFlags are the rules by which a sandbox lives: those of create and run
// that set can change.
type lifeFlags struct {
	onTimeout       string
	idleTimeout     time.Duration
	onIdle          string
	maxLifetime     time.Duration
	pausedRetention time.Duration
	autoResume      bool
	refresh         lifecycle.Refresh
	fallback        bool
	stallAfter      time.Duration
	checkpointEvery time.Duration
	ports           ports
	metadata        pairs
	noInternet      bool
	allowOut        []string
	denyOut         []string
	proxyAddress    string
	proxyLogin      string
	proxy           *client.EgressProxy // of these two; see check
}

func (l *lifeFlags) add(f *pflag.FlagSet) {
	f.StringVar(&l.onTimeout, "on-timeout", "", "`action` when the timeout ends: kill or pause (default: the server's --default-on-timeout, kill)")
	clockVar(f, &l.idleTimeout, "idle-timeout", 0, "kill or pause the sandbox after this long without work; none for no limit (default: the server's --default-idle-timeout, never)")
	f.StringVar(&l.onIdle, "on-idle", "", "`action` when the idle timeout ends: kill or pause (default: the same as --on-timeout)")
	clockVar(f, &l.maxLifetime, "max-lifetime", 0, "delete the sandbox this long after it was created, running or paused; none for no limit (default: the server's)")
	clockVar(f, &l.pausedRetention, "paused-retention", 0, "delete the sandbox once it has been paused this long; none for no limit (default: the server's)")
	f.BoolVar(&l.autoResume, "auto-resume", false, "let requests wake the sandbox; needs --on-timeout pause or --on-idle pause; =false if not (default: the server's --default-auto-resume, false)")
	refreshVar(f, &l.refresh, "refresh-on-activity", "restart the timeout on every activity; =requests to leave processes out; =false if not (default: the server's --default-refresh-on-activity, false)")
	f.BoolVar(&l.fallback, "filesystem-fallback", false, "boot from the files alone if the server cannot read the memory image, for example after an upgrade")
	clockVar(f, &l.stallAfter, "stall-after", 0, "how long work without progress keeps the sandbox awake; none for no limit (default: the server's)")
	clockVar(f, &l.checkpointEvery, "checkpoint-every", 0, "write a checkpoint this often while the sandbox runs, so that a crash loses no more than that; none for no checkpoints")
	f.Var(&l.ports, "port", "what requests to a port, or to a path and all below it, do (`port[/path]=policy`): wake the sandbox (default), keep it awake but not wake it, or ignore (neither); the longest matching path applies; repeatable")
	f.Var(&l.metadata, "metadata", "`key=value` label to find the sandbox by; repeatable")
	f.BoolVar(&l.noInternet, "no-internet", false, "block all traffic out of the sandbox, except to --allow-out")
	f.StringArrayVar(&l.allowOut, "allow-out", nil, "let the sandbox reach `HOST` (IP, CIDR, name or *.name); overrides --deny-out; repeatable")
	f.StringArrayVar(&l.denyOut, "deny-out", nil, "block traffic to `HOST` (IP or CIDR; 0.0.0.0/0 for all); repeatable")
	f.StringVar(&l.proxyAddress, "egress-proxy", "", "send what is allowed out through the proxy at `ADDRESS`: host:port for SOCKS 5, http://host:port for CONNECT, none for no proxy")
	f.StringVar(&l.proxyLogin, "egress-proxy-login", "", "read username:password for the egress proxy from `FILE`")
}

// egressProxy returns the proxy that the flags name; one without an address for
// none, and nil if they say nothing.
func (l *lifeFlags) egressProxy() (*client.EgressProxy, error) {
	switch {
	case l.proxyAddress == "" && l.proxyLogin == "":
		return nil, nil
	case l.proxyAddress == "" || l.proxyAddress == "none" && l.proxyLogin != "":
		return nil, usagef("--egress-proxy-login: want the address of the proxy in --egress-proxy")
	case l.proxyAddress == "none":
		return &client.EgressProxy{}, nil
	case l.proxyLogin == "":
		return &client.EgressProxy{Address: l.proxyAddress}, nil
	}
	text, err := os.ReadFile(l.proxyLogin)
	if err != nil {
		return nil, err
	}
	username, password, ok := strings.Cut(strings.TrimRight(string(text), "\r\n"), ":")
	if !ok {
		return nil, usagef("--egress-proxy-login: want username:password in %s", l.proxyLogin)
	}
	return &client.EgressProxy{Address: l.proxyAddress, Username: username, Password: password}, nil
}

// check refuses what no server would accept. What depends on other settings is
// for the server to judge.
func (l *lifeFlags) check() error {
	var err error
	if l.proxy, err = l.egressProxy(); err != nil {
		return err
	}
	actions := []string{string(client.Kill), string(client.Pause)}
	switch {
	case l.onTimeout != "" && !slices.Contains(actions, l.onTimeout):
		return usagef("--on-timeout %s: want kill or pause", l.onTimeout)
	case l.onIdle != "" && !slices.Contains(actions, l.onIdle):
		return usagef("--on-idle %s: want kill or pause", l.onIdle)
	}
	return nil
}

// orNever returns a duration that was given as the client takes it where zero
// is the server's default.
func orNever(d time.Duration) time.Duration { return cmp.Or(d, client.Never) }

// createFlags are those of create and run.
type createFlags struct {
	lifeFlags
	flags     *pflag.FlagSet
	name      string
	template  string
	snapshot  string
	timeout   limitFlag
	pauseMode string
	cpus      float64
	memoryMiB int
	diskMiB   int
	pids      int
	hooks     hooks
	env       pairs
	volumes   volumes
	secrets   secretsFlag
	services  serviceFlag
}

// defaultTimeout is what create and run give a sandbox, so that a forgotten one
// goes away. The API has no limit that nobody asked for.
const defaultTimeout = 5 * time.Minute

func (c *createFlags) add(f *pflag.FlagSet) {
	c.flags = f
	f.StringVar(&c.template, "template", "base", "template `id` or alias, or a snapshot by its id or name")
	f.StringVar(&c.name, "name", "", "a `name` that stands for the sandbox's id: letters, digits, - and _, at most 64, unique among the sandboxes of your API key")
	f.StringVar(&c.snapshot, "snapshot", "", "start from a snapshot, by its `id` or name, instead of a template")
	c.timeout.Duration = defaultTimeout
	f.Var(&c.timeout, "timeout", "how long the sandbox runs after each start or wake before --on-timeout applies; none for no limit")
	c.lifeFlags.add(f)
	f.StringVar(&c.pauseMode, "pause-mode", "memory", "what an automatic pause keeps (`mode`): memory (processes and files) or filesystem (files only)")
	f.Var(cpusFlag{&c.cpus}, "cpus", "CPU limit, such as 2 or 0.5 (default: the server's)")
	mibVar(f, &c.memoryMiB, "memory", 0, "memory limit, in MiB or as a `size` such as 2g (default: the server's)")
	mibVar(f, &c.diskMiB, "disk", 0, "disk limit, in MiB or as a `size` such as 2g; a sandbox over it is paused (default: the server's)")
	f.IntVar(&c.pids, "pids", 0, "limit on processes and threads; each process counts as two (default: the server's)")
	f.Var(&c.hooks, "hook", "run a shell command in the sandbox as root (`event=command`) at pre-pause, post-resume or pre-kill; repeatable")
	f.Var(&c.env, "env", "environment variable of all its processes, `name=value`; repeatable")
	f.Var(&c.volumes, "volume", "mount a volume (`name:/path`); see drowse volumes; repeatable")
	f.Var(&c.secrets, "secret", "let the sandbox use a secret without having it (`NAME[=VARIABLE]`): the variable has a placeholder; see drowse secret; repeatable")
	f.Var(&c.services, "service", "process that starts with the sandbox (`NAME[,OPTION...]:COMMAND`, or @FILE with a JSON array); the options are the flags of drowse service add; repeatable")
}

func (c *createFlags) options() (client.CreateOptions, error) {
	if err := c.check(); err != nil {
		return client.CreateOptions{}, err
	}
	if c.pids < 0 {
		return client.CreateOptions{}, usagef("--pids %d: want 1 or more", c.pids)
	}
	if err := checkMode("pause-mode", c.pauseMode); err != nil {
		return client.CreateOptions{}, err
	}
	o := client.CreateOptions{
		Name: c.name, Template: c.template, Timeout: max(c.timeout.Duration, 0), OnTimeout: client.Action(c.onTimeout),
		IdleTimeout: c.idleTimeout, OnIdle: client.Action(c.onIdle),
		MaxLifetime: c.maxLifetime, CheckpointEvery: c.checkpointEvery, StallAfter: c.stallAfter, PausedRetention: c.pausedRetention,
		PauseMode: client.Mode(c.pauseMode),
		Ports:     c.ports.m, Hooks: c.hooks.Hooks, CPUs: c.cpus, MemoryMiB: c.memoryMiB, DiskMiB: c.diskMiB, PIDs: c.pids,
		Metadata: c.metadata.m, Env: c.env.m, NoInternet: c.noInternet,
		AllowOut: c.allowOut, DenyOut: c.denyOut, EgressProxy: c.proxy, Volumes: c.volumes.m, Secrets: c.secrets.m, Services: c.services.list,
	}
	if c.snapshot != "" {
		if c.flags.Changed("template") {
			return client.CreateOptions{}, usagef("--template and --snapshot: want one of them")
		}
		o.Template, o.Snapshot = "", c.snapshot
	}
	o.AutoResume, o.FilesystemFallback = c.said("auto-resume", &c.autoResume), c.said("filesystem-fallback", &c.fallback)
	if c.flags.Changed("refresh-on-activity") {
		o.RefreshOnActivity, o.RefreshOnRequests = refreshFlag{&c.refresh}.options()
	}
	for flag, d := range map[string]*time.Duration{
		"stall-after": &o.StallAfter, "paused-retention": &o.PausedRetention, "idle-timeout": &o.IdleTimeout,
		"max-lifetime": &o.MaxLifetime, "checkpoint-every": &o.CheckpointEvery,
	} {
		if c.flags.Changed(flag) {
			*d = orNever(*d)
		}
	}
	return o, nil
}

// said returns what a flag was set to; nil if it was not given, and the server's
// default counts.
func (c *createFlags) said(flag string, value *bool) *bool {
	if !c.flags.Changed(flag) {
		return nil
	}
	return value
}

func checkMode(flag, mode string) error {
	if mode != string(client.Memory) && mode != string(client.Filesystem) {
		return usagef("--%s %s: want memory or filesystem", flag, mode)
	}
	return nil
}

// pairs is a flag that collects key=value.
type pairs struct{ m map[string]string }

func (p *pairs) String() string { return "" }
func (p *pairs) Type() string   { return "key=value" }

func (p *pairs) Set(text string) error {
	k, v, ok := strings.Cut(text, "=")
	if !ok || k == "" {
		return errors.New("want key=value")
	}
	if p.m == nil {
		p.m = map[string]string{}
	}
	p.m[k] = v
	return nil
}

// ports is a flag that collects what traffic to ports does.
type ports struct{ m map[string]client.WakePolicy }

func (p *ports) String() string { return "" }
func (p *ports) Type() string   { return "port[/path]=policy" }

// Set takes what follows the last "=" for the policy. Which paths there can be
// is for the server to judge.
func (p *ports) Set(text string) error {
	at := max(strings.LastIndexByte(text, '='), 0)
	rule, policy := text[:at], client.WakePolicy(strings.TrimPrefix(text[at:], "="))
	number, _, _ := strings.Cut(rule, "/")
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || port == 0 || !slices.Contains([]client.WakePolicy{client.Wake, client.Keep, client.Ignore}, policy) {
		return errors.New("want a port, perhaps with a path, and wake, keep or ignore, such as 8000=ignore or 8000/healthz=ignore")
	}
	if p.m == nil {
		p.m = map[string]client.WakePolicy{}
	}
	p.m[rule] = policy
	return nil
}

// hooks is a flag that collects commands by what they are run at.
type hooks struct{ client.Hooks }

func (h *hooks) String() string { return "" }
func (h *hooks) Type() string   { return "event=command" }

func (h *hooks) Set(text string) error {
	event, command, _ := strings.Cut(text, "=")
	hook, known := map[string]*client.Hook{"pre-pause": &h.PrePause, "post-resume": &h.PostResume, "pre-kill": &h.PreKill}[event]
	switch {
	case !known || strings.TrimSpace(command) == "":
		return errors.New("want pre-pause, post-resume or pre-kill, and a command, such as pre-pause=sync")
	case hook.Command != "":
		return fmt.Errorf("there is a %s hook already", event)
	}
	hook.Command = command
	return nil
}

func (a *app) createCommand() *cobra.Command {
	var flags createFlags
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "create a sandbox and print its id",
		Long: `Create a sandbox, wait until it accepts commands, and print its id.

A sandbox has four clocks:

  timeout            starts at each start or wake; --on-timeout applies when it ends
  idle timeout       starts when no work is left; --on-idle applies when it ends
  max lifetime       starts at creation; the sandbox is deleted when it ends
  paused retention   starts at each pause; the sandbox is deleted when it ends

drowse why shows them, drowse set changes them, drowse timeout moves the first.`,
		Example: `  drowse create --timeout 10m
  drowse create --on-timeout pause --auto-resume --metadata team=red
  drowse create --timeout none --idle-timeout 10m --on-idle pause --auto-resume --port 8000/healthz=ignore
  drowse create --snapshot prepared
  drowse create --on-timeout pause --hook pre-pause='redis-cli save'
  drowse create --on-timeout pause --pause-mode filesystem --auto-resume --service web,port=8000,resume:'python3 -m http.server 8000'`,
		Args: exactArgs(),
	}
	var idempotencyKey string
	flags.add(cmd.Flags())
	cmd.Flags().StringVar(&idempotencyKey, "idempotency-key", "", "`text` that makes a retry safe: within 24 hours, the same create with the same key prints the id of the first sandbox and creates no second one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o, err := flags.options()
		if err != nil {
			return err
		}
		o.IdempotencyKey = idempotencyKey
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			sb, err := c.Create(ctx, o)
			if err != nil {
				return explainCreate(err)
			}
			return a.print(map[string]string{"id": sb.ID, "template": sb.Template}, func(w io.Writer) {
				_, _ = fmt.Fprintln(w, sb.ID)
			})
		})
	}
	return cmd
}

func explainCreate(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "too_many_sandboxes" {
		return hint(err, "kill or pause one that is not needed: drowse ls --state running")
	}
	return err
}

func (a *app) setCommand() *cobra.Command {
	var flags lifeFlags
	cmd := &cobra.Command{
		Use:   "set ID flags",
		Short: "change the settings of a sandbox, running or paused",
		Long: `Change the settings that are given and leave the others as they are. --port and
--metadata replace all existing entries. Use drowse timeout to move the timeout.
The other settings of create cannot be changed.`,
		Example: `  drowse set i0abc --idle-timeout 10m --on-idle pause
  drowse set i0abc --auto-resume=false --max-lifetime 24h`,
		Args: exactArgs("ID"),
	}
	flags.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := flags.check(); err != nil {
			return err
		}
		o, changes := flags.patch(cmd.Flags())
		if !changes {
			return usagef("set: give at least one setting to change")
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			info, err := c.Patch(ctx, args[0], o)
			if err != nil {
				return missing(err)
			}
			return a.printInfo(info)
		})
	}
	return cmd
}

// patch returns what the flags that were given change, and whether any was.
func (l *lifeFlags) patch(f *pflag.FlagSet) (o client.PatchOptions, changes bool) {
	given := func(name string) bool {
		changes = changes || f.Changed(name)
		return f.Changed(name)
	}
	if given("on-timeout") {
		o.OnTimeout = new(client.Action(l.onTimeout))
	}
	if given("idle-timeout") {
		o.IdleTimeout = &l.idleTimeout
	}
	if given("on-idle") {
		o.OnIdle = new(client.Action(l.onIdle))
	}
	if given("max-lifetime") {
		o.MaxLifetime = &l.maxLifetime
	}
	if given("paused-retention") {
		o.PausedRetention = &l.pausedRetention
	}
	if given("auto-resume") {
		o.AutoResume = &l.autoResume
	}
	if given("refresh-on-activity") {
		o.RefreshOnActivity, o.RefreshOnRequests = refreshFlag{&l.refresh}.options()
	}
	if given("filesystem-fallback") {
		o.FilesystemFallback = &l.fallback
	}
	if given("stall-after") {
		o.StallAfter = new(orNever(l.stallAfter))
	}
	if given("checkpoint-every") {
		o.CheckpointEvery = &l.checkpointEvery
	}
	if given("no-internet") {
		o.AllowInternet = new(!l.noInternet)
	}
	if given("allow-out") {
		o.AllowOut = l.allowOut
	}
	if given("deny-out") {
		o.DenyOut = l.denyOut
	}
	if given("egress-proxy") {
		o.EgressProxy = l.proxy
	}
	if given("port") {
		o.Ports = l.ports.m
	}
	if given("metadata") {
		o.Metadata = l.metadata.m
	}
	return o, changes
}
