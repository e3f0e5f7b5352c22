package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/coreos/go-systemd/v22/util"
	godbus "github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// The sandboxes' cgroups are in a scope, rather than in the part of the tree
// that systemd delegates to the server's own service: systemd before version 254
// cannot start a service again while cgroups with controllers are left in the
// service's (it would have to put the new process beside them), and sandboxes
// outlive the server. A scope needs a process; one that sleeps keeps it alive
// while no sandbox runs.

// scopeUnit is the scope, one for all servers of a host.
const scopeUnit = "drowse-sandboxes.scope"

// keeperName is the cgroup of the process that keeps the scope alive.
const keeperName = "keeper"

// systemdPatience bounds what systemd is asked for.
const systemdPatience = 10 * time.Second

func booted() bool { return util.IsRunningSystemd() }

// systemd implements manager.
type systemd struct{ t Tree }

func (s systemd) scope(ctx context.Context) (group string, err error) {
	ctx, cancel := context.WithTimeout(ctx, systemdPatience)
	defer cancel()
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return "", fmt.Errorf("connect to systemd: %w", err)
	}
	defer conn.Close()
	group, err = activeScope(ctx, conn)
	if err != nil {
		return "", err
	}
	if group == "" {
		if group, err = startScope(ctx, conn); err != nil {
			return "", fmt.Errorf("start %s: %w", scopeUnit, err)
		}
	}
	if !s.t.exists(group) {
		return "", fmt.Errorf("%s is in cgroup %s, which is not in %s", scopeUnit, group, s.t.dir)
	}
	return group, s.moveKeeper(group)
}

// activeScope returns the scope's cgroup; "" if there is none.
func activeScope(ctx context.Context, conn *dbus.Conn) (string, error) {
	state, err := conn.GetUnitPropertyContext(ctx, scopeUnit, "ActiveState")
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", scopeUnit, err)
	}
	if state.Value.Value() != "active" {
		return "", nil
	}
	group, err := conn.GetUnitTypePropertyContext(ctx, scopeUnit, "Scope", "ControlGroup")
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", scopeUnit, err)
	}
	text, _ := group.Value.Value().(string)
	return text, nil
}

// startScope makes the scope around a process that sleeps.
func startScope(ctx context.Context, conn *dbus.Conn) (string, error) {
	keeper := exec.Command("sleep", "infinity")
	keeper.Dir = "/"
	keeper.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := keeper.Start(); err != nil {
		return "", err
	}
	go func() { _ = keeper.Wait() }() // it is this process' child while that lives
	done := make(chan string, 1)
	_, err := conn.StartTransientUnitContext(ctx, scopeUnit, "fail", scopeProperties(keeper.Process.Pid), done)
	if err == nil {
		select {
		case result := <-done:
			if result != "done" {
				err = fmt.Errorf("the job ended as %q", result)
			}
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		err = errors.Join(err, keeper.Process.Kill())
	}
	// Another server may have been faster.
	group, lookErr := activeScope(ctx, conn)
	if group != "" {
		return group, nil
	}
	return "", errors.Join(err, lookErr)
}

func scopeProperties(keeper int) []dbus.Property {
	property := func(name string, value any) dbus.Property {
		return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
	}
	return []dbus.Property{
		dbus.PropDescription("drowse: running sandboxes"),
		dbus.PropPids(uint32(keeper)),
		// When the host goes down, the server stops first and can pause them.
		dbus.PropBefore("drowse.service"),
		property("Delegate", true),
		property("TasksMax", ^uint64(0)), // each sandbox has a limit
		property("KillSignal", int32(unix.SIGKILL)),
		property("CollectMode", "inactive-or-failed"),
	}
}

// moveKeeper takes the processes in the scope itself to a leaf.
func (s systemd) moveKeeper(group string) error {
	pids, err := s.t.words(group, "cgroup.procs")
	if err != nil || len(pids) == 0 {
		return err
	}
	leaf := path.Join(group, keeperName)
	if _, err := (&Place{Tree: s.t, Path: group}).Make(keeperName, Limits{}); err != nil {
		return err
	}
	for _, pid := range pids {
		if err := s.t.write(leaf, "cgroup.procs", pid); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move process %s to cgroup %s: %w", strings.TrimSpace(pid), leaf, err)
		}
	}
	return nil
}
