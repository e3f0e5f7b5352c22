// Package errdef defines the few classes of error that cross package
// boundaries in drowse, so that a caller can act on what went wrong and each
// surface (HTTP dialect, command line) maps a class to its own code once.
//
// An [Error] tells a user what happened, the state now and the next step. Its
// Code is stable and machine-readable; its text is not.
package errdef

import (
	"errors"
	"fmt"
	"slices"
)

// Class says what kind of failure an error is, and so what a caller can do.
type Class string

// The classes. Values are stable: they appear in logs.
const (
	NotFound     Class = "not_found"    // no such thing
	Exists       Class = "exists"       // it is there already
	Invalid      Class = "invalid"      // the request can never succeed as it is
	WrongState   Class = "wrong_state"  // the thing is not in a state that allows this
	Conflict     Class = "conflict"     // something else holds it
	Fenced       Class = "fenced"       // another server has taken the place of this one
	Exhausted    Class = "exhausted"    // a limit or quota is reached
	Unavailable  Class = "unavailable"  // it may work later
	Unauthorized Class = "unauthorized" // no valid credential
	Forbidden    Class = "forbidden"    // a valid credential that does not suffice
	Unsupported  Class = "unsupported"  // this server or runtime cannot do it
	Unfit        Class = "unfit"        // the server's host cannot do it until someone repairs it
	Internal     Class = "internal"     // our own fault
)

// Error is a failure that a user can read and a program can branch on.
type Error struct {
	Class   Class
	Code    string // stable machine-readable name, such as "template_not_found"
	Message string // what happened and the state now
	Remedy  string // the next step, if there is one
	Err     error  // the cause, for logs and errors.Is; may be nil
	// Context is what a program may want to know of it, by name, such as what
	// was requested and what is allowed. Its values must encode as JSON.
	Context map[string]any
}

// New returns an *Error with a formatted message. A %w verb sets the cause.
func New(class Class, code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Class: class, Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// WithRemedy sets the next step and returns e.
func (e *Error) WithRemedy(format string, args ...any) *Error {
	e.Remedy = fmt.Sprintf(format, args...)
	return e
}

// With adds a fact to the context and returns e.
func (e *Error) With(name string, value any) *Error {
	if e.Context == nil {
		e.Context = map[string]any{}
	}
	e.Context[name] = value
	return e
}

// Error returns the message, followed by the next step where there is one.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Message
	}
	return e.Message + ": " + e.Remedy
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of the outermost *Error in err's chain, Internal
// if there is none, and "" for a nil error.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return Internal
}

// Is reports whether err has the given class.
func Is(err error, class Class) bool { return err != nil && ClassOf(err) == class }

// CodeOf returns the code of the outermost *Error in err's chain; empty if there is none.
func CodeOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// lasting are the codes of Unavailable that stay until somebody repairs what they
// name.
var lasting = []string{"checkpoint_damaged", "checkpoint_unreadable", "replica_damaged", "secrets_unreadable"}

// Lasting reports whether no retry cures an error of this code, so that nobody is
// told when to try again.
func Lasting(code string) bool { return slices.Contains(lasting, code) }

// Fact returns a fact of the outermost *Error in err's chain, nil if it has none
// of that name.
func Fact(err error, name string) any {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Context[name]
	}
	return nil
}
