package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/agent/services"
	"github.com/drowse-dev/drowse/internal/service"
)

// serviceStarter starts the processes of services, and knows their sessions. What
// leaves its session is no longer of the service: it is ended by nobody, and counts
// as work.
type serviceStarter struct {
	agent *Agent

	mu       sync.Mutex
	sessions map[int]bool
}

func newServiceStarter(a *Agent) *serviceStarter {
	return &serviceStarter{agent: a, sessions: map[int]bool{}}
}

// leaders returns the processes that began a session of a service in which
// something may still run.
func (s *serviceStarter) leaders() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	pids := make([]int, 0, len(s.sessions))
	for pid := range s.sessions {
		pids = append(pids, pid)
	}
	return pids
}

// Start implements services.Starter.
func (s *serviceStarter) Start(spec service.Service, out io.Writer) (services.Process, error) {
	user, err := s.agent.user(spec.User)
	if err != nil {
		return nil, err
	}
	cmd, err := s.agent.prepare(serviceConfig(spec), user)
	if err != nil {
		return nil, err
	}
	cmd.quiet = true
	var c *child
	var output *os.File
	s.agent.observer.unseen(func() {
		if c, output, err = s.fork(cmd); err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.sessions[c.pid] = true
		}
	})
	if err != nil {
		return nil, err
	}
	p := &serviceProcess{starter: s, child: c, done: make(chan struct{})}
	go p.follow(output, out)
	return p, nil
}

// fork starts a command with one pipe for all that it says, in the order in which
// it says it.
func (s *serviceStarter) fork(cmd *command) (*child, *os.File, error) {
	var files childFiles
	defer files.close()
	if err := files.null(0); err != nil {
		return nil, nil, err
	}
	output, err := files.pipe(1, cmd.user.uid)
	if err != nil {
		return nil, nil, err
	}
	in, out := uintptr(files.fd[0]), uintptr(files.fd[1])
	c, err := s.agent.reaper.fork(cmd, []uintptr{in, out, out}, false)
	if err != nil {
		output.Close()
		return nil, nil, err
	}
	return c, output, nil
}

// serviceConfig returns the command of a service as a client would ask for it.
func serviceConfig(spec service.Service) *processpb.ProcessConfig {
	env := map[string]string{}
	if spec.Port != 0 {
		env["PORT"] = strconv.Itoa(spec.Port)
	}
	for name, value := range spec.Env {
		env[name] = value
	}
	config := &processpb.ProcessConfig{Envs: env}
	if spec.Cwd != "" {
		config.Cwd = &spec.Cwd
	}
	if spec.Shell != "" {
		config.Cmd, config.Args = askedShell, []string{"-c", spec.Shell}
	} else {
		config.Cmd, config.Args = spec.Command[0], spec.Command[1:]
	}
	return config
}

// serviceProcess implements services.Process.
type serviceProcess struct {
	starter *serviceStarter
	child   *child
	done    chan struct{}
}

func (p *serviceProcess) PID() int              { return p.child.pid }
func (p *serviceProcess) Done() <-chan struct{} { return p.done }

func (p *serviceProcess) Err() error {
	end := endEvent(p.child.status).GetEnd()
	if end.GetExited() && end.GetExitCode() == 0 {
		return nil
	}
	return errors.New(end.GetStatus())
}

func (p *serviceProcess) Stop(kill bool) {
	if kill {
		_, _ = p.starter.agent.reaper.signal(p.child, syscall.SIGKILL, true)
		return
	}
	_, _ = p.starter.agent.reaper.signal(p.child, syscall.SIGTERM, true)
}

// follow reads the output until the process has ended, and ends what is left of its
// session: the next one needs its ports.
func (p *serviceProcess) follow(output *os.File, out io.Writer) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		copyOutput(out, output)
	}()
	<-p.child.done
	p.sweep()
	_ = output.SetReadDeadline(time.Now().Add(pipeGrace))
	<-read
	output.Close()
	p.starter.mu.Lock()
	delete(p.starter.sessions, p.child.pid)
	p.starter.mu.Unlock()
	close(p.done)
}

// copyOutput is io.Copy with a buffer for a pipe.
func copyOutput(out io.Writer, f *os.File) {
	buf := make([]byte, pipeChunk)
	for {
		n, err := f.Read(buf)
		_, _ = out.Write(buf[:n])
		if err != nil {
			return
		}
	}
}

// sweeps is how often it is looked for processes of a session that start others
// while they are ended.
const sweeps = 10

// sweep ends what runs in the session of a process that has ended.
func (p *serviceProcess) sweep() {
	var proc procReader
	if proc.open() != nil {
		return
	}
	defer proc.close()
	for range sweeps {
		var left []int
		pids, _ := proc.pids() // what can be read of them
		for _, pid := range pids {
			if stat, ok := proc.stat(pid); ok && stat.session == p.child.pid && !stat.gone() {
				left = append(left, pid)
			}
		}
		if len(left) == 0 {
			return
		}
		p.starter.agent.observer.ignore(left)
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-time.After(sweepEvery)
	}
}

// sweepEvery is how long processes that were killed have to be gone.
const sweepEvery = 10 * time.Millisecond

// serviceCalls are the endpoints of the host about services.
type serviceCalls struct{ agent *Agent }

func (c serviceCalls) report(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseInt(r.URL.Query().Get(agentapi.ParamAfter), 10, 64) // what is no number is none
	writeJSON(w, http.StatusOK, c.agent.manager.Report(after))
}

func (c serviceCalls) apply(w http.ResponseWriter, r *http.Request) {
	var list []service.Service
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(&list); err != nil {
		writeError(w, faultf(invalid, "body of %s: %w", agentapi.PathServices, err))
		return
	}
	c.agent.manager.Apply(list)
	writeJSON(w, http.StatusOK, c.agent.manager.Report(0))
}

func (c serviceCalls) log(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	after, _ := strconv.ParseInt(query.Get(agentapi.ParamAfter), 10, 64)
	most, _ := strconv.Atoi(query.Get(agentapi.ParamLines))
	lines, ok := c.agent.manager.Log(query.Get(agentapi.ParamService), after, cmp.Or(max(most, 0), service.MaxLines))
	if !ok {
		noService(w, r)
		return
	}
	writeJSON(w, http.StatusOK, service.Lines{Lines: append([]service.Line{}, lines...)})
}

// ready answers once the service is ready, or will never be, or the host has gone.
func (c serviceCalls) ready(w http.ResponseWriter, r *http.Request) {
	status, ok := c.agent.manager.Await(r.Context(), r.URL.Query().Get(agentapi.ParamService))
	if !ok {
		noService(w, r)
		return
	}
	writeJSON(w, http.StatusOK, status)
}

func (c serviceCalls) restart(w http.ResponseWriter, r *http.Request) {
	if !c.agent.manager.Restart(r.URL.Query().Get(agentapi.ParamService)) {
		noService(w, r)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func noService(w http.ResponseWriter, r *http.Request) {
	writeStatus(w, http.StatusNotFound, "there is no service "+strconv.Quote(r.URL.Query().Get(agentapi.ParamService)))
}
