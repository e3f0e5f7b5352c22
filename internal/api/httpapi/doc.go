// Package httpapi is what the dialects of the control plane have in common
// below their words: finding a route, reading a body within bounds, writing an
// answer, letting browsers in, and the forms of names.
//
// It knows no dialect: where something is wrong it says what, and the dialect
// puts that into its own kind of error. Nothing here keeps state.
package httpapi
