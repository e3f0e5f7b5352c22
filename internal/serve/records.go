package serve

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime/drivers"
	"github.com/drowse-dev/drowse/internal/serve/settings"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/follow"
	"github.com/drowse-dev/drowse/internal/store/lease"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/tenure"
)

// elsewhere is what stands in the place of the database of a state directory whose records
// are in PostgreSQL. It is no database, so that a drowse that does not know of it refuses
// the directory, and does not take everything in it for nobody's.
type elsewhere struct {
	Note     string `json:"note"`     // for people
	Store    string `json:"store"`    // the URL that the server was given last
	Server   string `json:"server"`   // the id of the directory's server
	Database string `json:"database"` // tells the database from others
	// Branch of it was used last: a server that starts does not go back to an old primary.
	Branch store.Branch `json:"branch,omitzero"`

	writing sync.Mutex // held while it is changed and written
}

// note tells who wants to mend a damaged database what this is.
const note = "This is no damaged database. The records of this state directory are in PostgreSQL; a server that starts with an empty database in this place removes all sandboxes."

// mostElsewhere is more than the file can have, in bytes.
const mostElsewhere = 64 << 10

// readElsewhere returns where the records of a state directory are; nil where they are in
// it, or it has none yet.
func readElsewhere(dir string) (*elsewhere, error) {
	f, err := os.Open(databaseIn(dir))
	if errors.Is(err, fs.ErrNotExist) {
		if _, dangling := os.Lstat(databaseIn(dir)); dangling != nil {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostElsewhere))
	if err != nil || !bytes.HasPrefix(text, []byte("{")) {
		return nil, err
	}
	var e elsewhere
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return &e, nil
}

// write changes it, and puts it in the place of the database.
func (e *elsewhere) write(dir string, change func()) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	change()
	if e.Database == "" { // the records are not there yet
		return nil
	}
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return durable.Replace(databaseIn(dir), append(text, '\n'), 0o600)
}

// keepDatabase gives the database of a state directory a second name, which stays.
func keepDatabase(dir string) error {
	if log, err := os.Stat(databaseIn(dir) + "-wal"); err == nil && log.Size() > 0 {
		return errdef.New(errdef.Conflict, "store_in_use", "another program has %s open, and the records were copied without it knowing", databaseIn(dir)).
			WithRemedy("end it, drop the database that was copied into, make it anew, and start again")
	}
	if err := os.Remove(databaseBefore(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(databaseIn(dir), databaseBefore(dir))
}

// databaseBefore is the database of a state directory whose records have gone elsewhere.
func databaseBefore(dir string) string { return filepath.Join(dir, "drowse.db.before-postgres") }

// check refuses the database of a URL if it is not the one with the directory's records:
// by what another one names, all files of the directory would be nobody's.
func (e *elsewhere) check(ctx context.Context, dir, url string) (store.Glance, error) {
	g, err := store.Look(ctx, url, e.Server, e.Branch)
	if err == nil && g.Identity != e.Database {
		err = errdef.New(errdef.Conflict, "store_mismatch", "the database is not the one with the records of %s", dir).
			WithRemedy("give the URL of that one, or of a restored dump of it; the last one is in %s", databaseIn(dir))
	}
	return g, err
}

// checkIdle is check, and refuses a directory of which a copy has a server elsewhere: files
// come and go there.
func (e *elsewhere) checkIdle(ctx context.Context, dir string) (store.Glance, error) {
	g, err := e.check(ctx, dir, e.Store)
	if err != nil {
		return g, err
	}
	here, err := e.here(dir)
	if err == nil && g.Left > 0 && g.Holder.Place != here.Place {
		err = store.ErrServerLives(g.Holder, g.Left)
	}
	return g, err
}

// copyRecords copies the database with the records of a state directory, as [store.Copy] does.
func copyRecords(ctx context.Context, dir, to string) error {
	e, err := readElsewhere(dir)
	if err != nil {
		return err
	}
	if e == nil {
		return store.Copy(ctx, databaseIn(dir), "", store.Branch{}, to)
	}
	g, err := e.check(ctx, dir, e.Store)
	if err != nil {
		return err
	}
	return store.Copy(ctx, e.Store, e.Server, g.Branch, to)
}

// openRecords opens the store of a server that has its state directory for itself. e is nil
// with SQLite.
func openRecords(ctx context.Context, o Options) (st *store.SQL, e *elsewhere, err error) {
	e, err = readElsewhere(o.StateDir)
	switch {
	case err != nil:
		return nil, nil, err
	case o.Store == "" && e != nil:
		return nil, nil, errdef.New(errdef.Invalid, "store_missing", "the records of %s are in PostgreSQL, and the server was not told where", o.StateDir).
			WithRemedy("give it --store again; its last value is in %s", databaseIn(o.StateDir))
	case o.Store == "":
		st, err := store.Open(ctx, databaseIn(o.StateDir))
		return st, nil, err
	case e != nil:
		if _, err := e.check(ctx, o.StateDir, o.Store); err != nil {
			return nil, nil, err
		}
	}
	first := e == nil
	if first {
		e = &elsewhere{Note: note, Store: o.Store, Server: "srv_" + strings.ToLower(rand.Text()[:16])}
	}
	keep := func(b store.Branch) {
		if b == (store.Branch{}) {
			o.Log.Warn("PostgreSQL does not tell its timeline: after a fail-over this server cannot tell an old primary from the new one; let its role execute pg_control_system, pg_current_wal_lsn and pg_walfile_name")
			return
		}
		if err := e.write(o.StateDir, func() { e.Branch = b }); err != nil {
			o.Log.Warn("a start of this server may not know an old primary of its database", "err", err)
		}
	}
	if st, err = store.ConnectFrom(ctx, o.Store, e.Branch, keep); err != nil {
		return nil, nil, err
	}
	if first {
		err = e.moveIn(ctx, o, st)
	}
	if err != nil {
		return nil, nil, errors.Join(err, st.Close())
	}
	return st, e, nil
}

// moveIn has a database get the records of a state directory, if it has any; only one
// without servers does.
func (e *elsewhere) moveIn(ctx context.Context, o Options, st *store.SQL) error {
	servers, err := st.Servers(ctx)
	if err != nil {
		return err
	}
	_, err = os.Lstat(databaseIn(o.StateDir))
	switch {
	case err == nil && len(servers) > 0:
		return errdef.New(errdef.Conflict, "store_in_use", "the database has records already, of server %s, and %s has records of its own", servers[0].ID, o.StateDir).
			WithRemedy("give this server an empty state directory, or a database of its own (that one can be dropped and made anew if no server ever ran with it: a first start was cut off); sandboxes of one go to the other by drowse export and import")
	case err == nil:
		o.Log.Info("the records of the state directory are copied into PostgreSQL", "stateDir", o.StateDir)
		if err = store.Import(ctx, st, databaseIn(o.StateDir), e.Server); err == nil {
			err = keepDatabase(o.StateDir)
		}
	case errors.Is(err, fs.ErrNotExist):
		if err = noFiles(o.StateDir); err == nil && len(servers) == 0 {
			err = beFirst(ctx, st)
		}
	}
	if err != nil {
		return err
	}
	database, err := store.Identity(ctx, st)
	if err != nil {
		return err
	}
	return e.write(o.StateDir, func() { e.Database = database })
}

// beFirst refuses a database that has records and no server, unless one has just come.
func beFirst(ctx context.Context, st *store.SQL) error {
	empty := st.CheckEmpty(ctx)
	if empty == nil {
		return nil
	}
	servers, err := st.Servers(ctx)
	if err == nil && len(servers) == 0 {
		err = empty
	}
	return err
}

// noFiles refuses a state directory that has files of sandboxes, and no records.
func noFiles(dir string) error {
	for _, name := range []string{"layers", "images"} {
		files, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(files) > 0 {
			return errdef.New(errdef.Conflict, "store_mismatch", "%s has files of sandboxes, and a new database has no records of them", dir).
				WithRemedy("put its drowse.db back, or use an empty directory")
		}
	}
	return nil
}

// claim makes this process the one that writes for the server of a state directory, which
// it has locked, and waits for that if need be.
func (e *elsewhere) claim(ctx context.Context, o Options, st *store.SQL, as lease.Options) (*lease.Keeper, error) {
	if err := e.checkReachable(ctx, o, st); err != nil {
		return nil, err
	}
	srv, err := e.here(o.StateDir)
	if err != nil {
		return nil, err
	}
	srv.Address = o.PeerListen
	return lease.Claim(ctx, st, srv, as)
}

// checkReachable refuses a database that has other servers, where those could not reach this
// one, or it one of them that serves.
func (e *elsewhere) checkReachable(ctx context.Context, o Options, st *store.SQL) error {
	servers, err := st.Servers(ctx)
	for _, srv := range servers {
		switch {
		case err != nil || srv.ID == e.Server:
		case o.PeerListen == "":
			err = errdef.New(errdef.Conflict, "store_in_use", "the database has the records of server %s too, last on %s, which could not reach this one", srv.ID, srv.Name).
				WithRemedy("give this server --peer-listen with an address at which the others reach it, or a database of its own")
		case srv.Address == "" && srv.Alive():
			err = errdef.New(errdef.Conflict, "store_in_use", "the database has the records of server %s too, on %s, which this one could not reach", srv.ID, srv.Name).
				WithRemedy("start that one again with --peer-listen, or give this one a database of its own")
		}
	}
	return err
}

// here returns the server of a state directory as it is on this machine.
func (e *elsewhere) here(dir string) (srv store.Server, err error) {
	srv.ID = e.Server
	if srv.Name, err = os.Hostname(); err == nil {
		srv.Place, err = placeOf(dir)
	}
	return srv, err
}

// placeOf tells a state directory from a copy of it, and this start of the machine from
// others: no process of before has a lock in it.
func placeOf(dir string) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%s %d:%d", bytes.TrimSpace(boot), st.Dev, st.Ino), nil
}

// tenancy is what a server with PostgreSQL must have to serve.
type tenancy struct {
	*lease.Keeper
	fenced atomic.Bool // the supervisor has found that another process has claimed the server
	idle   bool        // no sandbox runs on here when the server has stopped
	// shares is whose sandboxes other servers take over when the lease has lapsed; nil while
	// there are none, or where they do not.
	shares atomic.Pointer[supervisor.Supervisor]
}

// share has a supervisor give up what others take over while the lease has lapsed. They can take
// what was ever copied, also if it is not any more.
func (h *tenancy) share(ctx context.Context, st store.Replicas, sup *supervisor.Supervisor, copies bool) error {
	all, err := st.Replicas(ctx, "")
	if err != nil || !copies && len(all) == 0 {
		return err
	}
	h.shares.Store(sup)
	return sup.Disown(ctx) // the lease may have lapsed while it started
}

// lapsed is called when other servers may have taken sandboxes over.
func (h *tenancy) lapsed() {
	if sup := h.shares.Load(); sup != nil {
		sup.CutAll()
	}
}

// back is called before the lease counts again that has lapsed.
func (h *tenancy) back(ctx context.Context) error {
	if sup := h.shares.Load(); sup != nil {
		return sup.Disown(ctx)
	}
	return nil
}

// openHeld opens the store of a server, and waits until it may be written to. With SQLite
// there is no tenancy.
func openHeld(ctx context.Context, o Options, closers *cleanups) (*store.SQL, *tenancy, error) {
	if o.Store != "" {
		starting := background(ctx, func(ctx context.Context) { askForTime(ctx, o.Log) })
		defer func() { _ = starting() }()
	}
	st, e, err := openPatiently(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	closers.add(st.Close)
	if e == nil {
		return st, nil, nil
	}
	hold := &tenancy{}
	k, err := e.claim(ctx, o, st, lease.Options{Log: o.Log, StandBy: func() { leaveTo(ctx, o, st, e) }, Lapsed: hold.lapsed, Back: hold.back})
	if err != nil {
		return nil, nil, err
	}
	hold.Keeper = k
	after := context.WithoutCancel(ctx) // the lease is kept while the server stops
	closers.add(func() error { return hold.end(after) })
	closers.add(background(after, func(ctx context.Context) { _ = k.Run(ctx) }))
	if e.Store != o.Store {
		err = e.write(o.StateDir, func() { e.Store = o.Store })
	}
	return st, hold, err
}

// storeRetry is how often a database is tried that cannot be reached.
const storeRetry = time.Second

// openPatiently is openRecords, and waits for a database that cannot be reached: that of a
// machine that starts may be later than this server, and sandboxes run meanwhile.
func openPatiently(ctx context.Context, o Options) (*store.SQL, *elsewhere, error) {
	for told := false; ; told = true {
		st, e, err := openRecords(ctx, o)
		if o.Store == "" || errdef.CodeOf(err) != "store_unavailable" {
			return st, e, err
		}
		if !told {
			o.Log.Warn("the server waits for its database", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil, nil, err
		case <-time.After(storeRetry):
		}
	}
}

// askForTime tells the service manager until ctx ends that a start takes its time.
func askForTime(ctx context.Context, log *slog.Logger) {
	for every := 10 * time.Second; ; {
		notify(log, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\nSTATUS=waits for its database", (3*every).Microseconds()))
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// leaveTo ends what still runs here of sandboxes, when a process of another machine has
// their server: this one has stopped, and that one has woken them.
func leaveTo(ctx context.Context, o Options, st *store.SQL, e *elsewhere) {
	here, err := e.here(o.StateDir)
	servers, err2 := st.Servers(ctx)
	if err = errors.Join(err, err2); err == nil && slices.ContainsFunc(servers, func(srv store.Server) bool { return srv.ID == e.Server && !srv.OnMachineOf(here) }) {
		var remains drivers.Remains
		if remains, err = drivers.Default().Remains(runtimesIn(o.StateDir)); err == nil {
			err = errors.Join(tenure.End(ctx, remains, mountsIn(o.StateDir)), remains.Close())
		}
	}
	if err != nil {
		o.Log.Error("sandboxes may still run here, whose server is on another machine", "err", err)
	}
}

// electEvery is how often it is asked who does what only one server may do.
const electEvery = time.Second

// resignWithin bounds how long a server that stops waits to tell the others.
const resignWithin = 2 * time.Second

// elected returns what tells whether this server is the one that does what only one may do, and
// which other one is. Closers that are added later stop doing it. Then the server resigns, since
// it may keep its lease for a while: until its sandboxes sleep, and their copies are made.
func (h *tenancy) elected(ctx context.Context, st store.Store, office string, closers *cleanups) func() (here bool, server string) {
	var elected atomic.Pointer[string]
	elected.Store(new(string))
	closers.add(func() error {
		elected.Store(new(string))
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignWithin)
		defer cancel()
		_ = st.Resign(ctx, office) // else the office is free when the lease ends
		return nil
	})
	closers.add(background(ctx, func(ctx context.Context) {
		tick := time.NewTicker(electEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			if server, err := st.Elect(ctx, office); err == nil { // else the lease tells
				elected.Store(&server)
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}))
	return func() (here bool, server string) {
		server = *elected.Load()
		if server != st.Self() {
			return false, server
		}
		return h.Check() == nil, ""
	}
}

// end gives the lease back, for a server of another place, unless sandboxes run on. The
// next one of this place waits for it in no case.
func (h *tenancy) end(ctx context.Context) error {
	if !h.idle || h.isOver() {
		return nil
	}
	return h.Release(ctx)
}

// leaveWithin bounds how long it takes to tell other servers that this one leaves. They look
// several times in noticed, since one of them may be busy.
const (
	leaveWithin = 2 * time.Second
	noticed     = 4 * follow.Every
)

// leave has other servers wait, with what they have for this one, until it has left: it stops
// answering now.
func (h *tenancy) leave(ctx context.Context, st *store.SQL, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	if err := st.Leave(ctx); err != nil {
		log.Warn("the other servers do not know that this one stops", "err", err)
		return
	}
	others, err := st.Servers(ctx)
	if err != nil || slices.ContainsFunc(others, func(srv store.Server) bool { return srv.ID != st.Self() && srv.Alive() }) {
		time.Sleep(noticed) // requests are served meanwhile
	}
}

// isOver reports whether another process has claimed the server.
func (h *tenancy) isOver() bool {
	return h != nil && (h.fenced.Load() || errdef.Is(h.Check(), errdef.Fenced))
}

// lease returns what the supervisor must have; nil for nothing.
func (h *tenancy) lease() tenure.Lease {
	if h == nil {
		return nil
	}
	return h
}

// tell is called when the supervisor finds that another process has claimed the server.
func (h *tenancy) tell(then func()) func() {
	return func() {
		h.fenced.Store(true)
		then()
	}
}

// errFenced is what a server ends with whose place another process has taken.
func errFenced(dir string) error {
	return errdef.New(errdef.Fenced, "fenced", "another process has taken the place of this server, with %s or a copy of it; sandboxes that ran here were ended", dir).
		WithRemedy("start one of the two only")
}

// writeRecords changes the records of a state directory that this process has locked, in
// the place of its server.
func writeRecords(ctx context.Context, dir string, change func(store.Store) error) (err error) {
	e, err := readElsewhere(dir)
	if err != nil {
		return err
	}
	o := Options{Server: settings.Server{StateDir: dir}, Log: slog.New(slog.DiscardHandler)}
	if e != nil {
		o.Store = e.Store
	}
	st, e, err := openRecords(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if e == nil {
		return change(st)
	}
	srv, err := e.here(dir)
	if err != nil {
		return err
	}
	if _, err := st.Claim(ctx, srv, lease.Life); err != nil {
		return err
	}
	return change(st)
}
