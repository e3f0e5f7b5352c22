package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations are the steps from an empty database to the schema of this
// program: the step at index i leads from version i to i+1. One that was
// released never changes.
var migrations = mustLoad(migrationFiles)

// mustLoad reads the files named migrations/0001_….sql and on.
func mustLoad(fsys fs.FS) []string {
	names, err := fs.Glob(fsys, "migrations/*.sql") // sorted
	if err != nil {
		panic("internal error: " + err.Error())
	}
	var steps []string
	for i, name := range names {
		if !strings.HasPrefix(name, fmt.Sprintf("migrations/%04d_", i+1)) {
			panic(fmt.Sprintf("internal error: %s is out of sequence; want number %d", name, i+1))
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			panic("internal error: " + err.Error())
		}
		steps = append(steps, string(text))
	}
	return steps
}

// migrate applies the steps that the database has not seen, all or none.
func (s *SQL) migrate(ctx context.Context, steps []string) error {
	return s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		has, err := s.engine.version(ctx, tx)
		if err != nil {
			return err
		}
		if err := checkVersion(s.name, has, len(steps)); err != nil {
			return err
		}
		if has == len(steps) {
			return nil
		}
		for i := has; i < len(steps); i++ {
			if _, err := tx.ExecContext(ctx, steps[i]); err != nil {
				return fmt.Errorf("migrate to schema version %d: %w", i+1, err)
			}
		}
		return s.engine.setVersion(ctx, tx, len(steps))
	})
}

// checkVersion refuses a database that a newer drowse has written.
func checkVersion(name string, has, known int) error {
	if has <= known {
		return nil
	}
	return errdef.New(errdef.Unsupported, "database_too_new",
		"database %s has schema version %d and this drowse knows versions up to %d", name, has, known).
		WithRemedy("a newer drowse has written it; start that one")
}
