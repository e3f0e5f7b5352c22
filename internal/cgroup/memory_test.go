package cgroup

import (
	"maps"
	"strings"
	"testing"
)

// TestMemory: what is left is the least on the way to the top, and memory that the
// kernel can take back is left.
func TestMemory(t *testing.T) {
	v2 := func(limit, usage, stat string) map[string]string {
		return map[string]string{"memory.max": limit, "memory.current": usage, "memory.stat": stat}
	}
	v1 := func(limit, usage, stat string) map[string]string {
		return map[string]string{"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage, "memory.stat": stat}
	}
	for name, tt := range map[string]struct {
		files       memoryFiles
		groups      map[string]map[string]string
		limit, left int64
		none        bool
		fails       string // a part of the error
	}{
		"nothing to see":    {files: memoryV2, none: true},
		"no limit":          {files: memoryV2, groups: map[string]map[string]string{"/a/b": {"memory.max": "max\n"}, "/a": {"memory.max": "max\n"}}, none: true},
		"its own":           {files: memoryV2, groups: map[string]map[string]string{"/a/b": v2("1000\n", "700\n", "anon 5\ninactive_file 200\nactive_file 300\n")}, limit: 1000, left: 500},
		"above it":          {files: memoryV2, groups: map[string]map[string]string{"/a/b": {"memory.max": "max"}, "/": v2("900", "100", "")}, limit: 900, left: 800},
		"of two the least":  {files: memoryV2, groups: map[string]map[string]string{"/a/b": v2("1000", "10", ""), "/a": v2("5000", "4900", "")}, limit: 1000, left: 100},
		"more than it may":  {files: memoryV2, groups: map[string]map[string]string{"/a": v2("1000", "1200", "inactive_file 100")}, limit: 1000, left: 0},
		"all can be taken":  {files: memoryV2, groups: map[string]map[string]string{"/a": v2("1000", "200", "inactive_file 300")}, limit: 1000, left: 1000},
		"v1":                {files: memoryV1, groups: map[string]map[string]string{"/a/b": v1("1000\n", "700\n", "inactive_file 1\ntotal_inactive_file 200\n")}, limit: 1000, left: 500},
		"v1 without limit":  {files: memoryV1, groups: map[string]map[string]string{"/a/b": v1("9223372036854771712\n", "x", "")}, none: true},
		"limit not known":   {files: memoryV2, groups: map[string]map[string]string{"/a": v2("much", "1", "")}, fails: "memory of cgroup /a: "},
		"usage not known":   {files: memoryV2, groups: map[string]map[string]string{"/a": v2("1000", "much", "")}, fails: "memory of cgroup /a: "},
		"no usage":          {files: memoryV2, groups: map[string]map[string]string{"/a": {"memory.max": "1000"}}, fails: "memory of cgroup /a: "},
		"strange statistic": {files: memoryV2, groups: map[string]map[string]string{"/a": v2("1000", "1", "inactive_file much")}, fails: "memory.stat"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeTree(false).with("/", "").with("/a", "").with("/a/b", "")
			for group, values := range tt.groups {
				maps.Copy(f.groups[group].values, values)
			}
			limit, left, ok, err := f.tree().memory(tt.files, "/a/b")
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("error %v; want one with %q", err, tt.fails)
				}
				return
			}
			if err != nil || limit != tt.limit || left != tt.left || ok == tt.none {
				t.Errorf("limit %d, left %d, limited %t, %v; want %d, %d, %t", limit, left, ok, err, tt.limit, tt.left, !tt.none)
			}
		})
	}
}

// TestMemoryOfContainer: what /proc names can be outside of the tree that a container
// sees, whose top is the container's.
func TestMemoryOfContainer(t *testing.T) {
	f := newFakeTree(false).with("/", "")
	maps.Copy(f.groups["/"].values, map[string]string{"memory.max": "1000", "memory.current": "300", "memory.stat": ""})
	if limit, left, ok, err := f.tree().memory(memoryV2, "/docker/4f2c"); err != nil || limit != 1000 || left != 700 || !ok {
		t.Errorf("limit %d, left %d, limited %t, %v", limit, left, ok, err)
	}
}

func TestOwnV1(t *testing.T) {
	for text, want := range map[string]string{
		"5:cpu,cpuacct:/x\n4:memory:/docker/4f2c\n0::/\n": "/docker/4f2c",
		"9:hugetlb,memory:/\n":                            "/",
		"4:memory:/../../c\n":                             "/c",
		"0::/memory\n":                                    "",
		"":                                                "",
	} {
		if got, ok := ownV1(text); got != want || ok != (want != "") {
			t.Errorf("ownV1(%q) is %q, %t; want %q", text, got, ok, want)
		}
	}
}

// TestOwnMemory looks at this machine, whatever it is.
func TestOwnMemory(t *testing.T) {
	limit, left, ok, err := OwnMemory()
	if err != nil || ok && (limit <= 0 || left < 0 || left > limit) || !ok && (limit != 0 || left != 0) {
		t.Errorf("limit %d, left %d, limited %t, %v", limit, left, ok, err)
	}
}
