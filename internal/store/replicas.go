package store

import (
	"cmp"
	"context"
	"database/sql"
	"reflect"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/replica/seal"
)

// Replica is a copy of the checkpoint of a sandbox or a snapshot in object storage, from which
// any server of the database can make the checkpoint again. Each has one at most.
type Replica struct {
	Sandbox    string // the id; empty for the copy of a snapshot
	Snapshot   string // the id; empty for the copy of a sandbox
	Checkpoint string // the checkpoint whose copy it is, as [CopyOf] has it
	Index      string // under which the object storage has the list of its parts
	// EncryptionKey decrypts what the object storage has; empty for a copy that is not encrypted.
	// It is nowhere else, and nobody can read the copy once the replica is removed.
	EncryptionKey seal.Key
	Bytes         int64 // of the copy
	At            time.Time
	// Offered is the server that may take the sandbox although its owner lives; empty for none.
	Offered string
}

// Of returns the id of what it is a copy of.
func (r Replica) Of() string { return cmp.Or(r.Sandbox, r.Snapshot) }

// filesSuffix is on what CopyOf returns for a checkpoint without memory.
const filesSuffix = "/files"

// CopyOf names what a copy of a checkpoint has of it: its id, with a suffix where that is its files
// alone. A checkpoint with memory and its files without are two of the same id.
func CopyOf(cp lifecycle.Checkpoint) string {
	if cp.Mode == lifecycle.Filesystem {
		return cp.ID + filesSuffix
	}
	return cp.ID
}

// Covers reports whether who has a copy has what another would have, both as CopyOf names them.
func Covers(has, other string) bool {
	return has != "" && (has == other || has+filesSuffix == other)
}

// Durability says where the checkpoint of a sandbox or a snapshot is. It is empty where there
// is no object storage, and for a sandbox that has none.
type Durability string

// Where a checkpoint is.
const (
	Local      Durability = "local"      // on the disk of its server alone
	Replicated Durability = "replicated" // in object storage too
)

// LostAfter is for how long the lease of a server must be over until what it has running is
// taken for lost: one that is started again goes on with it. What it has asleep can be
// taken as soon as its lease is over.
const LostAfter = time.Minute

// Replicas are the copies of checkpoints, and how sandboxes and snapshots get another owner
// by them.
type Replicas interface {
	// PutReplica makes r the replica of its sandbox or snapshot, offered to nobody, and returns
	// the one that it had before; nil for none. It is an errdef.NotFound if there is no such
	// thing, or if the sandbox has ended, and ErrElsewhere if another server has it. A replica
	// is removed by the commit of its sandbox's end, or of its snapshot's removal.
	PutReplica(ctx context.Context, r Replica) (before *Replica, err error)
	// Replica returns that of a sandbox or a snapshot; errdef.NotFound for none.
	Replica(ctx context.Context, id string) (Replica, error)
	// Replicas returns those of what a server has, or all if owner is empty: the ones of
	// sandboxes first, and by id.
	Replicas(ctx context.Context, owner string) ([]Replica, error)
	// Offer lets the server to take a sandbox of this one while that sleeps with a checkpoint of
	// which it has a replica; "" lets nobody. It is an errdef.NotFound if there is no such
	// sandbox, and ErrElsewhere if another server has it. An offer is ErrChanged where the
	// sandbox does not sleep with the checkpoint, and ErrNotReplicated where the replica is of
	// another one.
	Offer(ctx context.Context, sandbox, checkpoint, to string) error
	// Take is Commit of a sandbox of another server, sb.Owner, whose lease is over, or which
	// offers it, and of which this server has made a checkpoint from its replica: the one that
	// the record has now. This server has the sandbox from then on, and the replica is one of
	// its checkpoint, which is the same by another name, offered to nobody. Nothing happens, and
	// it is ErrElsewhere, while another server may still go on with the sandbox: its lease lasts,
	// or it had it running, or was about to, and is not gone for [LostAfter]. It is errdef.Conflict
	// where the record is not of the revision of sb, and with code "not_replicated" where the
	// stored record has another checkpoint than the replica is of; but what ends with this
	// commit needs neither. What has ended, or is being killed, is errdef.NotFound.
	Take(ctx context.Context, sb Sandbox, entries []lifecycle.Entry) error
	// TakeSnapshot does the same for a snapshot, as was has read it: this server has it from
	// then on, with the checkpoint that this server has made from its replica, and as
	// config says. All else is as it is stored, and returned. A snapshot does not run, so
	// it can be taken as soon as the lease is over, or its server is drained.
	TakeSnapshot(ctx context.Context, was Snapshot, made lifecycle.Checkpoint, config Config) (Snapshot, error)
	// TakeTemplate is PutTemplate of a template of another server, t.Owner, whose lease is over, or
	// which is drained and has no build of it under way, or which has made nothing of it yet, and t
	// leaves its builds waiting; with TakeSnapshot of all results that its tags name and that there are.
	// What t does not need any more of the snapshots that it needed is removed, and its server
	// removes their files.
	TakeTemplate(ctx context.Context, t Template, results []Remade) error
}

// Remade is a snapshot as it was read, and what this server has made of its replica.
type Remade struct {
	Was    Snapshot
	Made   lifecycle.Checkpoint
	Config Config
}

// codeNotReplicated is the code of ErrNotReplicated.
const codeNotReplicated = "not_replicated"

// ErrNotReplicated says that there is no replica of the checkpoint that a sandbox has.
func ErrNotReplicated(id string) error {
	return errdef.New(errdef.Conflict, codeNotReplicated, "the object storage has no copy of the last checkpoint of sandbox %s, and no other server can go on with it", id).
		WithRemedy("start the server again that has the sandbox").With("sandbox", id)
}

// ErrSnapshotNotReplicated says so of a snapshot.
func ErrSnapshotNotReplicated(id string) error {
	return errdef.New(errdef.Conflict, codeNotReplicated, "the object storage has no copy of snapshot %s, and no other server can go on with it", id).
		WithRemedy("start the server again that has the snapshot").With("snapshot", id)
}

// IsNotReplicated reports whether an error is one of ErrNotReplicated.
func IsNotReplicated(err error) bool { return errdef.CodeOf(err) == codeNotReplicated }

func asleep(r lifecycle.Record) bool { return r.State == lifecycle.Paused && r.Op == nil }

// Offers returns why a sandbox, as it is stored, cannot be offered to another server as it
// sleeps with a checkpoint.
func (r Replica) Offers(has Sandbox, checkpoint string) error {
	switch cp := has.Record.Checkpoint; {
	case has.Record.State == lifecycle.Terminated:
		return has.Record.Over()
	case !asleep(has.Record) || cp == nil || cp.ID != checkpoint:
		return ErrChanged(has.ID)
	case !Covers(r.Checkpoint, CopyOf(*cp)):
		return ErrNotReplicated(has.ID)
	}
	return nil
}

// Takes returns why the server self cannot take the sandbox with the record sb from has, the
// stored record, with its replica. The lease of its owner has been over for that long.
func (r Replica) Takes(sb, has Sandbox, self string, over time.Duration) error {
	asleep := asleep(has.Record)
	if planted.In(planted.EagerTake) || asleep && self != "" && r.Offered == self {
		over = LostAfter
	}
	switch {
	case has.Owner == self:
		return ErrChanged(sb.ID)
	case has.Record.State == lifecycle.Terminated: // whoever has what is left of it
		return has.Record.Over()
	case has.Owner != sb.Owner, over < 0, over < LostAfter && !asleep:
		return ErrElsewhere("sandbox "+sb.ID, has.Owner)
	case has.Rev != sb.Rev:
		return ErrChanged(sb.ID)
	case sb.Record.State == lifecycle.Terminated: // nothing of it is needed
		return nil
	case has.Record.Checkpoint == nil, sb.Record.Checkpoint == nil, !Covers(r.Checkpoint, CopyOf(*has.Record.Checkpoint)):
		return ErrNotReplicated(sb.ID)
	}
	return nil
}

// TakesSnapshot returns why the server self cannot take the snapshot was from has, the stored
// one, with its replica.
func (r Replica) TakesSnapshot(was, has Snapshot, self string, over time.Duration) error {
	switch {
	case has.Owner == self:
		return ErrSnapshotChanged(was.ID)
	case has.Owner != was.Owner, over < 0:
		return ErrElsewhere("snapshot "+was.ID, has.Owner)
	case has.Checkpoint.ID != was.Checkpoint.ID:
		return ErrSnapshotChanged(was.ID)
	case r.Snapshot == "", !Covers(r.Checkpoint, CopyOf(has.Checkpoint)):
		return ErrSnapshotNotReplicated(was.ID)
	}
	return nil
}

// Takes returns why the server self cannot take a template from has, the stored one.
func (t *Template) Takes(has Template, self string, all []Server) error {
	switch over := Given(all, self, has.Owner); {
	case has.Owner == self:
		return errRecordChanged("template " + t.ID)
	case has.Owner != t.Owner, over < 0 && !has.OnlyWaits():
		return ErrElsewhere("template "+t.ID, has.Owner)
	case has.Rev != t.Rev:
		return errRecordChanged("template " + t.ID)
	case has.OnlyWaits() && reflect.DeepEqual(t.Builds, has.Builds):
		return nil
	case over < 0:
		return ErrElsewhere("template "+t.ID, has.Owner)
	case Gone(all, self, has.Owner) < 0 && has.IsBuilding():
		return ErrElsewhere("template "+t.ID, has.Owner) // which gives it away when it has built it
	}
	return nil
}

// OnlyWaits reports whether nothing was made yet of a template, and a build of it waits: then it
// does not matter which server begins with that.
func (t *Template) OnlyWaits() bool {
	waits := func(b Build) bool { return b.Status == BuildWaiting }
	runs := func(b Build) bool { return !b.Status.Over() && !waits(b) }
	return len(t.Snapshots()) == 0 && slices.ContainsFunc(t.Builds, waits) && !slices.ContainsFunc(t.Builds, runs)
}

// ErrSnapshotChanged says that a snapshot is not as it was read any more.
func ErrSnapshotChanged(id string) error { return errRecordChanged("snapshot " + id) }

func errRecordChanged(of string) error {
	return errdef.New(errdef.Conflict, "record_changed", "the record of %s was changed by somebody else", of).
		WithRemedy("read it again")
}

// replicas is the part of a database with the copies of checkpoints.
type replicas struct{ s *SQL }

const selectReplicas = `SELECT COALESCE(sandbox, ''), COALESCE(snapshot, ''), checkpoint, index_key, encryption_key, bytes, at, offered FROM replicas`

func scanReplica(rows *sql.Rows) (r Replica, err error) {
	var key []byte
	var at string
	if err := rows.Scan(&r.Sandbox, &r.Snapshot, &r.Checkpoint, &r.Index, &key, &r.Bytes, &at, &r.Offered); err != nil {
		return r, err
	}
	r.EncryptionKey = seal.Key(key)
	r.At, err = time.Parse(stampLayout, at)
	return r, err
}

// replicaOf returns the replica of a sandbox or a snapshot; nil for none.
func replicaOf(ctx context.Context, q querier, id string) (*Replica, error) {
	all, err := collect(ctx, q, scanReplica, selectReplicas+` WHERE sandbox = ?1 OR snapshot = ?1`, id)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// PutReplica implements [Store].
func (x replicas) PutReplica(ctx context.Context, r Replica) (before *Replica, err error) {
	err = x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		if err := x.mayHave(ctx, tx, r); err != nil {
			return err
		}
		var err error
		if before, err = replicaOf(ctx, tx, r.Of()); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM replicas WHERE sandbox = ?1 OR snapshot = ?1`, r.Of()); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO replicas (sandbox, snapshot, checkpoint, index_key, encryption_key, bytes, at) VALUES (NULLIF(?, ''), NULLIF(?, ''), ?, ?, ?, ?, ?)`,
			r.Sandbox, r.Snapshot, r.Checkpoint, r.Index, []byte(r.EncryptionKey), r.Bytes, stamp(r.At))
		if err != nil || r.Snapshot == "" {
			return err
		}
		return changed(ctx, tx, KindSnapshots)
	})
	if err != nil {
		return nil, x.s.explain(err, "put the replica of %s", r.Of())
	}
	return before, nil
}

// mayHave refuses a replica of what this server does not have.
func (x replicas) mayHave(ctx context.Context, tx *sql.Tx, r Replica) error {
	if r.Snapshot == "" {
		if err := x.s.own(ctx, tx, ownedSandboxes, r.Sandbox); err != nil {
			return err
		}
		state, err := stateOf(ctx, tx, r.Sandbox)
		if err == nil && state == lifecycle.Terminated {
			err = ErrSandboxNotFound(r.Sandbox)
		}
		return err
	}
	if err := x.s.own(ctx, tx, ownedSnapshots, r.Snapshot); err != nil {
		return err
	}
	known, err := holds(ctx, tx, `SELECT 1 FROM snapshots WHERE id = ?`, r.Snapshot)
	if err == nil && !known {
		err = ErrSnapshotNotFound(r.Snapshot)
	}
	return err
}

// ErrReplicaNotFound is what is returned where a sandbox or a snapshot has no replica.
func ErrReplicaNotFound(id string) error {
	return errdef.New(errdef.NotFound, "replica_not_found", "the object storage has no copy of a checkpoint of %s", id)
}

// Replica implements [Store].
func (x replicas) Replica(ctx context.Context, id string) (Replica, error) {
	r, err := replicaOf(ctx, x.s.reader, id)
	switch {
	case err != nil:
		return Replica{}, x.s.explain(err, "read the replica of %s", id)
	case r == nil:
		return Replica{}, ErrReplicaNotFound(id)
	}
	return *r, nil
}

// Replicas implements [Store].
func (x replicas) Replicas(ctx context.Context, owner string) ([]Replica, error) {
	all, err := collect(ctx, x.s.reader, scanReplica, selectReplicas+` WHERE ?1 = ''
		OR EXISTS (SELECT 1 FROM sandboxes WHERE id = sandbox AND owner = ?1)
		OR EXISTS (SELECT 1 FROM snapshots WHERE id = snapshot AND owner = ?1) ORDER BY 2, 1`, owner)
	return all, x.s.explain(err, "read replicas")
}

// Offer implements [Store].
func (x replicas) Offer(ctx context.Context, sandbox, checkpoint, to string) error {
	err := x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		if err := x.s.own(ctx, tx, ownedSandboxes, sandbox); err != nil {
			return err
		}
		has, r, err := stored(ctx, tx, sandbox)
		if err == nil && has == nil {
			err = ErrSandboxNotFound(sandbox)
		}
		if err == nil && to != "" {
			err = r.Offers(*has, checkpoint)
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE replicas SET offered = ? WHERE sandbox = ?`, to, sandbox)
		return err
	})
	return x.s.explain(err, "offer sandbox %s", sandbox)
}

// stored returns a sandbox, nil for none, and its replica.
func stored(ctx context.Context, tx *sql.Tx, id string) (*Sandbox, Replica, error) {
	found, err := collect(ctx, tx, scanSandbox, selectSandboxes+` WHERE id = ?`, id)
	if err != nil || len(found) == 0 {
		return nil, Replica{}, err
	}
	r, err := replicaOf(ctx, tx, id)
	if err != nil || r == nil {
		return &found[0], Replica{}, err
	}
	return &found[0], *r, nil
}

// Take implements [Store].
func (x replicas) Take(ctx context.Context, sb Sandbox, entries []lifecycle.Entry) error {
	return x.s.commit(ctx, sb, entries, func(ctx context.Context, tx *sql.Tx) error { return x.take(ctx, tx, sb) }, nothing)
}

// take makes this server the owner of a sandbox, and its replica one of the checkpoint that
// the record is to have, before that is committed.
func (x replicas) take(ctx context.Context, tx *sql.Tx, sb Sandbox) error {
	has, r, err := stored(ctx, tx, sb.ID)
	switch {
	case err != nil:
		return err
	case has == nil:
		return ErrChanged(sb.ID)
	}
	self := x.s.Self()
	servers, err := x.servers(ctx, tx)
	if err != nil {
		return err
	}
	if err := r.Takes(sb, *has, self, Gone(servers, self, has.Owner)); err != nil {
		return err
	}
	if cp := sb.Record.Checkpoint; cp != nil {
		if _, err := tx.ExecContext(ctx, `UPDATE replicas SET checkpoint = ?, offered = '' WHERE sandbox = ?`, CopyOf(*cp), sb.ID); err != nil {
			return err
		}
	}
	if _, err = tx.ExecContext(ctx, `UPDATE sandboxes SET owner = ? WHERE id = ?`, self, sb.ID); err != nil {
		return err
	}
	return changed(ctx, tx, KindOwners)
}

// TakeSnapshot implements [Store].
func (x replicas) TakeSnapshot(ctx context.Context, was Snapshot, made lifecycle.Checkpoint, config Config) (snap Snapshot, err error) {
	err = x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) (err error) {
		snap, err = x.takeSnapshot(ctx, tx, Remade{was, made, config})
		return err
	})
	return snap, x.s.explain(err, "take over snapshot %s", was.ID)
}

// takeSnapshot is TakeSnapshot in a transaction.
func (x replicas) takeSnapshot(ctx context.Context, tx *sql.Tx, of Remade) (snap Snapshot, err error) {
	found, err := collect(ctx, tx, scanSnapshot, selectSnapshots+` WHERE id = ?`, of.Was.ID)
	switch {
	case err != nil:
		return snap, err
	case len(found) == 0:
		return snap, ErrSnapshotNotFound(of.Was.ID)
	}
	snap = found[0]
	r, err := replicaOf(ctx, tx, of.Was.ID)
	if err != nil {
		return snap, err
	}
	if r == nil {
		r = &Replica{}
	}
	self := x.s.Self()
	servers, err := x.servers(ctx, tx)
	if err == nil {
		err = r.TakesSnapshot(of.Was, snap, self, Given(servers, self, snap.Owner))
	}
	if err != nil {
		return snap, err
	}
	snap.Checkpoint, snap.Config, snap.Owner = of.Made, of.Config, self
	return snap, x.moveSnapshot(ctx, tx, snap)
}

// TakeTemplate implements [Store].
func (x replicas) TakeTemplate(ctx context.Context, t Template, results []Remade) error {
	t = t.inUTC()
	data, err := encode(t)
	if err == nil {
		err = x.s.write(ctx, t.Key, func(ctx context.Context, tx *sql.Tx) error {
			has, err := x.takeTemplate(ctx, tx, t)
			if err != nil {
				return err
			}
			for _, of := range results {
				if _, err := x.takeSnapshot(ctx, tx, of); err != nil {
					return err
				}
			}
			if err := x.settleResults(ctx, tx, has, t); err != nil {
				return err
			}
			return x.s.storeTemplate(ctx, tx, t, data)
		})
	}
	return x.s.explain(err, "take over template %s", t.ID)
}

// takeTemplate makes this server the owner of a template, and returns the stored one.
func (x replicas) takeTemplate(ctx context.Context, tx *sql.Tx, t Template) (has Template, err error) {
	found, err := collect(ctx, tx, scanTemplate, selectTemplates+` WHERE id = ?`, t.ID)
	switch {
	case err != nil:
		return has, err
	case len(found) == 0:
		return has, ErrTemplateNotFound(t.ID)
	}
	has = found[0]
	self := x.s.Self()
	servers, err := x.servers(ctx, tx)
	if err == nil {
		err = t.Takes(has, self, servers)
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE templates SET owner = ? WHERE id = ?`, self, t.ID)
	}
	return has, err
}

// settleResults refuses a template of whose results one was left behind, and removes the
// snapshots that it needed and needs no more.
func (x replicas) settleResults(ctx context.Context, tx *sql.Tx, has, t Template) error {
	needed := t.Snapshots()
	for id := range has.Snapshots() {
		if needed[id] {
			left, err := holds(ctx, tx, `SELECT 1 FROM snapshots WHERE id = ? AND owner <> ?`, id, x.s.Self())
			if err == nil && left {
				err = ErrSnapshotNotReplicated(id)
			}
			if err != nil {
				return err
			}
		} else if _, err := tx.ExecContext(ctx, `DELETE FROM snapshots WHERE id = ? AND owner = ?`, id, has.Owner); err != nil {
			return err
		}
	}
	return changed(ctx, tx, KindSnapshots)
}

// moveSnapshot stores that a snapshot has another owner, with what that has made of it.
func (x replicas) moveSnapshot(ctx context.Context, tx *sql.Tx, snap Snapshot) error {
	data, err := encodeSnapshot(&snap)
	if err != nil {
		return err
	}
	for _, change := range []struct {
		query string
		args  []any
	}{
		{`UPDATE snapshots SET version = ?, data = ?, disk_mib = ?, owner = ? WHERE id = ?`, []any{formVersion, data, snap.DiskMiB(), snap.Owner, snap.ID}},
		{`UPDATE replicas SET checkpoint = ? WHERE snapshot = ?`, []any{CopyOf(snap.Checkpoint), snap.ID}},
		{`DELETE FROM parts WHERE holder = ?`, []any{snap.ID}},
	} {
		if _, err := tx.ExecContext(ctx, change.query, change.args...); err != nil {
			return err
		}
	}
	if err := addParts(ctx, tx, snap.ID, snap.Checkpoint.Parts()); err != nil {
		return err
	}
	return changed(ctx, tx, KindSnapshots)
}

// servers returns all servers, within a transaction.
func (x replicas) servers(ctx context.Context, tx *sql.Tx) ([]Server, error) {
	return collect(ctx, tx, scanServer, x.s.selectServers())
}

// dropReplica removes the replica of a sandbox with the commit of its end.
func dropReplica(ctx context.Context, tx *sql.Tx, sb Sandbox) error {
	if sb.Record.State != lifecycle.Terminated {
		return nil
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM replicas WHERE sandbox = ?`, sb.ID)
	return err
}
