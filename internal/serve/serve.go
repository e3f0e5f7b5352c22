// Package serve assembles a server: it opens a state directory, recovers what
// is in it, and serves the control plane and the data plane on one listener
// until it is told to stop. Running sandboxes go on without it.
package serve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agentbin"
	"github.com/drowse-dev/drowse/internal/api/e2b"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/mitos"
	"github.com/drowse-dev/drowse/internal/api/sandbox0"
	v1 "github.com/drowse-dev/drowse/internal/api/v1"
	"github.com/drowse-dev/drowse/internal/api/volumecontent"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/backup"
	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/build/workshop"
	"github.com/drowse-dev/drowse/internal/cluster"
	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/drivers"
	"github.com/drowse-dev/drowse/internal/secret"
	"github.com/drowse-dev/drowse/internal/serve/settings"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/follow"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/supervisor/launch"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
	"github.com/drowse-dev/drowse/internal/supervisor/outside"
	"github.com/drowse-dev/drowse/internal/supervisor/publish"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/supervisor/tenure"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/ui"
	"github.com/drowse-dev/drowse/internal/version"
	"github.com/drowse-dev/drowse/internal/volume"
	"github.com/drowse-dev/drowse/internal/webhook"
)

// Options is what a server is told, and where it writes.
type Options struct {
	settings.Server
	Log     *slog.Logger
	Notices io.Writer // for what must be seen once, such as that there is a new key
	Person  bool      // a person reads Notices, and nothing keeps them

	first  firstTrial // that of the start
	fenced func()     // called if another process has taken the place of this one
}

// defaults is what applies to a sandbox that does not say.
func (o Options) defaults() supervisor.Defaults {
	return supervisor.Defaults{
		OnTimeout: lifecycle.Action(o.DefaultOnTimeout), IdleTimeout: o.DefaultIdleTimeout, OnIdle: lifecycle.Action(o.DefaultOnIdle),
		AutoResume: o.DefaultAutoResume, RefreshOnActivity: lifecycle.Refresh(o.DefaultRefresh), FilesystemFallback: o.DefaultFallback,
		MaxLifetime: o.DefaultMaxLifetime, PausedRetention: o.DefaultRetention, CheckpointEvery: o.DefaultCheckpointEvery,
		StallAfter: o.StallAfter,
	}
}

// limits bounds what clients may have open.
func (o Options) limits() edge.Limits {
	return edge.Limits{PerClient: o.MaxClientConnections, PerSandbox: o.MaxSandboxRequests, IdleStream: o.IdleStream}
}

// Bounds of the server's own waits.
const (
	shutdownGrace = 20 * time.Second // for the sandboxes' operations
	stopGrace     = time.Second      // for requests under way
	startsGrace   = 10 * time.Second // for sandboxes to start that some of these may wait for
)

// sampleEvery is how often running sandboxes are measured, as E2B's own service
// does it.
const sampleEvery = 5 * time.Second

// activityEvery is how often it is looked whether the last activity of a sandbox
// is to be stored.
const activityEvery = 20 * time.Second

// diskEvery is how often it is looked whether the disk has less room than
// before: a sandbox writes what the disk bears in that time past its limit.
const diskEvery = 500 * time.Millisecond

// defaultLimits are those of a sandbox that asks for none.
func defaultLimits(most store.Limits) store.Limits {
	return store.Limits{CPUs: min(2, most.CPUs), MemoryMiB: min(1024, most.MemoryMiB), DiskMiB: 10240, PIDs: 2048}
}

// mostLimits is what a sandbox of this host may ask for. Memory may be
// overcommitted, because most sandboxes sleep. A disk limit may be larger than
// the disk, because a sandbox may come from a larger host.
func mostLimits() (store.Limits, error) {
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return store.Limits{}, fmt.Errorf("size of the host: %w", err)
	}
	memory := host.Totalram * uint64(host.Unit) >> 20
	return store.Limits{CPUs: float64(goruntime.NumCPU()), MemoryMiB: int(memory), PIDs: 1 << 15}, nil
}

// Run serves until ctx ends, then stops in order. The error says what kept the
// server from starting, or what went wrong while it stopped.
func Run(ctx context.Context, o Options) (err error) {
	if err := cmp.Or(needRoot("drowse serve"), needKernel()); err != nil {
		return err
	}
	if o.ACMEEmail != "" {
		if err := o.acme().Check(); err != nil {
			return err
		}
	}
	var closers cleanups
	defer func() { err = errors.Join(err, closers.run()) }()

	ln, err := listen(ctx, "--listen", o.Listen)
	if err != nil {
		return err
	}
	closers.add(func() error { return ignoreClosed(ln.Close()) })
	o.Listen = ln.Addr().String() // with the port that was got
	var forSSH net.Listener
	if o.SSHListen != "" {
		if forSSH, err = listen(ctx, "--ssh-listen", o.SSHListen); err != nil {
			return fmt.Errorf("--ssh-listen: %w", err)
		}
		closers.add(func() error { return ignoreClosed(forSSH.Close()) })
	}
	var forPeers net.Listener
	if o.PeerListen != "" {
		if forPeers, err = listen(ctx, "--peer-listen", o.PeerListen); err != nil {
			return fmt.Errorf("--peer-listen: %w", err)
		}
		closers.add(func() error { return ignoreClosed(forPeers.Close()) })
		o.PeerListen = withPortOf(o.PeerListen, forPeers.Addr())
	}
	if err := errors.Join(raiseDescriptors(), dropRights()); err != nil {
		return err
	}
	descriptors().log(o.Log)
	if err := template.CheckOutside(o.StateDir, o.share()...); err != nil {
		return err
	}
	if o.StateDir, err = makeStateDir(o.StateDir); err != nil {
		return err
	}
	unlock, err := lockDir(ctx, o.StateDir)
	if err != nil {
		return err
	}
	closers.add(unlock)
	certificates, err := openTLS(o)
	if err != nil {
		return err
	}
	warnOfClear(o.Log, ln.Addr(), certificates.config)
	if err := announce(o, ln.Addr()); err != nil {
		return err
	}
	o, tell := o.tellLater()
	defer tell() // a start that fails now may have made the key
	if o.Trial {
		o.first = make(firstTrial)
	}
	serving, end := context.WithCancelCause(ctx)
	defer end(nil)
	o.fenced = func() { end(errFenced(o.StateDir)) }
	server, sup, leave, err := assemble(ctx, o, listeners{ln.Addr(), forSSH, forPeers}, certificates, &closers)
	if err != nil {
		return err
	}
	if certificates.keep != nil { // an authority may want to see the server
		closers.add(background(ctx, certificates.keep))
	}
	if o.Trial { // sandboxes that run are served meanwhile
		closers.add(background(serving, func(ctx context.Context) {
			defer close(o.first)
			if err := tryHost(ctx, o, sup); err != nil {
				end(err)
			}
		}))
	}
	var well health = sup
	if o.Store != "" {
		well = awayFrom{sup}
	}
	err = serveUntil(serving, o.Log, ln, server, well, o.first, tell, leave)
	if ctx.Err() == nil {
		err = errors.Join(context.Cause(serving), err)
	}
	return err
}

// tellLater returns options whose notices wait until tell is called, so that they stand
// together, and not between lines of the log.
func (o Options) tellLater() (later Options, tell func()) {
	var waiting bytes.Buffer
	to := o.Notices
	o.Notices = &waiting
	return o, sync.OnceFunc(func() {
		if waiting.Len() > 0 {
			_, _ = waiting.WriteTo(to)
		}
	})
}

// warnOfClear logs that other machines reach the server without TLS, if they do.
func warnOfClear(log *slog.Logger, at net.Addr, certificates *tls.Config) {
	if addr, ok := at.(*net.TCPAddr); ok && certificates == nil && !addr.IP.IsLoopback() {
		log.Warn("the server can be reached from other machines without TLS: API keys and all traffic go over the network in the clear",
			"addr", addr.String(), "remedy", "give it --tls-cert and --tls-key, or --acme-email, or listen on 127.0.0.1 behind a proxy that has TLS")
	}
}

// predecessorPatience is how long the address and the lock of a server may still be
// taken when it has ended. One that was killed while it started a program has left a
// child that has both, until that child becomes the program.
const predecessorPatience = 2 * time.Second

// patiently tries again while it fails because something is taken.
func patiently(ctx context.Context, taken error, try func() error) error {
	for end := time.Now().Add(predecessorPatience); ; {
		err := try()
		if !errors.Is(err, taken) || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func listen(ctx context.Context, flag, addr string) (ln net.Listener, err error) {
	var lc net.ListenConfig
	err = patiently(ctx, syscall.EADDRINUSE, func() (err error) {
		ln, err = lc.Listen(ctx, "tcp", addr)
		return err
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errdef.New(errdef.Conflict, "port_in_use", "another program listens on %s", addr).
			WithRemedy("stop it, or choose another address with %s", flag)
	}
	if err != nil {
		return nil, errdef.New(errdef.Invalid, "listen_failed", "cannot listen on %s: %w", addr, err).
			WithRemedy("give an address of this machine with %s, such as 127.0.0.1:3000", flag)
	}
	return ln, nil
}

// lockDir takes the state directory for this process.
func lockDir(ctx context.Context, dir string) (unlock func() error, err error) {
	if err := durable.Sync(filepath.Dir(dir)); err != nil {
		return nil, fmt.Errorf("make state directory durable: %w", err)
	}
	// It holds memory images and a set-uid program: nobody else may look in.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("protect state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	err = patiently(ctx, unix.EWOULDBLOCK, func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		return nil, errdef.New(errdef.Conflict, "state_dir_in_use", "another drowse server (pid %s) uses %s", holder, dir).
			WithRemedy("stop it first, or give this one a directory of its own with --state-dir")
	}
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	if _, err := fmt.Fprint(f, os.Getpid()); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	return f.Close, nil
}

// withPortOf returns an address as others know it, with the port that was got.
func withPortOf(address string, got net.Addr) string {
	host, _, _ := net.SplitHostPort(address)
	_, port, _ := net.SplitHostPort(got.String())
	return net.JoinHostPort(host, port)
}

// listeners are where a server is reached.
type listeners struct {
	addr       net.Addr     // of that for HTTP
	ssh, peers net.Listener // nil for none
}

// assemble opens everything below the listener and returns what serves it, and what is called
// before that ends. SSH clients and other servers are served from here on, if there are
// listeners for them.
func assemble(ctx context.Context, o Options, on listeners, certificates shown, closers *cleanups) (_ *edge.Server, _ *supervisor.Supervisor, leave func(), err error) {
	copies, err := openCopies(ctx, o)
	if err != nil {
		return nil, nil, nil, err
	}
	st, hold, err := openHeld(ctx, o, closers)
	if err != nil {
		return nil, nil, nil, err
	}
	keys, err := auth.Load(ctx, st)
	if err != nil {
		return nil, nil, nil, err
	}
	keys.SetRate(o.MaxKeyRate)
	if hold != nil {
		keys.Follow()
		secret, err := st.Secret(ctx, "relayed keys")
		if err != nil {
			return nil, nil, nil, err
		}
		keys.Share(secret)
	}
	calls, err := audit.Open(auditIn(o.StateDir), o.Log)
	if err != nil {
		return nil, nil, nil, err
	}
	closers.add(calls.Close)
	if err := firstKey(ctx, o, keys, on.addr); err != nil {
		return nil, nil, nil, err
	}
	closers.add(background(ctx, func(ctx context.Context) { keys.Run(ctx, o.Log) }))
	world, err := openOutside(ctx, o, st, keys)
	if err != nil {
		return nil, nil, nil, err
	}
	sup, publisher, err := supervise(ctx, o, st, copies, hold, keys, world, closers)
	if err != nil {
		return nil, nil, nil, err
	}
	leave = func() {
		if copies != nil {
			sup.StopMoves()
			hold.leave(context.WithoutCancel(ctx), st, o.Log)
		}
		if on.peers != nil { // before their connections are broken off: of what comes now they know that nobody got it
			_ = on.peers.Close()
		}
	}
	hooks, err := sendWebhooks(ctx, o, st, hold, sup, closers)
	if err != nil {
		return nil, nil, nil, err
	}
	var server *edge.Server
	filesOf := func(ctx context.Context, to, template, hash string) (io.ReadCloser, error) {
		return cluster.Upload(ctx, server.TransportTo(to), template, hash)
	}
	builder, err := openBuilds(ctx, o, st, sup, filesOf, closers)
	if err != nil {
		return nil, nil, nil, err
	}
	sshKeys, err := auth.LoadSSHKeys(ctx, st, keys)
	if err != nil {
		return nil, nil, nil, err
	}
	room := held.New()
	var others *cluster.Cluster
	catchUp := func(context.Context) {} // with what other servers have changed
	if hold != nil {
		follower := follow.New(follow.Options{Owners: st, Alone: alone(st), Log: o.Log, On: map[store.Kind]func(context.Context) error{
			store.KindKeys: keys.Refresh, store.KindSSHKeys: sshKeys.Refresh, store.KindSecrets: world.Secrets.Refresh, store.KindWebhooks: hooks.Refresh,
			store.KindVolumes: sup.RefreshVolumes, store.KindSnapshots: sup.RefreshSnapshots, store.KindTemplates: builder.Refresh,
			store.KindEvents: func(context.Context) error { sup.Announce(); return nil },
			store.KindOwners: func(ctx context.Context) error { return errors.Join(others.Forget(ctx), sup.Disown(ctx)) },
		}})
		catchUp = follower.Now
		transport := func(to string) http.RoundTripper { return server.TransportTo(to) }
		var takeOver func(ctx context.Context, id string) error
		var mover cluster.Mover
		if copies != nil {
			mover = sup
			takeOver = func(ctx context.Context, id string) error {
				err := sup.TakeOver(ctx, id)
				if err == nil && !ids.Valid(id) {
					err = builder.Refresh(ctx)
				}
				return err
			}
			sweepCopies(ctx, o.Log, st, hold, sup, closers)
		}
		if others, err = cluster.Open(ctx, cluster.Options{Store: st, Has: sup.Knows, TakeOver: takeOver, Mover: mover, Room: sup.Capacity, Sandboxes: sup.All, Snapshots: sup.AllSnapshots, Templates: st.Templates, OwnerOf: ownerOf(sup, builder), Patience: o.WakeTimeout, CatchUp: catchUp, Uploads: builder.Files, Admits: keys.Admits, AdmitsTo: keys.AdmitsTo, Relay: keys.Relay, Transport: transport, Log: o.Log}); err != nil {
			return nil, nil, nil, err
		}
		closers.add(background(ctx, follower.Run))
		closers.add(background(ctx, func(ctx context.Context) {
			if err := sup.WakeMoved(ctx); err != nil && ctx.Err() == nil {
				o.Log.Warn("sandboxes that a move has paused may still sleep", "err", err)
			}
		}))
		closers.add(background(ctx, others.TellRoom))
		closers.add(background(ctx, sup.WatchOverdue))
	}
	server = newServer(ctx, o, parts{sup, cluster.NewView(sup, st, others), others, publisher, hooks, builder, keys, sshKeys, world.Secrets, calls, room, st, hold}, certificates)
	if others != nil {
		closers.add(background(ctx, others.Drain))
	}
	if on.peers != nil {
		// Others pass requests on until they know that this server stops, and leave then ends that.
		closers.add(background(context.WithoutCancel(ctx), func(ctx context.Context) {
			defer context.AfterFunc(ctx, func() { _ = on.peers.Close() })()
			_ = server.ServePeers(others.Listen(on.peers)) // it ends with its listener
		}))
	}
	if on.ssh != nil {
		ssh, err := newSSHServer(o, keys, sshKeys, calls, server, room, func() { catchUp(ctx) })
		if err != nil {
			return nil, nil, nil, err
		}
		closers.add(background(ctx, func(ctx context.Context) { _ = ssh.Serve(ctx, on.ssh) })) // it ends with ctx alone
	}
	return server, sup, leave, nil
}

// alone reports whether no other server has the database: what one changes it knows.
func alone(st store.Leases) func(context.Context) bool {
	return func(ctx context.Context) bool {
		all, err := st.Servers(ctx)
		return err == nil && len(all) == 1
	}
}

// ownerOf returns how a cluster finds who has a snapshot or a built template.
func ownerOf(sup *supervisor.Supervisor, builder *build.Builder) func(ctx context.Context, id string) (whole, server string, err error) {
	return func(ctx context.Context, id string) (whole, server string, err error) {
		t, err := builder.With(ctx, id)
		if !errdef.Is(err, errdef.NotFound) || !snapshots.IsID(id) {
			return t.ID, t.Owner, err
		}
		server, err = snapshots.OwnerOf(ctx, sup.Shelf, id)
		return id, server, err
	}
}

// copiesWithin is how long a start waits for object storage.
const copiesWithin = 10 * time.Second

// openCopies returns the object storage with copies of checkpoints; nil for none. One that does
// not answer now is no reason not to serve.
func openCopies(ctx context.Context, o Options) (blobs.Store, error) {
	if o.Blobs == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, copiesWithin)
	defer cancel()
	copies, err := blobs.Open(ctx, o.Blobs)
	if err != nil && copies != nil {
		o.Log.Warn("object storage does not answer: what sleeps is copied when it does", "err", err)
		err = nil
	}
	return copies, err
}

// sweepEvery is how often object storage is looked through for what nobody needs.
const sweepEvery = time.Hour

// sweepCopies removes what is left of copies that nobody needs. One server does.
func sweepCopies(ctx context.Context, log *slog.Logger, st store.Store, hold *tenancy, sup *supervisor.Supervisor, closers *cleanups) {
	elected := hold.elected(ctx, st, "copies", closers)
	closers.add(background(ctx, func(ctx context.Context) {
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if here, _ := elected(); !here {
				continue
			}
			if err := sup.SweepCopies(ctx); err != nil && ctx.Err() == nil {
				log.Warn("object storage could not be looked through for what nobody needs", "err", err)
			}
		}
	}))
}

// openBuilds makes templates of steps.
func openBuilds(ctx context.Context, o Options, st store.Store, sup *supervisor.Supervisor, filesOf func(ctx context.Context, server, template, hash string) (io.ReadCloser, error), closers *cleanups) (*build.Builder, error) {
	shop := &workshop.Workshop{Sandboxes: sup, Snapshots: sup, Templates: sup}
	b, err := build.Open(ctx, build.Options{Dir: recipesIn(o.StateDir), Store: st, Origins: shop, Workshop: shop, Yard: shop, FilesOf: filesOf, Room: sup.HasRoom, Most: o.MaxTimeout, Log: o.Log})
	if err != nil {
		return nil, err
	}
	closers.add(func() error { b.Stop(); return nil })
	return b, nil
}

// sendWebhooks delivers what happens to the sandboxes to the server's webhooks.
func sendWebhooks(ctx context.Context, o Options, st store.Store, hold *tenancy, sup *supervisor.Supervisor, closers *cleanups) (*webhook.Sender, error) {
	var elected func() (here bool, server string)
	if hold != nil {
		elected = hold.elected(ctx, st, "webhooks", closers)
	}
	hooks, err := webhook.New(ctx, webhook.Options{Store: st, Events: sup, Elected: elected, Log: o.Log, Encode: func(ctx context.Context, e store.Event) (webhook.Message, error) {
		sb, err := sup.Find(ctx, e.Sandbox)
		if errdef.Is(err, errdef.NotFound) { // another server may have it
			sb, err = st.Sandbox(ctx, e.Sandbox)
		}
		if err != nil && !errdef.Is(err, errdef.NotFound) { // it may have been forgotten just now
			return webhook.Message{}, err
		}
		kind, id, body, err := e2b.EncodeEvent(e, sb)
		return webhook.Message{Type: kind, ID: id, Body: body}, err
	}})
	if err != nil {
		return nil, err
	}
	closers.add(func() error { hooks.Stop(); return nil })
	return hooks, nil
}

// parts are what a server's listener leads to.
type parts struct {
	sup       *supervisor.Supervisor
	view      cluster.View
	others    *cluster.Cluster // nil for none
	publisher *publish.Publisher
	hooks     *webhook.Sender
	builder   *build.Builder
	keys      *auth.Keys
	sshKeys   *auth.SSHKeys
	secrets   *secret.Vault
	calls     *audit.Log
	room      *held.Room
	store     store.Store
	hold      *tenancy // nil for none
}

// newServer puts the dialects, the data plane and what operators look at on
// one listener.
func newServer(ctx context.Context, o Options, p parts, certificates shown) *edge.Server {
	reg := prometheus.NewRegistry()
	var server *edge.Server
	dashboard := newDashboard(ctx, o, p.keys, p.room, func(client net.Addr) (net.Conn, error) { return server.Connect(client) })
	var peers edge.Peers
	if p.others != nil {
		peers = p.others
	}
	server = edge.NewServer(edge.Options{
		Sandboxes: p.view, Peers: peers, Control: controlPlane(ctx, o, p, reg, dashboard), MayUse: mayUse(p.keys), OwnCookies: ui.Cookies, Domain: o.Domain, TLS: certificates.config, Limits: o.limits(), AccessLog: o.AccessLog, Log: o.Log,
	})
	id := ""
	if p.hold != nil {
		id = p.store.Self()
		reg.MustRegister(newMembership(p.store.Servers, p.hold.Age))
	}
	reg.MustRegister(p.sup.Metrics(), server.Collector(), newGauges(o.StateDir, id, p.sup, p.keys, p.hooks), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if certificates.ends != nil {
		reg.MustRegister(certificates.expiry())
	}
	return server
}

// mayUse reports whether an API key may use the sandboxes of the key that owns them.
func mayUse(keys *auth.Keys) func(apiKey, owner string) bool {
	return func(text, owner string) bool {
		key, err := keys.Check(text)
		return err == nil && auth.May(key, auth.Use) && auth.Sees(key, owner)
	}
}

// controlPlane answers what is for no sandbox.
func controlPlane(ctx context.Context, o Options, p parts, reg *prometheus.Registry, dashboard http.Handler) http.Handler {
	timed := newAPITimes(reg)
	control := timed.of("e2b", e2b.New(e2b.Options{
		Sandboxes: p.view, Volumes: p.sup, Webhooks: p.hooks, Templates: p.sup, Snapshots: p.sup, Builds: p.builder, Sign: p.sup.Derive, Auth: p.keys, Keys: p.keys, Domain: o.Domain, LocalDomain: localDomain(o.Listen), MaxTimeout: o.MaxTimeout, DefaultTimeout: o.DefaultTimeout, Log: o.Log,
	}))
	files := timed.of("volumes", volumecontent.New(volumecontent.Options{Volumes: p.sup, Keys: p.keys, Log: o.Log}))
	var mover v1.Mover
	if p.others != nil {
		mover = p.others
	}
	native := timed.of("v1", v1.New(v1.Options{Sandboxes: p.view, Volumes: p.sup, Templates: p.sup, Snapshots: p.sup, Builds: p.builder, Services: p.sup, Publisher: p.publisher, Traces: p.sup, Diaries: p.sup, Auth: p.keys, Keys: p.keys, SSHKeys: p.sshKeys, Secrets: p.secrets, Audit: p.calls, Servers: p.store, Mover: mover, Doctor: newExaminer(o.StateDir, p.sup, o.first).Findings, Room: p.room, Log: o.Log, Domain: o.linkDomain(), Isolation: p.sup.Capabilities().Isolation}))
	ofSandbox0 := timed.of("sandbox0", sandbox0.New(ctx, sandbox0.Options{Sandboxes: p.view, Templates: p.sup, Snapshots: p.sup, Builds: p.builder, Volumes: p.sup, Services: p.sup, Contexts: p.store, Auth: p.keys, Domain: o.linkDomain(), SSHListen: o.SSHListen, Room: p.room, MaxTimeout: o.MaxTimeout, Log: o.Log}))
	ofMitos := timed.of("mitos", mitos.New(mitos.Options{Sandboxes: p.view, Templates: p.sup, Snapshots: p.sup, Builds: p.builder, Settings: p.store, Auth: p.keys, Domain: o.linkDomain(), MaxTimeout: o.MaxTimeout, Log: o.Log, Room: p.room, Judge: func(req supervisor.CreateRequest) error { return supervisor.Judge(p.sup, req) }}))
	metrics := metricsHandler(reg, p.keys)
	shared := func(h http.Handler) http.Handler { return h }
	if p.others != nil {
		shared = p.others.Handler
	}
	control, files, native, ofSandbox0, ofMitos = shared(control), shared(files), shared(native), shared(ofSandbox0), shared(ofMitos)
	bodies := httpapi.NewBodies(p.room)
	p.sup.CountHeld(p.room)
	all := p.calls.Handler(paced(ctx, bodies.Bound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case v1.Owns(r):
			native.ServeHTTP(w, r)
		case sandbox0.Owns(r):
			ofSandbox0.ServeHTTP(w, r)
		case mitos.Owns(r):
			ofMitos.ServeHTTP(w, r)
		case ui.Owns(r):
			dashboard.ServeHTTP(w, r)
		case ui.AsksFront(r):
			ui.Front(w, r)
		case volumecontent.Owns(r):
			files.ServeHTTP(w, r)
		case r.URL.Path == "/healthz":
			// The listener answers only once everything is recovered.
			fmt.Fprintln(w, "ok")
		case r.URL.Path == "/readyz":
			answerReady(w, r, o.first, p.sup.Ready)
		case r.URL.Path == "/metrics":
			metrics.ServeHTTP(w, r)
		default:
			control.ServeHTTP(w, r)
		}
	}))))
	if p.others != nil {
		all = p.others.Peers(all)
	}
	return all
}

// paced returns a handler that lets clients wait for the end of their answers who are
// refused again and again: by their key, or else by their address.
func paced(ctx context.Context, h http.Handler) http.Handler {
	refusals := held.NewRefusals()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		key, status := audit.Answered(r.Context())
		if status < http.StatusBadRequest {
			return
		}
		if key == "" {
			key = "address " + held.AddressOf(r.RemoteAddr)
		}
		until := ctx
		if r.ProtoMajor == 2 {
			until = r.Context()
		}
		refusals.Wait(until, key)
	})
}

// localDomain is the domain under which a server is reached by host name from
// its own machine: resolvers know all names below localhost.
func localDomain(listen string) string {
	_, port, err := net.SplitHostPort(listen)
	if err != nil || port == "" {
		return "localhost"
	}
	return "localhost:" + port
}

// metricsHandler serves what the server counts, over all sandboxes, to API keys
// that see all of them. Where a request comes from proves nothing: a proxy on
// this machine, or a sandbox's neighbour, comes from the loopback address too.
func metricsHandler(reg prometheus.Gatherer, keys *auth.Keys) http.Handler {
	h := promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, err := keys.Check(auth.FromHeader(r.Header))
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		if !auth.SeesAll(key) {
			http.Error(w, "this API key sees its own sandboxes only", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// share returns what of the host's root sandboxes see besides its system.
func (o Options) share() []string {
	if o.ShareOpt {
		return []string{template.Opt}
	}
	return nil
}

func supervise(ctx context.Context, o Options, st *store.SQL, copies blobs.Store, hold *tenancy, keys *auth.Keys, world outside.World, closers *cleanups) (*supervisor.Supervisor, *publish.Publisher, error) {
	layers, err := layer.Open(o.StateDir)
	if err != nil {
		return nil, nil, err
	}
	mounting, err := layers.Probe()
	if err != nil {
		return nil, nil, err
	}
	o.Log.Info("overlayfs works", "way", mounting.Way, "options", mounting.Options, "missing", mounting.Missing)
	templates, err := template.Open(templatesIn(o.StateDir))
	if err != nil {
		return nil, nil, err
	}
	sum, err := agentbin.Sum()
	if err != nil {
		return nil, nil, err
	}
	if _, err := templates.BuildBase(template.Agent{Sum: sum, Program: agentbin.Program}, o.share()...); err != nil {
		return nil, nil, err
	}
	if err := templates.Refresh(); err != nil { // the others are as good as ever
		o.Log.Error("a template cannot be used with this server's agent", "err", err)
	}
	most, err := mostLimits()
	if err != nil {
		return nil, nil, err
	}
	kept := buildsAt(o.StateDir)
	driver, err := drivers.Default().Open(ctx, runtimesIn(o.StateDir), kept, drivers.Options{
		Warm:      drivers.Warm{Count: o.WarmRuntimes, Spec: launch.Spec(defaultLimits(most))},
		DiskRates: drivers.DiskRates{Read: int64(o.DiskReadMiB) << 20, Write: int64(o.DiskWriteMiB) << 20},
		Log:       o.Log,
	})
	if err != nil {
		return nil, nil, err
	}
	closers.add(driver.Close)
	mounts := mountsIn(o.StateDir)
	if err := os.MkdirAll(mounts, 0o700); err != nil {
		return nil, nil, err
	}
	volumes, err := volume.Open(volumesIn(o.StateDir), template.UserID)
	if err != nil {
		return nil, nil, err
	}
	if early, ok := driver.(runtime.EarlyRestorer); o.EarlyWakeMiB > 0 && (!ok || !early.RestoresEarly("")) {
		o.Log.Warn("--early-wake has no effect: it needs a drowse from make build, which every user may execute")
	}
	if changes, ok := driver.(runtime.ChangeDriver); o.DeltaPausesMiB > 0 && ok && !changes.CapturesChanges() {
		o.Log.Warn("--delta-pauses has no effect: it needs a drowse from make build, which every user may execute")
	}
	traced, err := sendTraces(ctx, o, closers)
	if err != nil {
		return nil, nil, err
	}
	identity := ""
	if copies != nil {
		if identity, err = store.Identity(ctx, st); err != nil {
			return nil, nil, err
		}
	}
	sup, err := supervisor.New(ctx, supervisor.Options{
		Store: st, Layers: layers, Templates: templates, Volumes: volumes, Builds: kept, Driver: driver, RunDir: mounts,
		Ballast: filepath.Join(o.StateDir, "ballast"), BackupNeeds: func(path string) bool { return backup.Needs(o.StateDir, path) },
		Limits: defaultLimits(most), MostLimits: most, Defaults: o.defaults(), Log: o.Log, MaxTimeout: o.MaxTimeout,
		WakeTimeout: o.WakeTimeout, WakeQueue: o.WakeQueue, Drain: o.Drain, MaxRunning: o.MaxRunning, Images: checkpoint.Ways{Early: int64(o.EarlyWakeMiB) << 20, Deltas: int64(o.DeltaPausesMiB) << 20}, KeyLimits: keys.Limits, KeyLives: keys.Lives, VolumeDiskMiB: o.VolumeDiskMiB,
		TrialTemplate: template.Host, World: world, SampleEvery: sampleEvery, DiskEvery: diskEvery, ActivityEvery: activityEvery, ConfineEvery: 500 * time.Millisecond,
		LogDir: filepath.Join(o.StateDir, "logs"), Traced: traced, LightSleep: o.lightSleep(), Lease: hold.lease(), OnFenced: hold.tell(o.fenced),
		Blobs: copies, BlobPrefix: identity, Replicated: o.Durability == settings.Replicated,
	})
	if err != nil {
		return nil, nil, err
	}
	if hold != nil {
		if err := hold.share(ctx, st, sup, copies != nil); err != nil {
			return nil, nil, err
		}
	}
	closers.add(func() error {
		after := context.WithoutCancel(ctx)
		if hold.isOver() {
			o.OnShutdown = "keep" // nothing can be recorded of a pause
		}
		err := stop(after, o, sup, hold.isOver())
		switch {
		case hold.isOver():
			err = errors.Join(err, tenure.End(after, driver, mounts))
		case hold != nil:
			hold.idle = !runsOn(after, driver)
		}
		return err
	})
	closers.add(background(ctx, func(ctx context.Context) { // last: it takes all cores for a moment
		if err := template.LookAhead(ctx, templates); err != nil && ctx.Err() == nil {
			o.Log.Warn("the host's directories could not be looked at", "err", err)
		}
	}))
	return sup, publish.New(publish.Options{Layers: layers, Templates: templates, Snapshots: sup, Log: o.Log}), nil
}

// lightSleep returns how long frozen runtimes of paused sandboxes stay.
func (o Options) lightSleep() lightsleep.Options {
	return lightsleep.Options{
		Most: o.LightSleep, Memory: int64(o.LightSleepMiB) << 20, Floor: int64(o.LightFloorMiB) << 20, Log: o.Log,
	}
}

// runsOn reports whether sandboxes have a runtime.
func runsOn(ctx context.Context, driver runtime.Driver) bool {
	ids, err := driver.List(ctx)
	return err != nil || len(ids) > 0
}

// stop stops the supervisor, which nobody calls any more.
func stop(ctx context.Context, o Options, sup *supervisor.Supervisor, over bool) error {
	within, cancel := context.WithTimeout(ctx, o.ShutdownTimeout)
	defer cancel()
	if o.OnShutdown == "pause" {
		if left := sup.PauseAll(within); left > 0 {
			o.Log.Warn("some sandboxes could not be paused, and go on", "count", left)
		}
	}
	if !over {
		if err := sup.AwaitCopies(within); err != nil {
			o.Log.Warn("some sandboxes are not in object storage as they sleep: they wake when this server is back", "err", err)
		}
	}
	stopping, cancel := context.WithTimeout(ctx, shutdownGrace)
	defer cancel()
	return sup.Stop(stopping)
}

// untilAnswered returns a context for as long as requests under way may take: a moment, and that
// after the last sandbox has started that some may wait for.
func untilAnswered(ctx context.Context, starting func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, startsGrace+stopGrace)
	go func() {
		defer cancel()
		for last := time.Now(); time.Since(last) < stopGrace && insist.Sleep(ctx, stopGrace/20); {
			if starting() {
				last = time.Now()
			}
		}
	}()
	return ctx, cancel
}

// serveUntil serves until ctx ends. Requests in flight get the time of untilAnswered to end;
// streams, which have no end of their own, are broken off. The service manager
// learns from sup, after the trial of the start, when the server is ready and that it
// is well.
func serveUntil(ctx context.Context, log *slog.Logger, ln net.Listener, server *edge.Server, sup health, first firstTrial, ready, leave func()) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	go func() {
		if first.wait(ctx) && awaitReady(ctx, log, sup.Ready) {
			log.Info("server ready", "addr", ln.Addr().String(), "version", version.String())
			ready()
			notify(log, daemon.SdNotifyReady+"\nSTATUS=ready")
			watch(ctx, log, sup.Check)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("server stopping")
	notify(log, daemon.SdNotifyStopping)
	leave()
	stop, cancel := untilAnswered(context.WithoutCancel(ctx), sup.Starting)
	defer cancel()
	if err := server.Shutdown(stop); err != nil && stop.Err() == nil {
		return err
	}
	return ignoreClosed(ln.Close())
}

// background runs f until ctx ends or the function that it returns is called,
// which waits for it.
func background(ctx context.Context, f func(context.Context)) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	return func() error {
		cancel()
		<-done
		return nil
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// cleanups is a stack of what must be undone, last first.
type cleanups []func() error

func (c *cleanups) add(f func() error) { *c = append(*c, f) }

func (c *cleanups) run() error {
	var errs []error
	for i := len(*c) - 1; i >= 0; i-- {
		errs = append(errs, (*c)[i]())
	}
	return errors.Join(errs...)
}
