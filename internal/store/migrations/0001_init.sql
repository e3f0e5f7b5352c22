-- The data columns hold JSON in the form that the version column numbers; the
-- other columns repeat parts of it, for SQL. Times are RFC 3339 in UTC with
-- nine decimals, so that their text sorts as they do.

CREATE TABLE sandboxes (
    id         TEXT PRIMARY KEY CHECK (id <> ''),
    version    INTEGER NOT NULL,
    state      TEXT NOT NULL,
    created_at TEXT NOT NULL,
    data       TEXT NOT NULL
) STRICT;

-- AUTOINCREMENT: without it a number would be given again when the newest
-- entries are deleted, and a reader's cursor would skip what is new.
CREATE TABLE events (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    type    TEXT NOT NULL,
    at      TEXT NOT NULL,
    data    TEXT NOT NULL
) STRICT;

-- Every index ends with the row's number, which is seq: this one finds a
-- sandbox's entries after a cursor, in order.
CREATE INDEX events_of_sandbox ON events (sandbox);

CREATE TABLE keys (
    id         TEXT PRIMARY KEY CHECK (id <> ''),
    name       TEXT NOT NULL,
    hash       BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    prefix     TEXT NOT NULL,
    suffix     TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;

CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL CHECK (length(value) = 32)
) STRICT;
