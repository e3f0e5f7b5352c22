package apitest

import (
	"context"

	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/services"
)

// NewServices returns the services of sandboxes in which no agent answers.
func NewServices(s services.Sandboxes) *services.Board {
	return services.New(context.Background(), s, agentclient.Host{}, 1, nil)
}
