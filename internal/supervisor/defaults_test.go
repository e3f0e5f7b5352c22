package supervisor

import (
	"strings"
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
		got, _ := tt.defaults.Fill(tt.settings)
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got.OnTimeout != tt.action || got.PausedRetention != tt.retention || got.StallAfter > 0 != tt.stalls {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestDefaultsSayWhatTheyGave: a setting that was said counts also where it is
// zero, and what the defaults gave has its name.
func TestDefaultsSayWhatTheyGave(t *testing.T) {
	all := Defaults{
		OnTimeout: lifecycle.Pause, IdleTimeout: time.Minute, OnIdle: lifecycle.Kill, AutoResume: true, RefreshOnActivity: lifecycle.RefreshOnWork,
		FilesystemFallback: true, MaxLifetime: time.Hour, PausedRetention: time.Hour, CheckpointEvery: time.Minute, StallAfter: time.Minute,
	}
	for name, tt := range map[string]struct {
		settings lifecycle.Settings
		said     string
		given    string
	}{
		"nothing said": {lifecycle.Settings{Timeout: time.Minute}, "",
			"onTimeout idleTimeoutSeconds onIdle maxLifetimeSeconds pausedRetentionSeconds filesystemFallback checkpointEverySeconds stallAfterSeconds refreshOnActivity autoResume"},
		"no limits": {lifecycle.Settings{Timeout: time.Minute, PausedRetention: Unlimited}, "idleTimeoutSeconds maxLifetimeSeconds checkpointEverySeconds",
			"onTimeout onIdle filesystemFallback stallAfterSeconds refreshOnActivity autoResume"},
		"no timeout to refresh": {lifecycle.Settings{OnTimeout: lifecycle.Pause}, "idleTimeoutSeconds onIdle maxLifetimeSeconds pausedRetentionSeconds filesystemFallback checkpointEverySeconds stallAfterSeconds",
			"autoResume"},
		"killed in the end": {lifecycle.Settings{Timeout: time.Minute, OnTimeout: lifecycle.Kill}, "idleTimeoutSeconds onIdle maxLifetimeSeconds pausedRetentionSeconds filesystemFallback checkpointEverySeconds stallAfterSeconds refreshOnActivity",
			""},
		"files alone": {lifecycle.Settings{PauseMode: lifecycle.Filesystem}, "idleTimeoutSeconds onIdle maxLifetimeSeconds pausedRetentionSeconds filesystemFallback checkpointEverySeconds stallAfterSeconds",
			"onTimeout"},
	} {
		got, given := all.Fill(tt.settings, strings.Fields(tt.said)...)
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text := strings.Join(given, " "); text != tt.given {
			t.Errorf("%s: the defaults gave %s, want %s", name, text, tt.given)
		}
		for _, said := range strings.Fields(tt.said) {
			if said == "idleTimeoutSeconds" && got.IdleTimeout != 0 {
				t.Errorf("%s: the idle timeout is %s", name, got.IdleTimeout)
			}
		}
	}
}
