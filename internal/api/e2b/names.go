package e2b

import (
	"strings"

	"github.com/drowse-dev/drowse/internal/sandboxid"
)

// parseSandboxID returns the sandbox id of a path segment, which may be the historical
// composite of it and a client id.
func parseSandboxID(segment string) (string, error) {
	id, client, composite := strings.Cut(segment, "-")
	if !sandboxid.Possible(id) || composite && !sandboxid.Possible(strings.ToLower(client)) {
		return "", badRequest("Invalid sandbox ID")
	}
	return id, nil
}
