// Package agent is PID 1 of every sandbox. It serves E2B's envd contract on
// one port: starting processes, moving files, describing the file system; and
// it reaps what the sandbox's processes leave behind.
//
// It promises:
//
//   - A client that goes away changes nothing: a process started for it runs
//     on, under its deadline, and can be attached to again.
//   - Of one process, every subscriber sees start first, then output in the
//     order it was read, then one end; no output is lost while a client reads
//     at all (see output for what happens to one that does not).
//   - A pid is signalled only while it is the process it was.
//   - Nothing of the agent's own environment reaches a child except PATH.
//   - Deadlines count time awake: a sandbox that slept through one wakes with
//     its processes.
//   - Work is told from idling by evidence, and in doubt there is work: see
//     observer.
//
// Files are handled with the rights of root, whoever is named: the user says
// below whose home a relative path is, and whose what is new will be. Who may
// call the API at all may name root.
//
// It leaves to the host: who may reach the port (the internal endpoint /init
// authenticates itself, but is no business of the public), limits of memory,
// disk and processes, and the network. It trusts neither its clients nor the
// processes it starts: bodies, headers, queues and waits are bounded.
//
// All methods of Agent may be called concurrently.
package agent

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/agent/services"
	"github.com/drowse-dev/drowse/internal/interpreter"
)

//go:generate ./proto/generate.sh

// Options says where an Agent runs. The zero value is right for PID 1 of a
// sandbox except for the host name.
type Options struct {
	// InitSecret authenticates the host; if it is empty the first /init says
	// what it is.
	InitSecret string

	// SetHostname names the sandbox at the first /init; nil does nothing.
	SetHostname func(name string) error

	// ReapAll makes the agent wait for every child of the process, as PID 1
	// must. It is incompatible with os/exec in the same process.
	ReapAll bool

	// Listener replaces the listener on agentapi.Port. Without TunnelListener
	// there are no tunnels then.
	Listener net.Listener

	// TunnelListener replaces the listener on agentapi.TunnelPort, and HostAddr
	// agentapi.HostAddr, from where it takes connections.
	TunnelListener net.Listener
	HostAddr       string

	// InterpreterListener replaces the listener on interpreter.Port; with
	// Listener and without this one there is no code interpreter.
	InterpreterListener net.Listener

	// KernelDir is where the programs of its kernels are written.
	KernelDir string

	// Exempt returns the pids of processes that the template started. They and
	// their trees are no work; nil is none. It must not call the Agent.
	Exempt func() []int

	// Path is PATH for children; a usual one if empty.
	Path string

	// Root is where the files of the system are; the root directory if empty.
	Root string

	// PasswdFile, GroupFile and GenerationFile replace /etc/passwd,
	// /etc/group and agentapi.GenerationFile.
	PasswdFile, GroupFile, GenerationFile string
}

// Agent serves one sandbox.
type Agent struct {
	options   Options
	path      string
	settings  *settings
	host      host
	names     names
	reaper    *reaper
	processes *processes
	observer  *observer
	leases    *leases
	watches   *watches
	kernels   *kernels
	manager   *services.Manager // of the sandbox's services
	journal   journal
	usage     cpuUsage
	routes    map[string]route
	services  map[string]http.Handler
}

// New returns an Agent that does nothing until Run.
func New(options Options) *Agent {
	setDefault(&options.PasswdFile, "/etc/passwd")
	setDefault(&options.GroupFile, "/etc/group")
	setDefault(&options.GenerationFile, agentapi.GenerationFile)
	setDefault(&options.Path, defaultPath)
	setDefault(&options.HostAddr, agentapi.HostAddr)
	setDefault(&options.KernelDir, agentapi.KernelDir)
	a := &Agent{
		options:   options,
		path:      options.Path,
		settings:  newSettings(),
		host:      host{secret: options.InitSecret, setName: options.SetHostname},
		reaper:    newReaper(options.ReapAll),
		processes: newProcesses(),
		observer:  newObserver(options.ReapAll, options.Exempt),
		leases:    newLeases(),
		watches:   newWatches(),
	}
	a.journal.settings = a.settings
	a.kernels = newKernels(a, options.KernelDir)
	starter := newServiceStarter(a)
	a.manager = services.New(starter)
	a.observer.serving = starter.leaders
	a.observer.kernels = a.kernels.running
	a.reaper.ended = a.observer.processEnded
	a.routes = a.restRoutes()
	a.services = a.rpcServices()
	return a
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

const (
	headerTimeout = time.Minute
	idleTimeout   = 10 * time.Minute
	maxHeader     = 64 << 10
	stopTimeout   = 2 * time.Second
)

// Run serves until ctx is done or a listener fails. Processes that were
// started are not ended: as PID 1 the agent takes them with it.
func (a *Agent) Run(ctx context.Context) error {
	host, err := netip.ParseAddr(a.options.HostAddr)
	if err != nil {
		return err
	}
	l, err := a.listeners()
	if err != nil {
		return err
	}
	stop, reaped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reaped)
		a.reaper.run(stop)
	}()
	defer func() { close(stop); <-reaped }()

	services := []func(context.Context) error{
		func(ctx context.Context) error { return serve(ctx, l.api, a) },
	}
	if l.tunnel != nil {
		services = append(services, func(ctx context.Context) error { return newTunnels(host).run(ctx, l.tunnel) })
	}
	if l.interpreter != nil {
		services = append(services, func(ctx context.Context) error { return a.interpret(ctx, l.interpreter) })
	}
	return runAll(ctx, services)
}

// runAll runs the services until one of them ends, which ends the others.
func runAll(ctx context.Context, services []func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(services))
	for _, service := range services {
		go func() {
			defer cancel()
			ended <- service(ctx)
		}()
	}
	var errs []error
	for range services {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// interpret serves the code interpreter. Its kernels end with it.
func (a *Agent) interpret(ctx context.Context, listener net.Listener) error {
	server := interpreter.New(a.kernels, log.Printf)
	defer server.Close()
	return serve(ctx, listener, watchCells(a.observer, a.guardCode(server)))
}

// guardCode lets code into a secured sandbox only with its token: its port may
// be open to everybody, and browsers send to any. Clients send the token with
// code, and with nothing else.
func (a *Agent) guardCode(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == interpreter.PathExecute && !a.tokenMatches(r) {
			refuseToken(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// listeners are the ports of an agent; one that is nil is not served.
type listeners struct{ api, tunnel, interpreter net.Listener }

// listeners returns those of the options, or all on their real ports.
func (a *Agent) listeners() (listeners, error) {
	o := a.options
	if o.Listener != nil {
		return listeners{o.Listener, o.TunnelListener, o.InterpreterListener}, nil
	}
	var l listeners
	for _, want := range []struct {
		port int
		into *net.Listener
	}{{agentapi.Port, &l.api}, {agentapi.TunnelPort, &l.tunnel}, {interpreter.Port, &l.interpreter}} {
		listener, err := listen(want.port)
		if err != nil {
			l.close()
			return listeners{}, err
		}
		*want.into = listener
	}
	return l, nil
}

func (l listeners) close() {
	for _, listener := range []net.Listener{l.api, l.tunnel, l.interpreter} {
		if listener != nil {
			listener.Close()
		}
	}
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		// What clients do wrong is no news; our own panics the handlers report.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	stopped := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(stopped)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(limit) != nil {
			server.Close()
		}
	})
	err := server.Serve(greedyListener{listener})
	if !unhook() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// listen takes both address families where the kernel has both. Connections are not probed:
// whoever connects is on this machine, and probes its end. That would be four system calls
// for each, one of which a wake waits for.
func listen(port int) (net.Listener, error) {
	address, unprobed := ":"+strconv.Itoa(port), net.ListenConfig{KeepAlive: -1}
	listener, err := unprobed.Listen(context.Background(), "tcp", address)
	if errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return unprobed.Listen(context.Background(), "tcp4", address)
	}
	return listener, err
}

// Main is the whole of the program that runs as PID 1.
func Main(ctx context.Context) error {
	syscall.Umask(0o022)
	if os.Getpid() == 1 {
		makeRunDirs("/", usualRunDirs, nil)
		go makeInstalledRunDirs("/") // reads many files, for which no start waits
	}
	return New(Options{
		SetHostname: nameHost,
		ReapAll:     os.Getpid() == 1,
		Path:        os.Getenv("PATH"),
	}).Run(ctx)
}
