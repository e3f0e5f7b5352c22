package e2b

import (
	"github.com/drowse-dev/drowse/internal/api/httpapi"
)

// parseSandboxID returns the sandbox id of a path segment.
func parseSandboxID(segment string) (string, error) {
	id, ok := httpapi.SandboxID(segment)
	if !ok {
		return "", badRequest("Invalid sandbox ID")
	}
	return id, nil
}
