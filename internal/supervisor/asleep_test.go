package supervisor

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// TestRefusalOfASleeperSaysWhy holds that what is refused because the sandbox
// sleeps is told what put it to sleep, and when. Time is virtual.
func TestRefusalOfASleeperSaysWhy(t *testing.T) {
	idle := lifecycle.Settings{Timeout: time.Hour, IdleTimeout: 10 * time.Second, OnTimeout: lifecycle.Kill, OnIdle: lifecycle.Pause}
	soft := lifecycle.Settings{Timeout: 10 * time.Second, OnTimeout: lifecycle.Pause}
	for name, test := range map[string]struct {
		settings lifecycle.Settings
		sleep    func(t *testing.T, s *Supervisor, id string)
		cause    lifecycle.Cause
	}{
		"idle":    {idle, func(*testing.T, *Supervisor, string) { time.Sleep(12 * time.Second) }, lifecycle.CauseIdle},
		"timeout": {soft, func(*testing.T, *Supervisor, string) { time.Sleep(12 * time.Second) }, lifecycle.CauseTimeout},
		"call": {soft, func(t *testing.T, s *Supervisor, id string) {
			if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
		}, lifecycle.CauseCall},
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, test.settings, func(t *testing.T, s *Supervisor, id string) {
				test.sleep(t, s, id)
				synctest.Wait()
				at := record(t, s, id).PausedAt.Format("2006-01-02T15:04:05.000000Z")
				for _, a := range []Access{{Port: counterPort}, {Port: agentapi.Port, Probe: true}} {
					_, err := s.Acquire(t.Context(), id, a)
					e, ok := errors.AsType[*errdef.Error](err)
					if !ok || e.Context["reason"] != test.cause || e.Context["pausedAt"] != at {
						t.Errorf("%+v: %v with %v, want %s at %s", a, err, e.Context, test.cause, at)
					}
				}
			})
		})
	}
}
