package serve

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/drowse-dev/drowse/internal/store"
)

// of is a host of which only some files are known.
func of(files map[string]string) fs.FS {
	root := fstest.MapFS{}
	for name, text := range files {
		root[strings.TrimPrefix(name, "/")] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

// TestHost: what doctor says of a host, and what it advises where that is not enough.
func TestHost(t *testing.T) {
	const (
		userMost = "/proc/sys/user/max_user_namespaces"
		netMost  = "/proc/sys/user/max_net_namespaces"
		enforce  = "/sys/fs/selinux/enforce"
		apparmor = "/sys/module/apparmor/parameters/enabled"
		label    = "/proc/self/attr/current"
	)
	allowed := func() error { return nil }
	denied := func() error { return errors.New("execmem: permission denied") }
	cgroups := Finding{Name: "cgroups", OK: true, Required: true, Detail: "cgroup v2"}
	for name, tt := range map[string]struct {
		got            Finding
		ok, required   bool
		detail, remedy string
	}{
		"namespaces, unknown":   {namespaces(of(nil)), true, false, "leave room", ""},
		"namespaces, many":      {namespaces(of(map[string]string{userMost: "64000\n", netMost: "256\n"})), true, false, "leave room", ""},
		"namespaces, few":       {namespaces(of(map[string]string{userMost: "64000\n", netMost: "255\n"})), false, false, "255 net namespaces", "sysctl user.max_net_namespaces=65536"},
		"namespaces, none":      {namespaces(of(map[string]string{userMost: "0\n"})), false, true, "0 user namespaces", "sysctl user.max_user_namespaces=65536"},
		"namespaces, not a sum": {namespaces(of(map[string]string{userMost: "max\n"})), true, false, "leave room", ""},

		"file descriptors, enough": {Finding{}.opening(1 << 16), true, false, "65536 file descriptors; a program in a sandbox may have 16384", ""},
		"file descriptors, few":    {Finding{}.opening(1<<16 - 1), false, false, "65535 file descriptors; a program in a sandbox may have 16383", "LimitNOFILE"},

		"memory, enough": {Finding{}.giving(store.Limits{CPUs: 2, MemoryMiB: wantedMemory}), true, false, "1800 MiB; a sandbox that asks for none may take 1024", ""},
		"memory, little": {Finding{}.giving(store.Limits{CPUs: 2, MemoryMiB: 900}), false, false, "900 MiB; a sandbox that asks for none may take 900", "--memory 256"},

		"tasks, no limit": {cgroups.allowing(0, "", "/"), true, true, "cgroup v2", ""},
		"tasks, enough":   {cgroups.allowing(wantedTasks, "/a", "/sys/fs/cgroup/a"), true, true, "cgroup v2", ""},
		"tasks, few":      {cgroups.allowing(wantedTasks-1, "/a", "/sys/fs/cgroup/a"), false, false, "cgroup /a lets all sandboxes together have 8191 tasks", "echo max > /sys/fs/cgroup/a/pids.max"},

		"security, none":              {security(of(nil), denied), true, false, "no SELinux in force", ""},
		"SELinux, permissive":         {security(of(map[string]string{enforce: "0"}), denied), true, false, "no SELinux in force", ""},
		"SELinux, allows":             {security(of(map[string]string{enforce: "1"}), allowed), true, false, "SELinux is enforcing", ""},
		"SELinux, denies":             {security(of(map[string]string{enforce: "1"}), denied), false, false, "SELinux forbids what gVisor needs: execmem", "semodule -i drowse.cil"},
		"AppArmor, off":               {security(of(map[string]string{apparmor: "N\n"}), allowed), true, false, "no SELinux in force", ""},
		"AppArmor, not of drowse":     {security(of(map[string]string{apparmor: "Y\n", label: "unconfined\n"}), allowed), true, false, "no AppArmor profile confines drowse", ""},
		"AppArmor, complains":         {security(of(map[string]string{apparmor: "Y\n", label: "drowse (complain)\n"}), allowed), true, false, "", ""},
		"AppArmor, enforces":          {security(of(map[string]string{apparmor: "Y\n", label: "drowse (enforce)\n\x00"}), allowed), false, false, "AppArmor confines this process: drowse (enforce)", "apparmor=unconfined"},
		"SELinux's label, no profile": {security(of(map[string]string{enforce: "1", label: "system_u:system_r:unconfined_service_t:s0\x00"}), allowed), true, false, "SELinux is enforcing", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := tt.got
			if f.OK != tt.ok || f.Required != tt.required || !strings.Contains(f.Detail, tt.detail) || !strings.Contains(f.Remedy, tt.remedy) {
				t.Errorf("got %+v", f)
			}
		})
	}
}
