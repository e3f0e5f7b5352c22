package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// TestCanceledQuery: a query whose context has ended fails as that, and leaves its connection.
func TestCanceledQuery(t *testing.T) {
	s, err := dial(pgtest.Shared(t).NewDatabase(t), silentWithin, &branches{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	conn, err := s.reader.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const query = `SELECT 1`
	var one int
	if err := conn.QueryRowContext(t.Context(), query).Scan(&one); err != nil { // it is prepared now
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_ = conn.Raw(func(c any) error {
		_, err := c.(driver.QueryerContext).QueryContext(canceled, query, nil)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a query that was canceled: %v", err)
		}
		return nil
	})
	if err := conn.QueryRowContext(t.Context(), query).Scan(&one); err != nil {
		t.Errorf("the query after it: %v", err)
	}
}
