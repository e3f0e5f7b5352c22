-- The name of a snapshot is one of its API key's: two keys may use the same.

CREATE TABLE snapshots_of_keys (
    id         TEXT PRIMARY KEY CHECK (id <> ''),
    key        TEXT NOT NULL, -- that has made it; empty for none
    name       TEXT, -- NULL for none
    version    INTEGER NOT NULL, -- of the form of data
    created_at TEXT NOT NULL,
    data       TEXT NOT NULL, -- JSON
    UNIQUE (key, name)
) STRICT;

INSERT INTO snapshots_of_keys (id, key, name, version, created_at, data)
    SELECT id, coalesce(json_extract(data, '$.key'), ''), name, version, created_at, data FROM snapshots ORDER BY rowid;

DROP TABLE snapshots;

ALTER TABLE snapshots_of_keys RENAME TO snapshots;
