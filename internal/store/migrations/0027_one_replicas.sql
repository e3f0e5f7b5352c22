-- The copies of sandboxes and of snapshots are in one table.

ALTER TABLE replicas RENAME TO sandbox_replicas;

CREATE TABLE replicas (
    sandbox    TEXT UNIQUE REFERENCES sandboxes (id) ON DELETE CASCADE, -- NULL for the copy of a snapshot
    snapshot   TEXT UNIQUE REFERENCES snapshots (id) ON DELETE CASCADE, -- NULL for the copy of a sandbox
    checkpoint TEXT NOT NULL, -- the id of the one that it is of
    index_key  TEXT NOT NULL, -- under which the object storage has the list of its parts
    bytes      INTEGER NOT NULL,
    at         TEXT NOT NULL,
    offered    TEXT NOT NULL DEFAULT '', -- to which server; empty for none
    CHECK ((sandbox IS NULL) <> (snapshot IS NULL))
) STRICT;

INSERT INTO replicas (sandbox, checkpoint, index_key, bytes, at, offered) SELECT sandbox, checkpoint, index_key, bytes, at, offered FROM sandbox_replicas;
INSERT INTO replicas (snapshot, checkpoint, index_key, bytes, at) SELECT snapshot, checkpoint, index_key, bytes, at FROM snapshot_replicas;

DROP TABLE sandbox_replicas;
DROP TABLE snapshot_replicas;
