package store_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// BenchmarkCommit measures a commit of a record and two log entries and, in
// turn with it, what it cannot beat: one upsert of the same record into a
// table of two columns, just as durable.
func BenchmarkCommit(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) {
		benchmarkCommit(b, open(b, newPath(b)), shellDB(b, newPath(b)+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"), `VALUES (?, ?)`)
	})
	b.Run("postgres", func(b *testing.B) {
		server := pgtest.Start(b)
		plain, err := sql.Open("pgx", server.NewDatabase(b))
		if err != nil {
			b.Fatal(err)
		}
		plain.SetMaxOpenConns(1)
		benchmarkCommit(b, connect(b, server.NewDatabase(b)), plain, `VALUES ($1, $2)`)
	})
}

func benchmarkCommit(b *testing.B, s store.Store, plain *sql.DB, values string) {
	defer plain.Close()
	if _, err := plain.Exec(`CREATE TABLE t (id TEXT PRIMARY KEY, data TEXT)`); err != nil {
		b.Fatal(err)
	}
	upsert, err := plain.Prepare(`INSERT INTO t ` + values + ` ON CONFLICT (id) DO UPDATE SET data = excluded.data`)
	if err != nil {
		b.Fatal(err)
	}
	sb := typical()
	entries := lines(1, "", "")

	var commits, upserts []time.Duration
	for b.Loop() {
		// Each must differ: SQLite writes no page that an update leaves
		// as it was, and then syncs nothing.
		sb.Record.Generation++
		data, err := json.Marshal(sb)
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if err := s.Commit(b.Context(), sb, entries); err != nil {
			b.Fatal(err)
		}
		sb.Rev++
		between := time.Now()
		if _, err := upsert.Exec(sb.ID, string(data)); err != nil {
			b.Fatal(err)
		}
		commits = append(commits, between.Sub(start))
		upserts = append(upserts, time.Since(between))
	}
	ours, floor := quantile(commits, 0.5), quantile(upserts, 0.5)
	b.ReportMetric(float64(ours.Nanoseconds()), "commit-p50-ns")
	b.ReportMetric(float64(floor.Nanoseconds()), "upsert-p50-ns")
	b.ReportMetric(float64(quantile(commits, 0.99).Nanoseconds()), "commit-p99-ns")
	b.ReportMetric(float64(quantile(upserts, 0.99).Nanoseconds()), "upsert-p99-ns")
	b.ReportMetric(float64(ours)/float64(floor), "commit/upsert")
	b.ReportMetric(0, "ns/op") // of both together says nothing
}

// BenchmarkCommitsAtOnce measures commits of many sandboxes at the same time.
func BenchmarkCommitsAtOnce(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) { benchmarkCommitsAtOnce(b, open(b, newPath(b))) })
	b.Run("postgres", func(b *testing.B) { benchmarkCommitsAtOnce(b, connect(b, pgtest.Start(b).NewDatabase(b))) })
}

func benchmarkCommitsAtOnce(b *testing.B, s store.Store) {
	entries := lines(1, "", "")
	b.SetParallelism(16)
	b.ResetTimer()
	var n atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		sb := typical()
		sb.ID = fmt.Sprintf("%s%d", sb.ID, n.Add(1))
		for pb.Next() {
			sb.Record.Generation++
			if err := s.Commit(b.Context(), sb, entries); err != nil {
				b.Error(err)
				return
			}
			sb.Rev++
		}
	})
}

func quantile(all []time.Duration, q float64) time.Duration {
	slices.Sort(all)
	return all[int(q*float64(len(all)))]
}

// typical returns a running sandbox as clients make them.
func typical() store.Sandbox {
	return store.Sandbox{
		ID: "i3r9x2kq7v1m5n8b4c6d",
		Config: store.Config{
			Template: "base", Metadata: map[string]string{"owner": "someone", "task": "42"},
			Env: map[string]string{"LANG": "C.UTF-8"}, Secure: true,
			Limits: store.Limits{CPUs: 2, MemoryMiB: 512, DiskMiB: 1024, PIDs: 512},
		},
		Record: lifecycle.Record{
			Settings: lifecycle.Settings{Timeout: 5 * time.Minute, OnTimeout: lifecycle.Pause, AutoResume: true},
			State:    lifecycle.Running, Generation: 3,
			Checkpoint: &lifecycle.Checkpoint{ID: "cp", Mode: lifecycle.Memory, Stack: []string{"sha256-a", "l1", "l2"}},
			Op:         &lifecycle.Operation{ID: "op", Phase: lifecycle.Pausing, Attempt: 1, StartedAt: at, Deadline: at},
			CreatedAt:  at, StartedAt: at, EndAt: at,
		},
	}
}
