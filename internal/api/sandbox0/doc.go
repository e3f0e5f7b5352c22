// Package sandbox0 is the API of sandbox0, as its published clients speak it:
// everything under /api/v1.
//
// The two generations of these clients want different answers to the same
// requests. A client chooses its generation by its base URL; see [generation].
//
// What a sandbox is and does is the supervisor's: the handlers translate. A field
// that this server cannot honour is refused by its name, and an endpoint that it
// lacks answers 501. Contexts and files are asked of the sandbox's agent, through
// package guest, so that such a request wakes the sandbox and counts as activity
// like every other way in.
package sandbox0
