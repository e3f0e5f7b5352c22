package httpapi

import "github.com/drowse-dev/drowse/internal/auth"

// Endpoint is a route of a dialect, as others than the dialect need to know it.
type Endpoint struct {
	Method, Pattern string
	Needs           auth.Permission // of the API key; empty for what anybody may call
}
