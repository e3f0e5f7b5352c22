package store

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Server is one that writes to the store, or has.
type Server struct {
	ID   string `json:"id"`   // of its state directory, with which it goes to another machine
	Name string `json:"name"` // of its machine, for people
	// Place tells one state directory of one start of one machine from all others. A
	// process that has locked it knows that no other of the place is left.
	Place string `json:"-"`
	// Epoch is one higher with each claim.
	Epoch int64 `json:"epoch"`
	// LeaseEndsAt is by the clock of the database. Until then nobody of another place
	// takes the server's part.
	LeaseEndsAt time.Time `json:"leaseEndsAt"`
}

// Leases say which process writes for a server. There is at most one: whoever claims a
// server that another process had shuts that one out, whatever it believes.
type Leases interface {
	// Claim makes this the store of the server with srv's ID, and gives it a lease for so
	// long. What this store writes from then on carries the server's new epoch, and is
	// errdef.Fenced once somebody else has claimed the server: nothing of it happens. It
	// is errdef.Conflict, with how long to wait as retry_after_ms, while the server's
	// lease lasts and is of another place. The result has the new epoch.
	Claim(ctx context.Context, srv Server, life time.Duration) (Server, error)
	// Renew lets the lease last for so long from now. It is errdef.Fenced if somebody else
	// has claimed the server.
	Renew(ctx context.Context, life time.Duration) error
	// Release ends the lease, so that nobody needs to wait for that. It can be renewed
	// until somebody claims the server.
	Release(ctx context.Context) error
	// Servers returns all of them, by id.
	Servers(ctx context.Context) ([]Server, error)
}

// ErrServerLives is what Claim returns while another process has the lease.
func ErrServerLives(srv Server, left time.Duration) error {
	return errdef.New(errdef.Conflict, "server_lives", "another process, on %s, writes for server %s, and its lease lasts for %s",
		srv.Name, srv.ID, left.Round(time.Millisecond)).
		WithRemedy("stop that process, or wait until it has not renewed its lease").With("retry_after_ms", left.Milliseconds())
}

// ErrFenced says that somebody else has claimed the server that wrote.
func ErrFenced(id string) error {
	return errdef.New(errdef.Fenced, "fenced", "another process has taken the place of this one as server %s, and nothing was changed", id).
		WithRemedy("stop one of the two: they use copies of one state directory")
}
