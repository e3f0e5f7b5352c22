-- Secrets that sandboxes use without having them. The value is encrypted with a
-- key that is not in the database.

CREATE TABLE used_secrets (
    id         TEXT PRIMARY KEY CHECK (id <> ''),
    key        TEXT NOT NULL, -- keys.id
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL, -- of the value
    rule       TEXT NOT NULL, -- JSON: where the value goes
    sealed     BLOB NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    UNIQUE (key, name)
) STRICT;
