package supervisor_test

import (
	"context"
	"testing"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/contract"
)

// based has the template of the bench under the name of the contract.
type based struct{ *supervisor.Supervisor }

func (b based) Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error) {
	if req.Template == "base" {
		req.Template = "test"
	}
	return b.Supervisor.Create(ctx, req)
}

// TestContract holds the supervisor to what its callers rely on, and the fake that
// they are tested with keeps too.
func TestContract(t *testing.T) {
	contract.Run(t, func(t *testing.T) contract.Supervisor { return based{supervisor.OpenForContract(t)} })
}
