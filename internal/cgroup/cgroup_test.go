package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// fakeTree is a tree of cgroup v2 with the kernel's rules that matter here.
type fakeTree struct {
	groups map[string]*fakeGroup
	has    []string // controllers of the top
	top    bool     // the host's own top, not a container's
	writes []string
	// ro refuses to write.
	ro bool
}

type fakeGroup struct {
	kind    string
	pids    []string
	enabled []string
	values  map[string]string
}

func newFakeTree(top bool, controllers ...string) *fakeTree {
	return &fakeTree{groups: map[string]*fakeGroup{"/": {kind: "domain"}}, has: controllers, top: top}
}

// with adds a cgroup with processes and controllers for those below it.
func (f *fakeTree) with(group, enabled string, pids ...string) *fakeTree {
	f.groups[group] = &fakeGroup{kind: "domain", pids: pids, enabled: strings.Fields(enabled), values: map[string]string{}}
	return f
}

func (f *fakeTree) tree() Tree { return Tree{dir: "/", files: f} }

func (f *fakeTree) controllers(group string) []string {
	if group == "/" {
		return f.has
	}
	if up := f.groups[path.Dir(group)]; up != nil {
		return up.enabled
	}
	return nil
}

func (f *fakeTree) read(name string) (string, error) {
	g := f.groups[path.Dir(name)]
	if g == nil {
		return "", fs.ErrNotExist
	}
	switch file := path.Base(name); file {
	case "cgroup.procs":
		return strings.Join(g.pids, "\n") + "\n", nil
	case "cgroup.controllers":
		return strings.Join(f.controllers(path.Dir(name)), " ") + "\n", nil
	case "cgroup.subtree_control":
		return strings.Join(g.enabled, " ") + "\n", nil
	case "cgroup.type":
		if path.Dir(name) == "/" && f.top {
			return "", fs.ErrNotExist
		}
		return g.kind + "\n", nil
	default:
		if v, ok := g.values[file]; ok {
			return v, nil
		}
		return "", fs.ErrNotExist
	}
}

func (f *fakeTree) write(name, text string) error {
	if f.ro {
		return unix.EROFS
	}
	group, file := path.Dir(name), path.Base(name)
	g := f.groups[group]
	if g == nil {
		return fs.ErrNotExist
	}
	f.writes = append(f.writes, name+"="+text)
	controller, _, _ := strings.Cut(file, ".")
	switch {
	case file == "cgroup.subtree_control":
		return f.enable(group, g, strings.TrimPrefix(text, "+"))
	case file == "cgroup.procs":
		if len(g.enabled) > 0 && !(group == "/" && f.top) {
			return unix.EBUSY
		}
		for _, other := range f.groups {
			other.pids = slices.DeleteFunc(other.pids, func(p string) bool { return p == text })
		}
		g.pids = append(g.pids, text)
	case !slices.Contains(f.controllers(group), controller):
		return fs.ErrNotExist
	default:
		g.values[file] = text
	}
	return nil
}

func (f *fakeTree) enable(group string, g *fakeGroup, c string) error {
	switch {
	case !slices.Contains(f.controllers(group), c):
		return fs.ErrNotExist
	case g.kind != "domain":
		return unix.EOPNOTSUPP
	case len(g.pids) > 0 && !(group == "/" && f.top):
		return unix.EBUSY
	}
	g.enabled = append(g.enabled, c)
	return nil
}

func (f *fakeTree) mkdir(name string) error {
	if f.groups[name] != nil {
		return fs.ErrExist
	}
	up := f.groups[path.Dir(name)]
	switch {
	case f.ro:
		return unix.EROFS
	case up == nil:
		return fs.ErrNotExist
	}
	kind := "domain"
	if strings.Contains(up.kind, "threaded") || up.kind == "domain invalid" {
		kind = "domain invalid"
	}
	f.groups[name] = &fakeGroup{kind: kind, values: map[string]string{}}
	return nil
}

const all = "cpuset cpu io memory hugetlb pids"

// fakeManager is a systemd with a scope, or out of reach.
type fakeManager struct {
	f    *fakeTree
	fail error
}

const fakeScope = "/system.slice/drowse-sandboxes.scope"

func (m fakeManager) scope(context.Context) (string, error) {
	if m.fail != nil {
		return "", m.fail
	}
	m.f.with(fakeScope, "")
	return fakeScope, nil
}

func underSystemd() *fakeTree {
	return newFakeTree(true, strings.Fields(all)...).with("/", all, "1x").
		with("/init.scope", "", "1").with("/system.slice", "cpuset cpu io memory pids").
		with("/system.slice/drowse.service", "", "77").with("/user.slice", "")
}

func TestPrepare(t *testing.T) {
	for name, tt := range map[string]struct {
		tree    *fakeTree
		self    string
		manager bool
		fail    error
		want    string // path
		code    string // a part of the error
		only    string // all writes are below it
	}{
		"systemd": {tree: underSystemd(), self: "/system.slice/drowse.service", manager: true, want: fakeScope, only: fakeScope},
		"systemd out of reach": {
			tree: underSystemd(), self: "/user.slice", manager: true, fail: errors.New("no socket"), want: "/drowse",
		},
		"another service manager": {
			tree: newFakeTree(true, strings.Fields(all)...).with("/openrc.drowse", "", "77"), self: "/openrc.drowse", want: "/drowse",
		},
		"container": {
			tree: newFakeTree(false, strings.Fields(all)...).with("/", "", "1", "77"), self: "/", want: "/drowse",
		},
		"container again": {
			tree: newFakeTree(false, strings.Fields(all)...).with("/", "memory cpu cpuset pids io").
				with("/drowse-others", "", "1").with("/drowse", "memory cpu cpuset pids io").with("/drowse/i0r1", "", "9"),
			self: "/drowse-others", want: "/drowse",
		},
		"without io": {tree: newFakeTree(false, "memory", "cpu", "cpuset", "pids").with("/", ""), self: "/", want: "/drowse"},
		"container without memory": {
			tree: newFakeTree(false, "cpu", "cpuset", "pids", "io").with("/", "", "1"), self: "/", code: `no cgroup controller "memory"`,
		},
		"kernel without memory": {
			tree: newFakeTree(true, "cpu", "cpuset", "pids", "io"), self: "/", code: "the host's", // and what its own kernel says of it
		},
		"not handed down": {
			tree: func() *fakeTree {
				f := underSystemd()
				f.with("/system.slice", "memory pids")
				return f
			}(), self: "/", manager: true, code: `in /system.slice/drowse-sandboxes.scope have no controller "cpu"`,
		},
		"read-only": {
			tree: func() *fakeTree { f := newFakeTree(false, strings.Fields(all)...); f.ro = true; return f }(), self: "/", code: "read-only file system",
		},
		"threaded": {
			tree: func() *fakeTree {
				f := newFakeTree(false, strings.Fields(all)...)
				f.groups["/"].kind = "domain threaded"
				return f
			}(), self: "/", code: `cgroup / is "domain threaded"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var m manager
			if tt.manager {
				m = fakeManager{tt.tree, tt.fail}
			}
			p, err := prepare(t.Context(), tt.tree.tree(), tt.self, m)
			if tt.code != "" {
				e, ok := errors.AsType[*errdef.Error](err)
				if !ok || !strings.Contains(e.Message, tt.code) || e.Class != errdef.Unfit || e.Remedy == "" {
					t.Fatalf("error %v; want one with %q and a remedy", err, tt.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Path != tt.want {
				t.Errorf("the place is %s, want %s", p.Path, tt.want)
			}
			for _, c := range required {
				if !slices.Contains(p.Controllers, c) {
					t.Errorf("controller %s is not enabled: %v", c, p.Controllers)
				}
			}
			for _, w := range tt.tree.writes {
				if !strings.HasPrefix(w, tt.only) {
					t.Errorf("wrote %s, outside of %s", w, tt.only)
				}
			}
			if _, err := p.Make("i0r1", Limits{Memory: 1 << 20, CPUs: 2, PIDs: 7}); err != nil {
				t.Fatal(err)
			}
			// A process can go there, which rests on all of the rules.
			if err := tt.tree.write(path.Join(p.Path, "i0r1", "cgroup.procs"), "123"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	f := newFakeTree(false, strings.Fields(all)...).with("/", "", "1")
	p, err := prepare(t.Context(), f.tree(), "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	group, err := p.Make("i0r1", Limits{Memory: 64 << 20, CPUs: 1.15, PIDs: 7})
	if err != nil || group != "/drowse/i0r1" {
		t.Fatalf("%s, %v", group, err)
	}
	want := map[string]string{
		"memory.max": "67108864", "memory.oom.group": "1", "memory.swap.max": "0", "cpu.max": "115000 100000", "pids.max": "7",
	}
	if got := f.groups[group].values; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// It may be there already, of a start that was cut off.
	if _, err := p.Make("i0r1", Limits{Memory: 32 << 20}); err != nil || f.groups[group].values["memory.max"] != "33554432" {
		t.Errorf("%v, %v", f.groups[group].values, err)
	}
	// A limit that cannot be set is an error, not left out.
	f.groups["/drowse"].enabled = []string{"memory"}
	if _, err := p.Make("i0r2", Limits{PIDs: 7}); err == nil {
		t.Error("no error without the controller")
	}
}

func TestOwn(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/drowse.service\n": "/system.slice/drowse.service",
		"12:memory:/x\n0::/a/b\n":           "/a/b",
		"0::/../../c\n":                     "/c",
		"0::/gone (deleted)\n":              "/gone",
		"4:memory:/x\n":                     "/",
		"":                                  "/",
	} {
		if got := own(text); got != want {
			t.Errorf("own(%q) is %q, want %q", text, got, want)
		}
	}
}

// fakeHost is what find looks at.
type fakeHost struct {
	types    map[string]int64
	readOnly bool
	groups   string
	mount    error
}

func (h fakeHost) fsType(dir string) (int64, bool)  { return h.types[dir], h.readOnly }
func (h fakeHost) ownGroups() (string, error)       { return h.groups, nil }
func (h fakeHost) mountTree() (dir string, _ error) { return "/proc/7/fd/9", h.mount }

func TestFind(t *testing.T) {
	const v2, v1 = unix.CGROUP2_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC
	v1Groups := "5:cpu,cpuacct:/\n4:memory:/\n0::/\n"
	for name, tt := range map[string]struct {
		host   fakeHost
		dir    string
		v2     bool
		remedy string // a part of it
	}{
		"v2":                        {fakeHost{types: map[string]int64{Mount: v2}, groups: "0::/\n"}, Mount, true, ""},
		"hidden":                    {fakeHost{types: map[string]int64{Mount: unix.SYSFS_MAGIC}, groups: "0::/\n"}, "/proc/7/fd/9", true, ""},
		"read-only":                 {fakeHost{types: map[string]int64{Mount: v2}, readOnly: true, groups: "0::/\n"}, "/proc/7/fd/9", true, ""},
		"read-only, and to stay so": {fakeHost{types: map[string]int64{Mount: v2}, readOnly: true, groups: "0::/\n", mount: unix.EPERM}, "", true, "--privileged"},
		"hidden, and to stay so":    {fakeHost{groups: "0::/\n", mount: unix.EPERM}, "", true, "mount -t cgroup2"},
		"v1":                        {fakeHost{types: map[string]int64{Mount: unix.TMPFS_MAGIC, Mount + "/memory": v1}, groups: v1Groups}, "", false, ""},
		"v1 hidden":                 {fakeHost{types: map[string]int64{Mount: unix.SYSFS_MAGIC}, groups: v1Groups}, "", false, "nsenter"},
		"v1 read-only":              {fakeHost{types: map[string]int64{Mount + "/memory": v1}, readOnly: true, groups: v1Groups}, "", false, "--privileged"},
		"hybrid":                    {fakeHost{types: map[string]int64{Mount: unix.TMPFS_MAGIC, Mount + "/memory": v1, Mount + "/unified": v2}, groups: v1Groups}, "", false, ""},
	} {
		tree, isV2, err := find(tt.host)
		if tree.dir != tt.dir || isV2 != tt.v2 {
			t.Errorf("%s: tree at %q, v2 %t; want %q, %t", name, tree.dir, isV2, tt.dir, tt.v2)
		}
		e, _ := errors.AsType[*errdef.Error](err)
		if (err != nil) != (tt.remedy != "") || e != nil && !strings.Contains(e.Remedy, tt.remedy) {
			t.Errorf("%s: error %v; want a remedy with %q", name, err, tt.remedy)
		}
	}
}

// TestNotOffered tells a controller that the kernel lacks from one that is
// switched off, and from one that belongs to version 1 while that of memory does
// not: Debian 13 booted with version 1 is so, because its kernel has the memory
// controller for version 2 alone.
func TestNotOffered(t *testing.T) {
	const head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
	for controllers, want := range map[string]struct{ says, remedy string }{
		"":                                      {`kernel has no cgroup controller "cpu"`, "boot a kernel that has it"},
		head + "memory\t0\t1\t1\n":              {`kernel has no cgroup controller "cpu"`, "boot a kernel that has it"},
		head + "cpu\t0\t1\t0\n":                 {`kernel has no cgroup controller "cpu"`, "cgroup_enable=cpu"},
		head + "cpu\t3\t70\t1\nmemory\t0\t1\t1": {`not all in cgroup v2: "cpu" is bound to v1`, "systemd.unified_cgroup_hierarchy=1"},
	} {
		e, ok := errors.AsType[*errdef.Error](notOffered("cpu", controllers))
		if !ok || !strings.Contains(e.Error(), want.says) || !strings.Contains(e.Remedy, want.remedy) {
			t.Errorf("%q: %v, want %q with the remedy %q", controllers, e, want.says, want.remedy)
		}
	}
}

// TestLeastPIDs: the narrowest limit on the way up is the one that counts.
func TestLeastPIDs(t *testing.T) {
	for name, tt := range map[string]struct {
		limits map[string]string // pids.max by cgroup
		group  string
		most   int64
	}{
		"none":      {map[string]string{"/a.slice": "max\n", "/a.slice/d": "max\n"}, "", 0},
		"its own":   {map[string]string{"/a.slice": "900\n", "/a.slice/d": "700\n"}, "/a.slice/d", 700},
		"above it":  {map[string]string{"/": "5000\n", "/a.slice": "300\n", "/a.slice/d": "max\n"}, "/a.slice", 300},
		"of no one": {map[string]string{}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeTree(true).with("/", "").with("/a.slice", "").with("/a.slice/d", "")
			for group, text := range tt.limits {
				f.groups[group].values["pids.max"] = text
			}
			place := Place{Tree: f.tree(), Path: "/a.slice/d"}
			if group, most := place.LeastPIDs(); group != tt.group || most != tt.most {
				t.Errorf("got %q, %d, want %q, %d", group, most, tt.group, tt.most)
			}
		})
	}
}
