package store

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// remedies are the failures of SQLite that may pass, by primary result code,
// with the next step for the machine's owner.
var remedies = map[int]string{
	sqlite3.SQLITE_FULL:     "free space on its disk",
	sqlite3.SQLITE_READONLY: "make the file and its file system writable",
	sqlite3.SQLITE_IOERR:    "check the disk and the kernel's log",
	sqlite3.SQLITE_CANTOPEN: "check that the file, its directory and its disk can be written",
	sqlite3.SQLITE_PERM:     "check the file's owner and mode",
	sqlite3.SQLITE_BUSY:     "end the other program that holds the database",
	sqlite3.SQLITE_LOCKED:   "end the other program that holds the database",
	sqlite3.SQLITE_NOMEM:    "free memory",
}

// explain says what was attempted when err happened and gives it a class. An
// error that has one says all there is to say, and stays as it is.
func (s *SQLite) explain(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*errdef.Error](err); ok {
		return err
	}
	err = fmt.Errorf(format+": %w", append(args, err)...)
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return s.unavailable(err, remedies[sqlite3.SQLITE_CANTOPEN])
	}
	if errors.Is(err, syscall.ENOSPC) { // of what is done beside SQLite
		return s.unavailable(err, remedies[sqlite3.SQLITE_FULL])
	}
	failure, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	code := failure.Code() & 0xff // without SQLite's details, such as which system call failed
	switch code {
	case sqlite3.SQLITE_NOTADB:
		return errdef.New(errdef.Invalid, "not_a_database", "%w; %s is not a database, or its first page is damaged", err, s.path).
			WithRemedy("move it away, or put a backup in its place")
	case sqlite3.SQLITE_CORRUPT:
		return errdef.New(errdef.Internal, "database_damaged", "%w; the database %s is damaged", err, s.path).
			WithRemedy("stop drowse and put a backup in its place")
	}
	if remedy, ok := remedies[code]; ok {
		return s.unavailable(err, remedy)
	}
	return err
}

func (s *SQLite) unavailable(err error, remedy string) error {
	return errdef.New(errdef.Unavailable, "store_unavailable", "%w; the database is %s", err, s.path).WithRemedy("%s", remedy)
}
