// Package e2b is the E2B dialect of drowse's control plane: the REST API that
// official, unmodified E2B SDKs speak.
//
// It translates and does nothing else. A request is parsed and judged here;
// what is asked for is done by a [Sandboxes]; its answer, or its errdef class,
// is put into the words that E2B clients expect. The package keeps no state, so
// any number of requests may run at once.
//
// What it promises:
//
//   - Exactly the success statuses, headers and required fields of E2B's
//     specification: the Python SDK parses nothing else.
//   - Every error, whatever its cause, is JSON with a numeric code equal to the
//     HTTP status: the JavaScript SDK decides by it.
//   - A request that cannot be honoured as it stands is refused by name and
//     never answered with something weaker. Limits refuse, they do not clamp.
//   - Paths are routed as sent: no redirect, no cleaning, escapes undone per
//     segment and after the split.
//   - Keys and tokens appear in no log line and no error.
//
// routes.go lists all endpoints. The data plane (traffic into sandboxes) is not
// here; it belongs to the edge.
package e2b
