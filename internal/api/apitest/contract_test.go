package apitest

import (
	"context"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/supervisor/contract"
)

// TestContract holds the fake to what the dialects rely on of a supervisor.
func TestContract(t *testing.T) {
	contract.Run(t, func(*testing.T) contract.Server {
		f := NewFake()
		f.Now = time.Now().UTC()
		return contract.Server{
			Supervisor: f, Volumes: f, Services: NewServices(f), Snapshots: NewSnapshots(f), Templates: NewTemplates(f),
			Look: func() { pass(f, time.Since(f.Now)) },
			Reach: func(_ context.Context, id string, port int, path string) error {
				return Reach(f, id, port, path, "traffic")
			},
		}
	})
}
