package agent

import (
	"errors"
	"net/http"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// host is what the agent learns from the first /init. A runtime is made before
// it is known whose it will be, so its environment cannot say. Whoever comes
// first is the host: until it has, only the host knows of the sandbox, and no
// process runs in it but the agent.
type host struct {
	mu      sync.Mutex
	secret  string
	setName func(string) error // nil once it was called
}

// knows reports whether secret is the host's.
func (h *host) knows(secret string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.secret != "" && equalSecret(secret, h.secret)
}

// meet makes the first caller that has a secret the host.
func (h *host) meet(secret string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.secret == "" {
		h.secret = secret
	}
}

// succeed makes secret the host's, if there is one. Who says so was the host
// until now.
func (h *host) succeed(secret string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if secret != "" {
		h.secret = secret
	}
}

// name gives the sandbox its host name, once: a restored one keeps its own.
func (h *host) name(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.setName == nil || name == "" {
		return nil
	}
	if err := h.setName(name); err != nil {
		return err
	}
	h.setName = nil
	return nil
}

// meetHost wraps the handler of /init.
func (a *Agent) meetHost(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.host.meet(r.Header.Get(agentapi.HeaderInit))
		a.fromHost(handler)(w, r)
	}
}

// nameHost sets the host name and gives up the capability that this takes,
// which no process but the agent has had.
func nameHost(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	return dropAdmin()
}

// Name is the program that sets the host name of a sandbox that was restored from
// another one's memory. The host starts it, with the capability that this takes. It
// returns an exit status.
func Name(args []string) int {
	if len(args) != 1 || unix.Sethostname([]byte(args[0])) != nil {
		return 1
	}
	return 0
}

func dropAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	const admin = uint32(1) << unix.CAP_SYS_ADMIN
	sets[0].Effective &^= admin
	sets[0].Permitted &^= admin
	sets[0].Inheritable &^= admin
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if errno != 0 && !errors.Is(errno, syscall.ENOTSUP) { // a build with cgo, which is never PID 1 of a sandbox
		return errno
	}
	return nil
}
