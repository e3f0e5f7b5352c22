package agent

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/interpreter"
)

// kernels is where the code interpreter's kernels run: under the sandbox's
// default user, with the environment that commands get.
type kernels struct {
	agent *Agent
	dir   string // of their programs

	mu   sync.Mutex
	pids map[int]bool
}

func newKernels(a *Agent, dir string) *kernels {
	return &kernels{agent: a, dir: dir, pids: map[int]bool{}}
}

// running returns the pids of the kernels. One that waits for its next cell is
// no work, and one that runs a cell has a client who waits for it; what a cell
// starts counts like everything else.
func (ks *kernels) running() map[int]bool {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	pids := make(map[int]bool, len(ks.pids))
	for pid := range ks.pids {
		pids[pid] = true
	}
	return pids
}

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
	return file, err == nil
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
	script, err := ks.install(c.ScriptName, c.Script)
	if err != nil {
		return nil, err
	}
	files := make([]uintptr, len(c.Files))
	for i, f := range c.Files {
		files[i] = f.Fd()
		if i > 0 {
			// As in childFiles.pipe.
			_ = unix.Fchown(int(files[i]), int(user.uid), -1)
		}
	}
	child, err := ks.agent.fork(&command{
		path: c.Path,
		argv: append(append([]string{filepath.Base(c.Path)}, c.Args...), script),
		env:  envList(c.Env),
		dir:  dir,
		user: user,
	}, files, false)
	if err != nil {
		return nil, err
	}
	ks.add(child)
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

// install writes a kernel's program, unless it is there.
func (ks *kernels) install(name string, script []byte) (string, error) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	file := filepath.Join(ks.dir, name)
	if data, err := os.ReadFile(file); err == nil && string(data) == string(script) {
		return file, nil
	}
	if err := os.MkdirAll(ks.dir, 0o755); err != nil {
		return "", err
	}
	return file, os.WriteFile(file, script, 0o644)
}

// kernelProcess implements interpreter.Process.
type kernelProcess struct {
	reaper *reaper
	child  *child
}

func (p kernelProcess) Interrupt() { _, _ = p.reaper.signal(p.child, syscall.SIGINT, true) }
func (p kernelProcess) Kill()      { _, _ = p.reaper.signal(p.child, syscall.SIGKILL, true) }

func (p kernelProcess) Done() <-chan struct{} { return p.child.done }

func (p kernelProcess) Status() string {
	<-p.child.done
	return endEvent(p.child.status).GetEnd().GetStatus()
}
