package e2b

import (
	"strings"

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

// parseTemplate returns the canonical form of a reference to a template.
func parseTemplate(text string) (string, error) {
	if strings.TrimSpace(text) == "" {
		return "", badRequest(`"templateID" is required`)
	}
	ref, ok := httpapi.Template(text)
	if !ok {
		return "", badRequest(`"templateID" %q is not the name of a template: use %s`, text, httpapi.TemplateForms)
	}
	return ref, nil
}
