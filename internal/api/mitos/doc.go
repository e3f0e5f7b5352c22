// Package mitos is the mitos dialect of drowse's control plane: what mitos' own,
// unmodified SDK speaks to a server without Kubernetes. It is mounted below
// [Prefix].
//
// It translates and does nothing else. A request is parsed and judged here; what
// is asked for is done by [Sandboxes], or inside a sandbox by its agent, which
// package guest reaches. routes.go lists all endpoints.
//
// What it promises:
//
//   - A sandbox is called by the name that its creator chose, in the space of the
//     API key; a sandbox of another key or dialect by its drowse id.
//   - Every error has mitos' own form: an envelope with a cause that is never null
//     for REST, and a code and a message for calls by RPC. A stream that has begun
//     ends with the error in its last frame.
//   - What a request says and drowse lacks is refused by name, never ignored.
//   - Limits refuse, they do not clamp.
//   - Keys and tokens appear in no log line and no error.
//
// It keeps one thing in memory: what network and resources a template has for an
// API key, which mitos' SDK says anew before each create. After a restart a fork
// of a template that nobody has said anything of is refused.
package mitos
