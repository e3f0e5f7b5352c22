package gvisor

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryStat(t *testing.T) {
	for name, tt := range map[string]struct {
		stat string
		want int64
		ok   bool
	}{
		"v1":       {"cache 900\nrss 1\nshmem 2\nmapped_file 3\ntotal_cache 900\ntotal_rss 4096\ntotal_shmem 8192\n", 12288, true},
		"v2":       {"anon 4096\nfile 900\nkernel 5\nshmem 8192\nfile_mapped 7\n", 12288, true},
		"nothing":  {"", 0, false},
		"damaged":  {"anon much\n", 0, false},
		"no value": {"anon\n", 0, false},
	} {
		if got, ok := parseMemoryStat(tt.stat).memory(); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %d, %v; want %d, %v", name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestMemoryOf(t *testing.T) {
	for _, hierarchy := range []string{"memory", ".", "unified"} {
		root := t.TempDir()
		if _, _, err := memoryOf(group{root: root, id: "i0r1"}); err == nil {
			t.Errorf("%s: no error without a cgroup", hierarchy)
		}
		dir := filepath.Join(root, hierarchy, cgroupParent, "i0r1")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "memory.stat"), []byte("anon 1\nshmem 2\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, _, err := memoryOf(group{root: root, id: "i0r1"}); got != 3 || err != nil {
			t.Errorf("%s: %d, %v", hierarchy, got, err)
		}
	}
}

func TestOOMKills(t *testing.T) {
	for path, tt := range map[string]struct {
		text string
		want int64
		ok   bool
	}{
		"memory/memory.oom_control": {"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3, true},
		"./memory.events":           {"low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 0\n", 2, true},
		"unified/memory.events":     {"oom 1\noom_kill 0\n", 0, true},
		"memory/memory.events":      {"oom_kill 1\n", 0, false}, // not v1's file
		"unified/memory.stat":       {"oom_kill 1\n", 0, false},
	} {
		root := t.TempDir()
		file := filepath.Join(root, filepath.Dir(path), cgroupParent, "i0r1", filepath.Base(path))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := oomKills(group{root: root, id: "i0r1"}); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%s: %d, %v", path, got, err)
		}
	}
}
