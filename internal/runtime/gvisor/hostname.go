package gvisor

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	sentry "gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/runtime"
)

var _ runtime.Named = (*instance)(nil)

// namingTime bounds how long the program inside may take that sets a name.
const namingTime = 10 * time.Second

// SetHostname implements runtime.Named.
func (i *instance) SetHostname(_ context.Context, name string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.c.setHostname(name); err != nil {
		return fmt.Errorf("name runtime %s: %w", i.id, brief(err))
	}
	return nil
}

// setHostname runs the agent's program once more, under another name and with the
// one capability that this takes. The host cannot set the name itself, and a
// restored agent has given up the capability.
func (l local) setHostname(name string) error {
	admin := auth.CapabilitySetOf(linux.CAP_SYS_ADMIN)
	pid, err := l.c.Execute(l.d.conf, &sentry.ExecArgs{
		Filename: l.c.Spec.Process.Args[0], Argv: []string{agentapi.NameProgram, name}, WorkingDirectory: "/", NoNewPrivileges: true,
		Capabilities: &auth.TaskCapabilities{PermittedCaps: admin, EffectiveCaps: admin, BoundingCaps: admin},
	})
	if err != nil {
		return err
	}
	// A guest may have put another program in its place, which does not end.
	late := time.AfterFunc(namingTime, func() { _ = l.c.SignalProcess(unix.SIGKILL, pid) })
	defer late.Stop()
	status, err := l.c.WaitPID(pid)
	if err == nil && (!status.Exited() || status.ExitStatus() != 0) {
		err = fmt.Errorf("the program that sets it ended with status %#x", uint32(status))
	}
	return err
}

func (r *remote) setHostname(name string) error {
	_, err := r.peers.consult(r.program, question{Ask: askHostname, ID: r.cid, Bundle: r.bundle, Hostname: name})
	return err
}
