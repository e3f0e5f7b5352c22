package agent

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/interpreter"
)

// kernels is where the code interpreter's kernels run: under the sandbox's
// default user, with the environment that commands get.
type kernels struct {
	agent *Agent
	dir   string // of their programs

	copies atomic.Int64

	mu   sync.Mutex
	pids map[int]bool
}

func newKernels(a *Agent, dir string) *kernels {
	return &kernels{agent: a, dir: dir, pids: map[int]bool{}}
}

// running returns the pids of the kernels. One that waits for its next cell is
// no work, and one that runs a cell has a client who waits for it; threads that
// a cell leaves behind count while they work, and processes like all others.
func (ks *kernels) running() map[int]bool {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	pids := make(map[int]bool, len(ks.pids))
	for pid := range ks.pids {
		pids[pid] = true
	}
	return pids
}

// Copies implements interpreter.Host.
func (ks *kernels) Copies() int64 { return ks.copies.Load() }

// Environment implements interpreter.Host.
func (ks *kernels) Environment() (map[string]string, error) {
	user, err := ks.agent.user("")
	if err != nil {
		return nil, err
	}
	return ks.agent.environment(user, nil), nil
}

// Look implements interpreter.Host.
func (ks *kernels) Look(program string) (string, bool) {
	path := ks.agent.path
	if env, err := ks.Environment(); err == nil {
		path = env["PATH"]
	}
	file, err := lookCommand(program, path, "/")
	if err != nil || !strings.Contains(program, "/") {
		return file, err == nil
	}
	info, err := os.Stat(file)
	return file, err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// JupyterDirs implements interpreter.Host.
func (ks *kernels) JupyterDirs() []string {
	env, err := ks.Environment()
	if err != nil {
		return nil
	}
	return interpreter.JupyterDirs(env)
}

// Start implements interpreter.Host.
func (ks *kernels) Start(c interpreter.Command) (interpreter.Process, error) {
	user, err := ks.agent.user("")
	if err != nil {
		return nil, err
	}
	dir, err := ks.agent.directory(c.Dir, user)
	if err != nil {
		return nil, err
	}
	file, err := ks.install(c, user)
	if err != nil {
		return nil, err
	}
	argv := []string{c.Path} // in full, by which Python knows its environment
	for _, arg := range c.Args {
		argv = append(argv, strings.ReplaceAll(arg, interpreter.FilePath, file))
	}
	files := make([]uintptr, len(c.Files))
	for i, f := range c.Files {
		files[i] = f.Fd()
		if i > 0 {
			// As in childFiles.pipe.
			_ = unix.Fchown(int(files[i]), int(user.uid), -1)
		}
	}
	child, err := ks.agent.reaper.fork(&command{
		path: c.Path,
		argv: argv,
		env:  envList(c.Env),
		dir:  dir,
		user: user,
	}, files, false)
	if err != nil {
		if c.Secret {
			os.Remove(file)
		}
		return nil, err
	}
	ks.add(child)
	if c.Secret {
		go func() {
			<-child.done
			os.Remove(file)
		}()
	}
	return kernelProcess{ks.agent.reaper, child}, nil
}

func (ks *kernels) add(c *child) {
	ks.mu.Lock()
	ks.pids[c.pid] = true
	ks.mu.Unlock()
	go func() {
		<-c.done
		ks.mu.Lock()
		defer ks.mu.Unlock()
		delete(ks.pids, c.pid)
	}()
}

// install writes a kernel's file, unless it is there.
func (ks *kernels) install(c interpreter.Command, user *account) (string, error) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	file := filepath.Join(ks.dir, c.FileName)
	if data, err := os.ReadFile(file); err == nil && string(data) == string(c.File) {
		return file, nil
	}
	if err := os.MkdirAll(ks.dir, 0o755); err != nil {
		return "", err
	}
	if !c.Secret {
		return file, os.WriteFile(file, c.File, 0o644)
	}
	if err := os.WriteFile(file, c.File, 0o600); err != nil {
		return "", err
	}
	return file, os.Chown(file, int(user.uid), int(user.gid))
}

// kernelProcess implements interpreter.Process.
type kernelProcess struct {
	reaper *reaper
	child  *child
}

func (p kernelProcess) Interrupt() { _, _ = p.reaper.signal(p.child, syscall.SIGINT, true) }
func (p kernelProcess) Kill()      { _, _ = p.reaper.signal(p.child, syscall.SIGKILL, true) }

func (p kernelProcess) Stop()     { _, _ = p.reaper.signal(p.child, syscall.SIGSTOP, true) }
func (p kernelProcess) Continue() { _, _ = p.reaper.signal(p.child, syscall.SIGCONT, true) }

func (p kernelProcess) Done() <-chan struct{} { return p.child.done }

func (p kernelProcess) Status() string {
	<-p.child.done
	return endEvent(p.child.status).GetEnd().GetStatus()
}

// watchCells tells the observer when a kernel works for a client who waits.
func watchCells(o *observer, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer reportPanic(r)
		if r.URL.Path != interpreter.PathExecute {
			next.ServeHTTP(w, r)
			return
		}
		o.lookSoon() // a kernel that is new has nothing to compare with
		next.ServeHTTP(w, r)
		o.cellEnded()
	})
}
