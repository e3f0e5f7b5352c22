-- Templates that were built of steps. The name of one is its API key's: two keys may
-- use the same.

CREATE TABLE templates (
    id      TEXT PRIMARY KEY CHECK (id <> ''),
    key     TEXT NOT NULL, -- that has made it
    name    TEXT NOT NULL,
    rev     INTEGER NOT NULL, -- one higher with each change
    version INTEGER NOT NULL, -- of the form of data
    data    TEXT NOT NULL, -- JSON
    UNIQUE (key, name)
) STRICT;

-- Their builds, as far as templates know them, to be counted.
CREATE TABLE builds (
    id         TEXT PRIMARY KEY CHECK (id <> ''),
    template   TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    key        TEXT NOT NULL, -- that of the template
    open       INTEGER NOT NULL, -- 1 until it is over
    created_at TEXT NOT NULL
) STRICT;

CREATE INDEX builds_of_templates ON builds (template);
CREATE INDEX open_builds ON builds (key, created_at) WHERE open = 1;
