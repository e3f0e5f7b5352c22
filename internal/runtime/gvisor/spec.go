package gvisor

import (
	"fmt"
	"math"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// memoryOverhead is what gVisor itself may use besides the guest's memory, in
// MiB. Both count against the same cgroup.
const memoryOverhead = 64

// guestCapabilities is what root has inside. They are granted by gVisor's
// kernel, not the host's.
var guestCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID",
	"CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
}

// initCapability is what the first process has besides, to give the sandbox its
// name. It is inherited until it is given up, which the agent does before it
// starts anything.
const initCapability = "CAP_SYS_ADMIN"

// tmpfs describes a file system in memory. What is in it counts against the
// memory limit, which is the end of the sandbox; a guest that fills the file
// system is to meet its size before, as an error. runsc passes on no bound on the
// number of files.
func tmpfs(at, mode string, mib int) specs.Mount {
	return specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: []string{
		"mode=" + mode, fmt.Sprintf("size=%dm", mib),
	}}
}

// ociSpec describes a runtime to gVisor. A restored runtime must be described
// as the captured one was, so that everything here follows from the Spec.
func ociSpec(s runtime.Spec, netns, cgroups string) *specs.Spec {
	memory := int64(s.Limits.MemoryMiB+memoryOverhead) << 20
	pids := int64(s.Limits.PIDs)
	period := uint64(100_000)
	quota := int64(math.Round(s.Limits.CPUs * float64(period)))
	spec := &specs.Spec{
		Version:  specs.Version,
		Hostname: s.Hostname,
		Root:     &specs.Root{Path: s.Rootfs},
		Process: &specs.Process{
			Args: s.Args,
			Env:  s.Env,
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: guestCapabilities, Effective: guestCapabilities, Permitted: guestCapabilities,
				Inheritable: []string{initCapability},
			},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 20, Soft: 1 << 20}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
			tmpfs("/dev/shm", "1777", s.Limits.MemoryMiB/2),
			tmpfs("/tmp", "1777", s.Limits.MemoryMiB/2),
			// In memory, because what the agent writes there differs in each
			// generation and must not make every layer a changed one.
			tmpfs("/run", "755", s.Limits.MemoryMiB/5),
			// Where the agent writes at each wake: not to be kept from it by what
			// else fills /run.
			tmpfs("/run/drowse", "755", 1),
		},
		Linux: &specs.Linux{
			CgroupsPath: cgroups,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: netns},
			},
			Resources: &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: &memory},
				CPU:    &specs.LinuxCPU{Period: &period, Quota: &quota},
				Pids:   &specs.LinuxPids{Limit: pids},
			},
		},
	}
	for _, m := range s.Mounts {
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: m.Path, Type: "bind", Source: m.Source, Options: []string{"rw"}})
	}
	return spec
}
