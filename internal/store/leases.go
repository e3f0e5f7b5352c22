package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Server is one that writes to the store, or has.
type Server struct {
	ID   string `json:"id"`   // of its state directory, with which it goes to another machine
	Name string `json:"name"` // of its machine, for people
	// Place tells one state directory of one start of one machine from all others. A
	// process that has locked it knows that no other of the place is left. What is before
	// a space tells the machine.
	Place string `json:"-"`
	// Address is where other servers of the database reach it; empty where they do not.
	Address string `json:"address,omitempty"`
	// Epoch is one higher with each claim.
	Epoch int64 `json:"epoch"`
	// LeaseEndsAt is by the clock of the database. Until then nobody of another place
	// takes the server's part.
	LeaseEndsAt time.Time `json:"leaseEndsAt"`
	// Leaving says that the process stops, or has: it makes what it has ready for others, and
	// its lease ends then.
	Leaving bool `json:"leaving,omitempty"`
	// Draining says that an operator wants others to have what it has, and Drains which of these
	// times this is. It lasts over starts.
	Draining bool  `json:"draining,omitempty"`
	Drains   int64 `json:"-"`
	// Left is how long that was from then when it was read; negative for a lease that is over.
	Left time.Duration `json:"-"`
	// Held is for how long its lease has had no gap then.
	Held time.Duration `json:"-"`
	// Room is what it said last that it has; nil if it has not said since it was claimed.
	Room *Room `json:"room,omitempty"`
}

// Room is what a server has for more sandboxes.
type Room struct {
	Running    int  `json:"running"`              // sandboxes
	MaxRunning int  `json:"maxRunning,omitempty"` // 0 for no bound
	MemoryMiB  int  `json:"memoryMiB"`            // of its machine that is available
	DiskMiB    int  `json:"diskMiB"`              // that is free where its sandboxes are
	Copies     bool `json:"copies,omitempty"`     // it has object storage, and takes over what is there
	// What a memory image must have been made with to be restored there.
	Architecture string   `json:"architecture"`
	Runtime      string   `json:"runtime"`
	CPU          []string `json:"cpu,omitempty"` // features of the processor
	// Templates has the ids of its templates by their names.
	Templates map[string]string `json:"templates,omitempty"`
	Drain     *Drain            `json:"drain,omitempty"` // nil unless it is drained
}

// Drain is how far a server is that is drained.
type Drain struct {
	Of    int64  `json:"of"`              // the Drains of the server that it was told for
	Left  int    `json:"left"`            // sandboxes, snapshots and templates that it has still
	Stay  int    `json:"stay"`            // of these, that were tried and could not go
	Cause string `json:"cause,omitempty"` // why the last of these could not
}

// Reads reports whether memory images of a server with room of are restored by one with r.
func (r Room) Reads(of Room) bool {
	return r.Architecture == of.Architecture && r.Runtime == of.Runtime && !slices.ContainsFunc(of.CPU, func(feature string) bool { return !slices.Contains(r.CPU, feature) })
}

// BackWithin is how long servers have to renew their leases after the database was away for
// all of them.
const BackWithin = 15 * time.Second

// Alive reports whether its lease lasts.
func (srv Server) Alive() bool { return srv.Left > 0 }

// Answers reports whether it answers requests, as far as is known.
func (srv Server) Answers() bool { return srv.Alive() && !srv.Leaving }

// ServerOf returns the server with an id; one without, which is not alive, for none.
func ServerOf(all []Server, id string) Server {
	if i := slices.IndexFunc(all, func(srv Server) bool { return srv.ID == id }); i >= 0 {
		return all[i]
	}
	return Server{}
}

// goneFor returns for how long another server is gone, as far as this one can know: while its
// own lease had lapsed, the database was away, and says nothing of others.
func (srv Server) goneFor(owner Server) time.Duration {
	if owner.Alive() || owner.Leaving { // which has said so
		return -owner.Left
	}
	return min(-owner.Left, srv.Held-BackWithin)
}

// OnMachineOf reports whether two places are of the same start of the same machine.
func (srv Server) OnMachineOf(other Server) bool {
	machine, _, _ := strings.Cut(srv.Place, " ")
	its, _, _ := strings.Cut(other.Place, " ")
	return machine == its
}

// Gone returns for how long one of the servers, the owner of something, is gone as another of
// them, self, can know. Negative is for one that is not gone; one that is not among them always
// was.
func Gone(all []Server, self, owner string) time.Duration {
	its, own := ServerOf(all, owner), ServerOf(all, self)
	switch {
	case its.ID == "":
		return math.MaxInt64
	case own.ID == "":
		return -1
	}
	return own.goneFor(its)
}

// Given is Gone of what does not run, which a server that is drained gives away while it lives.
func Given(all []Server, self, owner string) time.Duration {
	if over := Gone(all, self, owner); over >= 0 || !ServerOf(all, owner).Draining {
		return over
	}
	return 0
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
	// Leave tells other servers that the process stops, until the server is claimed again.
	Leave(ctx context.Context) error
	// Release ends the lease, so that nobody needs to wait for that. It can be renewed
	// until somebody claims the server.
	Release(ctx context.Context) error
	// SetRoom tells other servers what this one has for more sandboxes.
	SetRoom(ctx context.Context, room Room) error
	// SetDraining says of any server that it is drained, or is not any more; errdef.NotFound if
	// there is none of the id.
	SetDraining(ctx context.Context, server string, draining bool) error
	// Servers returns all of them, by id.
	Servers(ctx context.Context) ([]Server, error)
}

// ErrServerLives is what Claim returns while another process has the lease.
func ErrServerLives(srv Server, left time.Duration) error {
	return errdef.New(errdef.Conflict, "server_lives", "another process, on %s, writes for server %s, and its lease lasts for %s",
		srv.Name, srv.ID, left.Round(time.Millisecond)).
		WithRemedy("stop that process, or wait until it has not renewed its lease").With("retry_after_ms", left.Milliseconds())
}

// ErrServerNotFound says that the database knows no such server.
func ErrServerNotFound(id string) error {
	return errdef.New(errdef.NotFound, "server_not_found", "there is no server %.100q", id).
		WithRemedy("drowse servers lists those of the database").With("server", id)
}

// ErrFenced says that somebody else has claimed the server that wrote.
func ErrFenced(id string) error {
	return errdef.New(errdef.Fenced, "fenced", "another process has taken the place of this one as server %s, and nothing was changed", id).
		WithRemedy("stop one of the two: they use copies of one state directory")
}

// leases is the part of a database with the servers.
type leases struct {
	s    *SQL
	mine atomic.Pointer[claim] // that this store has made; nil for none
}

// claim is one of a server. The epoch alone could be that of another claim, which the
// database has lost in a fail-over.
type claim struct{ server, id string }

// claimed returns the server that this store has claimed, and by which claim.
func (x *leases) claimed() (server, id string) {
	if c := x.mine.Load(); c != nil {
		return c.server, c.id
	}
	return "", ""
}

// Claim implements [Store].
func (x *leases) Claim(ctx context.Context, srv Server, life time.Duration) (Server, error) {
	c := claim{srv.ID, rand.Text()}
	err := x.s.writeAs(ctx, noKey, true, func(ctx context.Context, tx *sql.Tx) error {
		var (
			name, place string
			left        int64 // milliseconds
		)
		err := tx.QueryRowContext(ctx, `SELECT name, place, epoch, lease_until - `+x.s.engine.now()+` FROM servers WHERE id = ?`, srv.ID).
			Scan(&name, &place, &srv.Epoch, &left)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			srv.Epoch = 0
		case err != nil:
			return err
		case left > 0 && place != srv.Place:
			return ErrServerLives(Server{ID: srv.ID, Name: name}, time.Duration(left)*time.Millisecond)
		}
		srv.Epoch++
		var until int64
		err = tx.QueryRowContext(ctx, `
			INSERT INTO servers (id, name, place, address, epoch, claim, lease_until, held_since) VALUES (?, ?, ?, ?, ?, ?, `+x.s.engine.now()+` + CAST(? AS INTEGER), `+x.s.engine.now()+`)
			ON CONFLICT (id) DO UPDATE SET name = excluded.name, place = excluded.place, address = excluded.address, epoch = excluded.epoch,
				claim = excluded.claim, lease_until = excluded.lease_until, leaving = 0, room = '',
				held_since = CASE WHEN servers.lease_until > excluded.held_since THEN servers.held_since ELSE excluded.held_since END
			RETURNING lease_until`, srv.ID, srv.Name, srv.Place, srv.Address, srv.Epoch, c.id, life.Milliseconds()).Scan(&until)
		srv.LeaseEndsAt = time.UnixMilli(until).UTC()
		if err != nil {
			return err
		}
		return adopt(ctx, tx, srv.ID)
	})
	if err != nil {
		return Server{}, x.s.explain(err, "claim server %s", srv.ID)
	}
	x.mine.Store(&c)
	return srv, nil
}

// Renew implements [Store].
func (x *leases) Renew(ctx context.Context, life time.Duration) error {
	server, id := x.claimed()
	err := x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `
			UPDATE servers SET held_since = CASE WHEN lease_until > `+x.s.engine.now()+` THEN held_since ELSE `+x.s.engine.now()+` END,
				lease_until = `+x.s.engine.now()+` + CAST(? AS INTEGER) WHERE id = ? AND claim = ?`, life.Milliseconds(), server, id)
		return oneRow(result, err, func() error { return ErrFenced(server) })
	})
	return x.s.explain(err, "renew the lease of server %s", server)
}

// Leave implements [Store].
func (x *leases) Leave(ctx context.Context) error {
	return x.tell(ctx, "say that server %s leaves", []Kind{KindOwners}, `leaving = 1`)
}

// Release implements [Store].
func (x *leases) Release(ctx context.Context) error {
	return x.tell(ctx, "release the lease of server %s", []Kind{KindOwners}, `leaving = 1, lease_until = `+x.s.engine.now())
}

// SetRoom implements [Store].
func (x *leases) SetRoom(ctx context.Context, room Room) error {
	data, err := json.Marshal(room)
	if err != nil {
		return fmt.Errorf("write what server %s has: %w", x.s.Self(), err)
	}
	return x.tell(ctx, "say what server %s has", nil, `room = ?`, string(data))
}

// SetDraining implements [Store].
func (x *leases) SetDraining(ctx context.Context, server string, draining bool) error {
	sign := 1 // of how often that was said
	if !draining {
		sign = -1
	}
	err := x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `UPDATE servers SET draining = ? * (ABS(draining) + 1) WHERE id = ?`, sign, server)
		if err := oneRow(result, err, func() error { return ErrServerNotFound(server) }); err != nil {
			return err
		}
		return changed(ctx, tx, KindOwners)
	})
	return x.s.explain(err, "say whether server %s is drained", server)
}

// tell changes what the others are to know of the server that this store has claimed.
func (x *leases) tell(ctx context.Context, what string, kinds []Kind, set string, args ...any) error {
	server, id := x.claimed()
	err := x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `UPDATE servers SET `+set+` WHERE id = ? AND claim = ?`, append(args, server, id)...)
		if err := oneRow(result, err, func() error { return ErrFenced(server) }); err != nil {
			return err
		}
		return changed(ctx, tx, kinds...)
	})
	return x.s.explain(err, what, server)
}

// Servers implements [Store].
func (x *leases) Servers(ctx context.Context) ([]Server, error) {
	all, err := collect(ctx, x.s.reader, scanServer, x.s.selectServers())
	return all, x.s.explain(err, "read servers")
}

// selectServers asks for all servers, as scanServer reads them.
func (s *SQL) selectServers() string {
	now := s.engine.now()
	return `SELECT id, name, place, address, epoch, leaving = 1, draining, lease_until, lease_until - ` + now + `, ` + now + ` - held_since, room FROM servers ORDER BY id`
}

func scanServer(rows *sql.Rows) (srv Server, err error) {
	var (
		until, left, held int64
		room              string
	)
	if err := rows.Scan(&srv.ID, &srv.Name, &srv.Place, &srv.Address, &srv.Epoch, &srv.Leaving, &srv.Drains, &until, &left, &held, &room); err != nil {
		return srv, err
	}
	srv.Draining = srv.Drains > 0
	srv.LeaseEndsAt = time.UnixMilli(until).UTC()
	srv.Left, srv.Held = time.Duration(left)*time.Millisecond, time.Duration(held)*time.Millisecond
	if room != "" {
		err = json.Unmarshal([]byte(room), &srv.Room)
	}
	return srv, err
}
