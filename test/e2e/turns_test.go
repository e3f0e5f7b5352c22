package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// loops are twenty processes that do nothing but count. Their files say how far they are.
const loops = `mkdir -p /tmp/counts
for k in $(seq 20); do
	sh -c 'i=0; while :; do i=$((i+1)); [ $((i%20000)) = 0 ] && echo >>/tmp/counts/$0; done' $k &
	echo $! >/tmp/$k.pid
done
wait`

// TestTurns: of the threads that use the processor all the time, few run at once, so that
// what is asked of the sandbox has its part of the processor. Each gets its turn, can be
// ended while it waits for it, and sleeps and wakes.
func TestTurns(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{CPUs: 0.9})
	s.hasQuota(t, sb.ID, 0.9)
	if _, err := sb.Start(ctx, client.Command{Args: []string{"sh", "-c", loops}}); err != nil {
		t.Fatal(err)
	}
	s.takesTurns(ctx, t, sb, 20)

	s.pause(ctx, sb.ID)
	s.connect(ctx, sb.ID)
	s.hasQuota(t, sb.ID, 0.9)
	s.takesTurns(ctx, t, sb, 20)

	run(ctx, t, sb, "sh", "-c", "cd /tmp; for k in $(seq 7 20); do kill -9 $(cat $k.pid); done")
	eventually(t, endWithin, "the end of those that wait", func() error {
		if exit, out := run(ctx, t, sb, "sh", "-c", "cd /tmp; for k in $(seq 7 20); do ! kill -0 $(cat $k.pid) || exit 1; done"); exit.Code != 0 {
			return fmt.Errorf("one is there: %s", out)
		}
		return nil
	})
	run(ctx, t, sb, "sh", "-c", "cd /tmp/counts; rm $(seq 7 20)")
	// With few loops there are turns only while another process works now and then.
	if _, err := sb.Start(ctx, client.Command{Args: []string{"sh", "-c", "while :; do sleep 0.01; done"}}); err != nil {
		t.Fatal(err)
	}
	s.takesTurns(ctx, t, sb, 6)
	s.kill(ctx, t, sb.ID)
	s.waitGone(sb.ID)
}

// hasQuota checks how much processor time the kernel grants a sandbox that runs.
func (s *server) hasQuota(t *testing.T, id string, cpus float64) {
	t.Helper()
	for _, group := range s.cgroups(id) {
		for file, want := range map[string]string{"cpu.cfs_quota_us": fmt.Sprintf("%.0f", cpus*1e5), "cpu.max": fmt.Sprintf("%.0f 100000", cpus*1e5)} {
			if text, err := os.ReadFile(filepath.Join(strings.TrimPrefix(group, "cgroup "), file)); err == nil {
				if got := strings.TrimSpace(string(text)); got != want {
					t.Errorf("%s is %s, want %s", file, got, want)
				}
				return
			}
		}
	}
	t.Errorf("no cgroup of %s has a quota", id)
}

// takesTurns waits until few of a sandbox's threads run, and each loop has gone on.
func (s *server) takesTurns(ctx context.Context, t *testing.T, sb *client.Sandbox, loops int) {
	t.Helper()
	counts := func() []string {
		_, out := run(ctx, t, sb, "sh", "-c", "stat -c %n:%s /tmp/counts/*")
		return strings.Fields(out)
	}
	var before []string
	eventually(t, endWithin, "the loops", func() error {
		if before = counts(); len(before) != loops {
			return fmt.Errorf("%d of %d run", len(before), loops)
		}
		return nil
	})
	eventually(t, endWithin, "turns", func() error {
		if n := s.runnable(sb.ID); n > 4 {
			return fmt.Errorf("%d threads run", n)
		}
		return nil
	})
	eventually(t, endWithin, "each loop's turn", func() error {
		now := counts()
		stuck := slices.DeleteFunc(slices.Clone(before), func(at string) bool { return !slices.Contains(now, at) })
		if len(now) != loops || len(stuck) > 0 {
			return fmt.Errorf("of %d loops %d are where they were: %v", len(now), len(stuck), stuck)
		}
		return nil
	})
}

// runnable returns how many threads of a sandbox's processes have or want a processor
// of the host.
func (s *server) runnable(id string) (n int) {
	for pid := range strings.FieldsSeq(s.cgroupFile(id, "cgroup.procs")) {
		stats, _ := filepath.Glob("/proc/" + pid + "/task/*/stat")
		for _, path := range stats {
			stat, _ := os.ReadFile(path)
			if i := strings.LastIndex(string(stat), ") "); i >= 0 && stat[i+2] == 'R' {
				n++
			}
		}
	}
	return n
}
