CREATE TABLE volumes (
    id         TEXT PRIMARY KEY CHECK (id <> ''),
    name       TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL
) STRICT;
