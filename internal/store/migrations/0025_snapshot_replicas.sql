-- The copies of snapshots in object storage, from which another server can go on with those of
-- one that is gone.

CREATE TABLE snapshot_replicas (
    snapshot   TEXT PRIMARY KEY REFERENCES snapshots (id) ON DELETE CASCADE,
    checkpoint TEXT NOT NULL, -- the id of the one that it is of
    index_key  TEXT NOT NULL, -- under which the object storage has the list of its parts
    bytes      INTEGER NOT NULL,
    at         TEXT NOT NULL
) STRICT;
