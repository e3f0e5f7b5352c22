-- Checkpoints that sandboxes can start from, independent of the sandbox they
-- were taken of, which may be forgotten by now.

CREATE TABLE snapshots (
    id         TEXT PRIMARY KEY CHECK (id <> ''),
    name       TEXT UNIQUE, -- NULL for none
    version    INTEGER NOT NULL, -- of the form of data
    created_at TEXT NOT NULL,
    data       TEXT NOT NULL -- JSON
) STRICT;
