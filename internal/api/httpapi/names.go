package httpapi

import (
	"strings"

	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// templateForm is a template id or alias, optionally in a namespace and
// optionally with a tag.
var templateForm = lazyregexp.New(`^(?:[a-z0-9_-]+/)?[a-z0-9_-]+(?::[a-z0-9_.-]+)?$`)

// TemplateForms says what a reference to a template may be.
const TemplateForms = "an id, alias, alias:tag or namespace/alias"

// Template returns the canonical form of a reference to a template: lower
// case, trimmed, without the default tag; and false if it cannot be one.
func Template(text string) (string, bool) {
	ref := strings.ToLower(strings.TrimSpace(text))
	if !templateForm.MatchString(ref) {
		return "", false
	}
	return strings.TrimSuffix(ref, ":default"), true
}
