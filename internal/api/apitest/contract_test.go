package apitest

import (
	"testing"

	"github.com/drowse-dev/drowse/internal/supervisor/contract"
)

// TestContract holds the fake to what the dialects rely on of a supervisor.
func TestContract(t *testing.T) {
	contract.Run(t, func(*testing.T) contract.Supervisor { return NewFake() })
}
