package replication

import (
	"context"
	"errors"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// failure is why there is no copy, for clients: they learn no address, key
// or path of the server, which the error has that it wraps.
type failure struct {
	text string
	err  error
}

// Error implements error.
func (f *failure) Error() string { return f.text }

// Unwrap returns the whole error, for the log.
func (f *failure) Unwrap() error { return f.err }

// failureOf returns what clients are told of what became of an attempt.
func failureOf(res result) *failure {
	e, ok := errors.AsType[*errdef.Error](res.err)
	if ok && e.Code == "not_portable" { // it is of the sandbox, and an export says the same
		return &failure{e.Error(), res.err}
	}
	return &failure{reason(res) + "; the server's log has more", res.err}
}

func reason(res result) string {
	code := errdef.CodeOf(res.err)
	_, elsewhere := store.Elsewhere(res.err)
	switch {
	case code == "blobs_unavailable":
		return "the object storage does not answer, or refuses what it is asked"
	case code == "store_unavailable":
		return "the server cannot read or write its database"
	case elsewhere:
		return "another server has it"
	case errors.Is(res.err, context.DeadlineExceeded):
		return "it took too long"
	case res.store:
		return "the object storage or the server's database has failed"
	case code == "checkpoint_damaged":
		return "files of its checkpoint are damaged"
	case errdef.Is(res.err, errdef.NotFound):
		return "the server does not have it any more"
	}
	return "the server cannot read its checkpoint"
}

// tellEvery is how often the log says that something still fails.
const tellEvery = 10 * time.Minute

// spell is a time in which attempts fail on end.
type spell struct {
	since time.Time // zero if they do not
	told  time.Time // when the log has said so last
}

// fails notes one that has failed, and reports whether the log is to say so.
func (f *spell) fails(now time.Time) bool {
	if f.since.IsZero() {
		f.since = now
	} else if now.Sub(f.told) < tellEvery {
		return false
	}
	f.told = now
	return true
}

// ends notes that one has succeeded, and returns for how long they have failed.
func (f *spell) ends(now time.Time) (lasted time.Duration, failed bool) {
	if f.since.IsZero() {
		return 0, false
	}
	lasted, failed = now.Sub(f.since), true
	*f = spell{}
	return lasted, failed
}
