package store

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// databases returns a store in each kind of database.
func databases(t *testing.T) map[string]*SQL {
	t.Helper()
	return map[string]*SQL{
		"SQLite":     openInternal(t, filepath.Join(t.TempDir(), "drowse.db")),
		"PostgreSQL": connectInternal(t, pgtest.Shared(t).NewDatabase(t)),
	}
}

// TestListsOfRecordsFromBefore: records that were written before lists were read from the
// database are in lists, those included that cannot be read.
func TestListsOfRecordsFromBefore(t *testing.T) {
	const many = 1200
	start := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for name, s := range databases(t) {
		pausing := Sandbox{ID: "pausing", Record: lifecycle.Record{
			State: lifecycle.Running, StartedAt: start, Op: &lifecycle.Operation{Phase: lifecycle.Pausing, Cause: lifecycle.CauseIdle},
		}}
		if err := s.Commit(t.Context(), pausing, nil); err != nil {
			t.Fatal(err)
		}
		for _, query := range []string{
			`UPDATE sandboxes SET outline = '', started_at = ''`,
			fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
				INSERT INTO sandboxes (id, version, state, created_at, data) SELECT CAST(i AS TEXT), 1, 'terminated', '', '{"record": {"state": "terminated"}}' FROM n`, many),
			`INSERT INTO sandboxes (id, version, state, created_at, data) VALUES ('broken', 1, 'paused', '', '{'), ('later', 9, 'paused', '', '{}')`,
		} {
			if _, err := s.writer.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the second time there is nothing to do
			if err := s.enlist(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		one := start.UnixMicro()
		p, err := s.Page(t.Context(), Selection{StartedFrom: &one, Limit: 10})
		if err != nil || len(p.Sandboxes) != 1 || p.Sandboxes[0].ID != "pausing" {
			t.Errorf("%s: started then are %+v, %v", name, p.Sandboxes, err)
		}
		p, err = s.Page(t.Context(), Selection{Status: func(lifecycle.Record) bool { return false }})
		if err != nil || len(p.Counts) != 3 || p.Counts[OutlineOf(pausing.Record)] != 1 ||
			p.Counts[Outline{State: lifecycle.Terminated}] != many || p.Counts[Outline{State: lifecycle.Paused}] != 2 {
			t.Errorf("%s: counted are %v, %v", name, p.Counts, err)
		}
	}
}

// TestPageReadsItsRecords: for a page the records of other pages are not read, whatever they
// are.
func TestPageReadsItsRecords(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, s := range databases(t) {
		for i := range 20 {
			at := start.Add(time.Duration(i) * time.Second)
			sb := Sandbox{ID: fmt.Sprint("s", i), Record: lifecycle.Record{State: lifecycle.Paused, CreatedAt: at, StartedAt: at}}
			if err := s.Commit(t.Context(), sb, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.writer.ExecContext(t.Context(), `UPDATE sandboxes SET data = '{' WHERE id NOT IN ('s9', 's10', 's11')`); err != nil {
			t.Fatal(err)
		}
		for _, order := range []Order{Newest, Oldest, LatestStart, EarliestStart} {
			after := Place{start.Add(12 * time.Second).UnixMicro(), "s12"}
			if !order.descends() {
				after = Place{start.Add(8 * time.Second).UnixMicro(), "s8"}
			}
			q := Selection{Order: order, Status: Alive, After: &after, Limit: 2}
			p, err := s.Page(t.Context(), q)
			if err != nil || len(p.Sandboxes) != 2 || !p.More || p.Count(Alive) != 20 {
				t.Errorf("%s, %s: %+v, %v", name, order, p, err)
			}
		}
	}
}
