package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

type sampled struct {
	TimestampUnix                                    int64
	CPUCount                                         int
	CPUUsedPct                                       float64
	MemUsed, MemTotal, MemCache, DiskUsed, DiskTotal int64
}

// TestMetrics: a running sandbox is measured without being kept awake, and what
// it used can be read while it sleeps, without a wake.
func TestMetrics(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	const memory = 600
	sb := s.create(ctx, client.CreateOptions{IdleTimeout: 3 * time.Second, OnIdle: client.Pause, MemoryMiB: memory})
	var samples []sampled
	read := func() error {
		samples = nil
		s.call(ctx, "GET", "/sandboxes/"+sb.ID+"/metrics", "", &samples)
		if len(samples) == 0 {
			return fmt.Errorf("no samples")
		}
		return nil
	}
	eventually(t, 30*time.Second, "a sample", read)
	paused := func() error {
		_ = read() // which is no activity
		var state string
		if err := json.Unmarshal(s.details(ctx, sb.ID)["state"], &state); err != nil || state != "paused" {
			return fmt.Errorf("it is %s, %v", state, err)
		}
		return nil
	}
	eventually(t, time.Minute, "the pause", paused)
	if err := read(); err != nil {
		t.Fatal(err)
	}
	for _, x := range samples {
		if x.MemUsed <= 0 || x.MemUsed > x.MemTotal || x.MemTotal != memory<<20 || x.DiskUsed < 0 || x.DiskTotal <= 0 || x.CPUCount < 1 || x.CPUUsedPct < 0 || x.CPUUsedPct > 100 {
			t.Errorf("sample %+v", x)
		}
	}
	if err := paused(); err != nil {
		t.Errorf("after its samples were read: %v", err)
	}
}
