-- The commands and REPLs that clients of sandbox0 have started in sandboxes that have
-- not ended.

CREATE TABLE code_contexts (
    sandbox    TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    id         TEXT NOT NULL CHECK (id <> ''),
    created_at TEXT NOT NULL,
    ended      INTEGER NOT NULL, -- 1 when its process has ended
    version    INTEGER NOT NULL, -- of the form of data
    data       TEXT NOT NULL, -- JSON
    PRIMARY KEY (sandbox, id)
) STRICT;
