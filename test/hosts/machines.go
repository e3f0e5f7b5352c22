package main

// A system is a Debian release with a kernel of its own or of its backports.
type system struct {
	suite     string // the release's code name
	kernel    string // the package
	backports bool   // the kernel comes from its backports
	packages  string // that it has besides, with commas
}

// A machine is a system, booted with options, with a file system for the state
// directory.
type machine struct {
	name string
	system
	cgroup     string   // as the table calls it
	kernelArgs []string // that make it so
	filesystem string   // of the state directory; the root is ext4
	memoryMiB  int      // 0 for usualMemory
	refused    string   // what doctor and the server say, where drowse cannot run
}

// usualMemory of a machine, in MiB, leaves room for the sandboxes of a check.
const usualMemory = 2560

// newestKernel is the package that depends on the release's newest kernel for
// virtual machines.
const newestKernel = "linux-image-cloud-amd64"

var (
	// The last one of a release that gets no more updates: mirrors have dropped
	// the package that names it.
	bullseye  = system{suite: "bullseye", kernel: "linux-image-5.10.0-46-cloud-amd64"}
	bookworm  = system{suite: "bookworm", kernel: newestKernel}
	backports = system{suite: "bookworm", kernel: newestKernel, backports: true}
	trixie    = system{suite: "trixie", kernel: newestKernel}
	selinux   = system{suite: "bookworm", kernel: newestKernel, packages: "selinux-policy-default,policycoreutils"}
)

// systemd mounts the version 1 controllers where it is told to. From version
// 256 on it needs to be told twice.
var (
	cgroupV1 = []string{"systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=1", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"}
	hybrid   = []string{"systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"}
)

// machines are booted in this order. Each differs from the first in one thing,
// but for the pair at the end.
var machines = []machine{
	{name: "debian12", system: bookworm, cgroup: "v2", filesystem: "ext4"},
	{name: "debian12-xfs", system: bookworm, cgroup: "v2", filesystem: "xfs"},
	{name: "debian12-btrfs", system: bookworm, cgroup: "v2", filesystem: "btrfs"},
	{name: "debian12-cgroup1", system: bookworm, cgroup: "v1", kernelArgs: cgroupV1, filesystem: "ext4"},
	{name: "debian12-hybrid", system: bookworm, cgroup: "hybrid", kernelArgs: hybrid, filesystem: "ext4"},
	{name: "debian12-backports", system: backports, cgroup: "v2", filesystem: "ext4"},
	{name: "debian12-selinux", system: selinux, cgroup: "v2", kernelArgs: []string{"security=selinux", "enforcing=1"}, filesystem: "ext4"},
	{name: "debian12-small", system: bookworm, cgroup: "v2", kernelArgs: []string{"ipv6.disable=1"}, filesystem: "ext4", memoryMiB: 1024},
	{name: "debian13", system: trixie, cgroup: "v2", filesystem: "ext4"},
	{name: "debian11", system: bullseye, cgroup: "v2", filesystem: "ext4"},
	// The memory controller of its kernel is one of version 2 alone, so that with
	// the others in version 1 nothing can limit a sandbox.
	{name: "debian13-cgroup1", system: trixie, cgroup: "v1", kernelArgs: cgroupV1, filesystem: "ext4",
		refused: `not all in cgroup v2: "cpu" is bound to v1`},
	{name: "debian11-cgroup1-xfs", system: bullseye, cgroup: "v1", kernelArgs: cgroupV1, filesystem: "xfs"},
}
