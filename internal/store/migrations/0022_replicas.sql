-- The copies of sandboxes' checkpoints in object storage, from which another server can go
-- on with what one has lost.

CREATE TABLE replicas (
    sandbox    TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    checkpoint TEXT NOT NULL, -- the id of the one that it is of
    index_key  TEXT NOT NULL, -- under which the object storage has the list of its parts
    bytes      INTEGER NOT NULL,
    at         TEXT NOT NULL
) STRICT;

ALTER TABLE servers ADD COLUMN leaving INTEGER NOT NULL DEFAULT 0; -- 1 for one that stops, or has
ALTER TABLE servers ADD COLUMN held_since INTEGER NOT NULL DEFAULT 0; -- since when its lease has had no gap, in milliseconds since 1970

INSERT INTO changes (kind, n) VALUES ('owners', 0);
