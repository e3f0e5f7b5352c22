//go:build plant

package supervisor

import (
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/lifecycle/history"
	"github.com/drowse-dev/drowse/internal/planted"
)

// TestPlantedBugs holds that the checks of TestHistories find each bug that is
// planted.
func TestPlantedBugs(t *testing.T) {
	for name, plant := range map[string]func(){
		"dropped barrier":             func() { planted.DroppedBarrier = true },
		"reused generation":           func() { planted.ReusedGeneration = true },
		"answer before pause commits": func() { planted.EarlyAnswer = string(lifecycle.Pausing) },
		"answer before resume does":   func() { planted.EarlyAnswer = string(lifecycle.Resuming) },
		"answer before kill does":     func() { planted.EarlyAnswer = string(lifecycle.Killing) },
	} {
		t.Run(name, func(t *testing.T) {
			plant()
			defer func() { planted.DroppedBarrier, planted.ReusedGeneration, planted.EarlyAnswer = false, false, "" }()
			first := uint64(time.Now().UnixNano()) % 1_000_000_000
			found := false
			recordHistories(t, first, 200, func(seed uint64, _ history.History, err error) {
				t.Logf("seed %d, the %d. tried: %v", seed, seed-first+1, err)
				found = true
			})
			if !found {
				t.Errorf("200 histories from seed %d are taken for linearizable", first)
			}
		})
	}
}
