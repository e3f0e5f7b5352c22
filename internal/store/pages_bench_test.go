package store_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// BenchmarkPage measures what a list reads of the database.
func BenchmarkPage(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		s := manyOwned(b, n)
		middle := store.Place{At: at.Add(time.Duration(n/2) * time.Second).UnixMicro(), ID: "i"}
		for _, c := range []struct {
			name string
			q    store.Selection
			want int
		}{
			{"first", store.Selection{Order: store.Newest, Status: store.Alive, Limit: 100}, 100},
			{"middle", store.Selection{Order: store.Newest, Status: store.Alive, After: &middle, Limit: 100}, 100},
			{"middle by start", store.Selection{Order: store.EarliestStart, Status: store.Alive, After: &middle, Limit: 100}, 100},
			{"of a key", store.Selection{Key: "key-3", Order: store.Newest, Status: store.Alive, After: &middle, Limit: 100}, 100},
			{"label of one", store.Selection{Metadata: store.Labels{{"n", "77"}}, Order: store.Newest, Limit: 100}, 1},
			{"label of all", store.Selection{Metadata: store.Labels{{"owner", "someone"}}, Order: store.Newest, Limit: 100}, 100},
			{"whole", store.Selection{Others: true, Order: store.Oldest}, n * 2 / 3},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, c.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if p, err := s.Page(b.Context(), c.q); err != nil || len(p.Sandboxes) < c.want {
						b.Fatalf("%d sandboxes, %v", len(p.Sandboxes), err)
					}
				}
			})
		}
		b.Run(fmt.Sprintf("%d/use of keys", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if all, err := s.UseOfOthers(b.Context()); err != nil || len(all) == 0 {
					b.Fatal(all, err)
				}
			}
		})
	}
}

// manyOwned returns the store of one of three servers, which have so many sandboxes
// together.
func manyOwned(b *testing.B, n int) *store.SQL {
	b.Helper()
	url := pgtest.Start(b, "fsync=off").NewDatabase(b)
	s := connect(b, url)
	if _, err := s.Claim(b.Context(), store.Server{ID: "s0", Name: "a", Place: "b"}, time.Hour); err != nil {
		b.Fatal(err)
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	const each = 1000
	for i := 0; i < n; i += each {
		var rows []string
		var args []any
		for j := i; j < min(i+each, n); j++ {
			sb := typical()
			sb.ID = fmt.Sprintf("i%019d", (j*7919)%n)
			sb.Record.Op = nil
			sb.Config.Metadata["n"] = fmt.Sprint(j)
			if j%4 == 0 {
				sb.Record.State = lifecycle.Paused
			}
			sb.Record.CreatedAt = at.Add(time.Duration(j) * time.Second)
			sb.Record.StartedAt = sb.Record.CreatedAt
			data, err := json.Marshal(sb)
			if err != nil {
				b.Fatal(err)
			}
			k := len(args)
			rows = append(rows, fmt.Sprintf("($%d, 1, $%d, $%d, $%d, $%d, $%d, $%d, $%d, 1)", k+1, k+2, k+3, k+4, k+5, k+6, k+7, k+8))
			when := sb.Record.CreatedAt.UTC().Format("2006-01-02T15:04:05.000000000Z07:00")
			args = append(args, sb.ID, string(sb.Record.State), when, string(data), fmt.Sprint("key-", j%10), fmt.Sprint("s", j%3), string(sb.Record.State), when)
		}
		if _, err := db.Exec(`INSERT INTO sandboxes (id, version, state, created_at, data, key, owner, outline, started_at, present) VALUES `+strings.Join(rows, ","), args...); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := db.Exec(`VACUUM ANALYZE sandboxes`); err != nil {
		b.Fatal(err)
	}
	return s.SQL
}
