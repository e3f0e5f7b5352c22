package supervisor

import (
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// TestDefaults: what a sandbox says counts, also when it says no limit.
func TestDefaults(t *testing.T) {
	given := Defaults{OnTimeout: lifecycle.Pause, PausedRetention: time.Hour, StallAfter: time.Minute}
	for name, tt := range map[string]struct {
		defaults  Defaults
		settings  lifecycle.Settings
		action    lifecycle.Action
		retention time.Duration
		stalls    bool
	}{
		"nothing said, no defaults": {Defaults{}, lifecycle.Settings{}, lifecycle.Kill, 0, false},
		"nothing said":              {given, lifecycle.Settings{}, lifecycle.Pause, time.Hour, true},
		"no limits asked for":       {given, lifecycle.Settings{PausedRetention: Unlimited, StallAfter: Unlimited}, lifecycle.Pause, 0, false},
		"others asked for":          {given, lifecycle.Settings{OnTimeout: lifecycle.Kill, PausedRetention: time.Second, StallAfter: time.Second}, lifecycle.Kill, time.Second, true},
	} {
		got := tt.defaults.Fill(tt.settings)
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got.OnTimeout != tt.action || got.PausedRetention != tt.retention || got.StallAfter > 0 != tt.stalls {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
