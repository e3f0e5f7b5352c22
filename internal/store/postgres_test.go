package store_test

import (
	"fmt"
	"testing"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
	"github.com/drowse-dev/drowse/internal/store/storetest"
)

// connected remembers where a store is, for reopening.
type connected struct {
	*store.SQL
	url string
}

// connect connects to the store of a URL and closes it with the test.
func connect(t testing.TB, url string) connected {
	t.Helper()
	s, err := store.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return connected{s, url}
}

func TestPostgresContract(t *testing.T) {
	server := pgtest.Start(t, "fsync=off") // what a power cut leaves is not its subject
	database, n := server.NewDatabase(t), 0
	storetest.Run(t,
		func(t *testing.T) store.Store { // a schema is made sooner than a database
			n++
			pgtest.SQL(t, database, fmt.Sprintf("create schema test%d", n))
			return connect(t, fmt.Sprintf("%s&search_path=test%d", database, n))
		},
		func(t *testing.T, s store.Store) store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return connect(t, s.(connected).url)
		},
		func(t *testing.T, s store.Store) store.Store { return connect(t, s.(connected).url) })
}
