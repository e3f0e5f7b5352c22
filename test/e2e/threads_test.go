package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestThreads has a server make, pause, wake and end many sandboxes at once. For their
// networks and mounts it changes threads. One that kept any of that would give it to
// whatever runs there later: a sandbox's way out would lead nowhere.
func TestThreads(t *testing.T) {
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	var storm errgroup.Group
	for range 4 {
		storm.Go(func() error {
			for range 2 {
				sb, err := s.client.Create(ctx, client.CreateOptions{})
				if err != nil {
					return err
				}
				if err = s.client.Pause(ctx, sb.ID); err == nil {
					_, err = s.client.Resume(ctx, sb.ID, time.Minute)
				}
				if err = errors.Join(err, s.client.Kill(ctx, sb.ID)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := storm.Wait(); err != nil {
		t.Fatal(err)
	}
	var differ string
	defer func() {
		if t.Failed() {
			t.Log(differ)
		}
	}()
	testmode.Eventually(t, "all threads of the server are alike", func() bool {
		differ = differences(t, s.pid())
		return differ == ""
	})
}

// differences says in what the threads of a process differ that a thread can have of its own.
func differences(t *testing.T, pid int) string {
	t.Helper()
	values := map[string]map[string]int{} // of what, how many threads have which
	tasks := glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		state, err := threadState(task)
		if errors.Is(err, fs.ErrNotExist) || err != nil && strings.Contains(err.Error(), "no such process") {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		for what, value := range state {
			if values[what] == nil {
				values[what] = map[string]int{}
			}
			values[what][value]++
		}
	}
	if len(values) < 15 {
		t.Fatalf("only %d values of %d threads were read", len(values), len(tasks))
	}
	var all strings.Builder
	for _, what := range slices.Sorted(maps.Keys(values)) {
		if len(values[what]) > 1 {
			fmt.Fprintf(&all, "%s: %v\n", what, values[what])
		}
	}
	return all.String()
}

func threadState(task string) (map[string]string, error) {
	state := map[string]string{}
	for _, link := range append(glob(task+"/ns/*"), task+"/cwd", task+"/root") {
		to, err := os.Readlink(link)
		if err != nil {
			return nil, err
		}
		state[strings.TrimPrefix(link, task)] = to
	}
	status, err := os.ReadFile(filepath.Join(task, "status"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(status)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Umask", "SigIgn":
			state[key] = strings.TrimSpace(value)
		}
	}
	stat, err := os.ReadFile(filepath.Join(task, "stat"))
	if err != nil {
		return nil, err
	}
	// The name, which may have spaces, is in parentheses.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	state["nice"] = fields[16]
	return state, nil
}
