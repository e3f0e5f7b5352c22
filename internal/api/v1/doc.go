// Package v1 is drowse's own dialect of the control plane: REST under /v1, with
// the flat verbs that some clients prefer, and OpenAPI 3.1 at /v1/openapi.json.
//
// It translates and does nothing else. A request is parsed and judged here;
// what is asked for is done by a [Sandboxes]. The package keeps no state, so
// any number of requests may run at once.
//
// What it promises:
//
//   - What is asked is what is given, or a refusal by name. Unknown fields are
//     refused; nothing is clamped; no clock has a limit that nobody asked for.
//   - Every spelling of an option that is common in the field is understood,
//     and two spellings that contradict each other are refused. Which option
//     is which is one table, options.go, from which the documentation of the
//     bodies is made as well.
//   - Every error, whatever its cause, is {"error": {code, message, cause,
//     remediation, context}}, and its code is in the catalogue of errdef.
//   - A stream of events gives each event once and in order, and one that is
//     taken up with Last-Event-ID goes on where it broke off.
//   - Keys and tokens appear in no log line and no error.
//
// routes.go lists all endpoints and what each of them is: open or not,
// activity of the sandbox or not, able to wake it or not. The documents in
// docs/api are generated: see gen.
package v1

//go:generate go run ./gen ../../../docs/api
//go:generate go run ../../../sdk/gen ../../..
