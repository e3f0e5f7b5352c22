// Package lifecycle is the pure core of drowse: what a sandbox's record says,
// which events change it, and what must then be done in the world.
//
// It does no I/O, starts no goroutine and never reads the clock: [Step] takes
// the time and returns a new record, the effects to carry out and the entries
// for the event log. The caller persists the record and the entries in one
// transaction first and acts on the effects second; every effect names the
// operation it belongs to, so that it can be repeated and so that a late reply
// is recognised as stale.
//
// The legal moves are one table (table.go). Its rows say for each situation
// and event whether the event applies, waits for the operation in flight,
// joins it, is stale, or is refused; error texts, the documentation's diagram
// and its table are derived from it.
package lifecycle
