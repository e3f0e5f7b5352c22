package gvisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/runtime"
)

func TestUsageOf(t *testing.T) {
	want := runtime.Usage{CPU: 1234567 * time.Microsecond, Memory: 12288, Cache: 700}
	for name, tt := range map[string]struct {
		files map[string]string
		want  runtime.Usage
		fails bool
	}{
		"v1": {map[string]string{
			"memory/memory.stat":    "cache 1\nrss 1\nshmem 1\ntotal_cache 8892\ntotal_rss 4096\ntotal_shmem 8192\n",
			"cpuacct/cpuacct.usage": "1234567000\n",
		}, want, false},
		"v2": {map[string]string{
			"memory.stat": "anon 4096\nfile 8892\nkernel 5\nshmem 8192\n",
			"cpu.stat":    "usage_usec 1234567\nuser_usec 1\nsystem_usec 2\n",
		}, want, false},
		"hybrid": {map[string]string{
			"memory/memory.stat": "total_cache 8892\ntotal_rss 4096\ntotal_shmem 8192\n",
			"unified/cpu.stat":   "usage_usec 1234567\n",
		}, want, false},
		"files in memory alone":  {map[string]string{"memory.stat": "anon 1\nfile 3\nshmem 4\n", "cpu.stat": "usage_usec 0\n"}, runtime.Usage{Memory: 5}, false},
		"nothing":                {nil, runtime.Usage{}, true},
		"no CPU time":            {map[string]string{"memory.stat": "anon 1\n"}, runtime.Usage{}, true},
		"CPU time that is none":  {map[string]string{"memory.stat": "anon 1\n", "cpuacct/cpuacct.usage": "much\n"}, runtime.Usage{}, true},
		"CPU time without a sum": {map[string]string{"memory.stat": "anon 1\n", "cpu.stat": "user_usec 7\n"}, runtime.Usage{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			writeGroup(t, root, tt.files)
			got, err := usageOf(group{root: root, id: "i0r1"})
			if (err != nil) != tt.fails || !tt.fails && got != tt.want {
				t.Errorf("usage %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

// writeGroup writes the files of the cgroups of the runtime i0r1, each named
// with its controller in v1.
func writeGroup(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for path, text := range files {
		file := filepath.Join(root, filepath.Dir(path), cgroupParent, "i0r1", filepath.Base(path))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
