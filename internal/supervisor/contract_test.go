package supervisor_test

import (
	"context"
	"testing"

	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/contract"
)

// TestContract holds the supervisor to what its callers rely on, and the fakes that
// they are tested with keep too.
func TestContract(t *testing.T) {
	t.Run("deep sleep", func(t *testing.T) { keepContract(t, false) })
	t.Run("light sleep", func(t *testing.T) { keepContract(t, true) })
}

func keepContract(t *testing.T, light bool) {
	contract.Run(t, func(t *testing.T) contract.Server {
		s := supervisor.OpenForContract(t, light)
		return contract.Server{
			Supervisor: s, Volumes: s, Services: s, Snapshots: s, Templates: s,
			Reach: func(ctx context.Context, id string, port int, path string) error {
				lease, err := s.Acquire(ctx, id, supervisor.Access{Port: port, Path: path})
				if err == nil {
					lease.Release()
				}
				return err
			},
		}
	})
}
