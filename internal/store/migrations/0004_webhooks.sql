-- The secret is beside the data, so that whatever shows the data does not show
-- it.
CREATE TABLE webhooks (
    id         TEXT PRIMARY KEY CHECK (id <> ''),
    version    INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    secret     TEXT NOT NULL,
    data       TEXT NOT NULL
) STRICT;
