package errdef

import "net/http"

// statuses are those of the classes in HTTP.
var statuses = map[Class]int{
	NotFound:     http.StatusNotFound,
	Exists:       http.StatusConflict,
	Invalid:      http.StatusBadRequest,
	WrongState:   http.StatusConflict,
	Conflict:     http.StatusConflict,
	Fenced:       http.StatusServiceUnavailable,
	Exhausted:    http.StatusTooManyRequests,
	Unavailable:  http.StatusServiceUnavailable,
	Unauthorized: http.StatusUnauthorized,
	Forbidden:    http.StatusForbidden,
	Unsupported:  http.StatusNotImplemented,
	Unfit:        http.StatusNotImplemented,
	Internal:     http.StatusInternalServerError,
}

// exceptions are the codes for which HTTP has a status of its own.
var exceptions = map[string]int{
	"body_timed_out":         http.StatusRequestTimeout,
	"body_too_large":         http.StatusRequestEntityTooLarge,
	"idempotency_key_reused": http.StatusUnprocessableEntity,
	"method_not_allowed":     http.StatusMethodNotAllowed,
	"timed_out":              http.StatusGatewayTimeout,
}

// Status returns the HTTP status of an error. A dialect whose clients take one for
// something else has its own for that.
func Status(e *Error) int {
	if status, ok := exceptions[e.Code]; ok {
		return status
	}
	if status, ok := statuses[e.Class]; ok {
		return status
	}
	return http.StatusInternalServerError
}
