package fakeserver

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/interpreter"
)

// runCode is the real code interpreter, with kernels that are processes of the
// host.
func (a *agent) runCode(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == interpreter.PathExecute && r.Header.Get(agentapi.HeaderAccessToken) != a.box.token {
		answer(w, http.StatusUnauthorized, map[string]any{"code": 401, "message": "the access token is missing or wrong"})
		return
	}
	a.code.ServeHTTP(w, r)
}

// kernels is what the interpreter runs on.
type kernels struct{ agent *agent }

var _ interpreter.Host = kernels{}

// Environment implements interpreter.Host.
func (k kernels) Environment() (map[string]string, error) {
	return map[string]string{"PATH": os.Getenv("PATH"), "HOME": k.agent.home, "HISTFILE": "/dev/null"}, nil
}

// JupyterDirs implements interpreter.Host.
func (k kernels) JupyterDirs() []string { return nil }

// Copies implements interpreter.Host.
func (k kernels) Copies() int64 { return 0 }

// Look implements interpreter.Host.
func (k kernels) Look(program string) (string, bool) {
	path, err := exec.LookPath(program)
	return path, err == nil
}

// Start implements interpreter.Host.
func (k kernels) Start(c interpreter.Command) (interpreter.Process, error) {
	file := filepath.Join(k.agent.root, c.FileName)
	if err := os.WriteFile(file, c.File, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(c.Path)
	for _, arg := range c.Args {
		cmd.Args = append(cmd.Args, strings.ReplaceAll(arg, interpreter.FilePath, file))
	}
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Dir = k.agent.home
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = c.Files[0], c.Files[1], c.Files[2], c.Files[3:]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &kernel{cmd, make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
	}()
	return p, nil
}

// kernel is a process that leads a group.
type kernel struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (k *kernel) signal(sig syscall.Signal) {
	select {
	case <-k.done:
	default:
		_ = syscall.Kill(-k.cmd.Process.Pid, sig)
	}
}

// Interrupt and the others implement interpreter.Process.
func (k *kernel) Interrupt()            { k.signal(syscall.SIGINT) }
func (k *kernel) Kill()                 { k.signal(syscall.SIGKILL) }
func (k *kernel) Stop()                 { k.signal(syscall.SIGSTOP) }
func (k *kernel) Continue()             { k.signal(syscall.SIGCONT) }
func (k *kernel) Done() <-chan struct{} { return k.done }
func (k *kernel) Status() string        { <-k.done; return k.cmd.ProcessState.String() }
