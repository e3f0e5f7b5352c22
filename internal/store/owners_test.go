package store

import (
	"testing"

	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// TestOwnersOfBefore: what a database has from before it could have several servers is that
// of its only one, whoever claims it first then.
func TestOwnersOfBefore(t *testing.T) {
	const before = 20 // the version of the schema
	ctx := t.Context()
	s, err := dial(pgtest.Shared(t).NewDatabase(t), silentWithin, &branches{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.migrate(ctx, s.engine.steps()[:before]); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		`INSERT INTO sandboxes (id, version, state, created_at, data) VALUES ('i1', 1, 'terminated', '', '{}')`,
		`INSERT INTO snapshots (id, key, version, created_at, data) VALUES ('s1', '', 1, '', '{}')`,
		`INSERT INTO volumes (id, name, created_at) VALUES ('v1', 'v', '')`,
		`INSERT INTO templates (id, key, name, rev, version, data) VALUES ('t1', '', 't', 1, 1, '{}')`,
		`INSERT INTO servers (id, name, place, epoch, claim, lease_until) VALUES ('srv_z', '', '', 1, '', 0)`,
	} {
		if _, err := s.writer.ExecContext(ctx, row); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.start(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(ctx, Server{ID: "srv_a"}, 0); err != nil {
		t.Fatal(err)
	}
	for _, of := range allOwned {
		var owner string
		if err := s.writer.QueryRowContext(ctx, `SELECT owner FROM `+of.table).Scan(&owner); err != nil || owner != "srv_z" {
			t.Errorf("%s: the owner is %q, %v, want that of before", of.table, owner, err)
		}
	}
}
