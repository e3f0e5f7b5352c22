package httpapi

import "net/http"

const (
	exposedHeaders = "Location, X-Next-Token, X-Total-Running, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Retry-After"
	allowedMethods = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
	// allowedHeaders is for a preflight that does not say what it wants.
	allowedHeaders = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-API-Key"
)

// AllowOrigins lets a page of any origin read the answer. That gives nothing
// away: a request counts by the key that it carries, never by cookies.
func AllowOrigins(h http.Header) {
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", exposedHeaders)
}

// Preflight answers OPTIONS on any path, without a key. SDKs in a browser send
// headers of their own and of their users, so whatever is asked for is allowed.
func Preflight(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", allowedMethods)
	h.Set("Access-Control-Allow-Headers", allowedHeaders)
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", "7200")
	h.Add("Vary", "Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
}
