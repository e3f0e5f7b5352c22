-- What is unique and what is counted, as constraints of the commit. The columns
-- repeat parts of the data: name while the sandbox has not ended, idempotency while
-- the key is bound, the others as long as the sandbox takes it.

ALTER TABLE sandboxes ADD COLUMN rev         INTEGER NOT NULL DEFAULT 1; -- of the record: each commit expects one, and leaves the next
ALTER TABLE sandboxes ADD COLUMN key         TEXT    NOT NULL DEFAULT ''; -- keys.id
ALTER TABLE sandboxes ADD COLUMN name        TEXT;
ALTER TABLE sandboxes ADD COLUMN idempotency TEXT;
ALTER TABLE sandboxes ADD COLUMN bound_at    TEXT; -- since when idempotency is
ALTER TABLE sandboxes ADD COLUMN running     INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN present     INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN memory_mib  INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN disk_mib    INTEGER NOT NULL DEFAULT 0;

UPDATE sandboxes SET
    key         = coalesce(data ->> '$.config.key', ''),
    name        = CASE WHEN state <> 'terminated' THEN nullif(data ->> '$.config.name', '') END,
    idempotency = CASE WHEN coalesce(data ->> '$.record.tombstone.reason', '') <> 'CreateFailed' THEN data ->> '$.config.idempotency.key' END,
    -- Of another number of decimals than its text would be; nobody looks before a day has passed.
    bound_at    = CASE WHEN coalesce(data ->> '$.record.tombstone.reason', '') <> 'CreateFailed' AND data ->> '$.config.idempotency.key' IS NOT NULL
                  THEN coalesce(data ->> '$.config.idempotency.at', created_at) END,
    running     = state = 'running' OR coalesce(data ->> '$.record.op.phase', '') IN ('creating', 'resuming')
WHERE json_valid(data);

UPDATE sandboxes SET
    present    = running OR state = 'paused',
    memory_mib = iif(running, coalesce(data ->> '$.config.limits.memoryMiB', 0), 0),
    disk_mib   = iif(running OR state = 'paused', coalesce(data ->> '$.config.limits.diskMiB', 0), 0)
WHERE json_valid(data);

-- A name was given to one sandbox only, and an idempotency key could be used again
-- after a day: where there are several, the youngest has it.
UPDATE sandboxes SET name = NULL WHERE EXISTS (SELECT 1 FROM sandboxes AS other
    WHERE other.key = sandboxes.key AND other.name = sandboxes.name AND (other.created_at, other.id) > (sandboxes.created_at, sandboxes.id));
UPDATE sandboxes SET idempotency = NULL, bound_at = NULL WHERE EXISTS (SELECT 1 FROM sandboxes AS other
    WHERE other.key = sandboxes.key AND other.idempotency = sandboxes.idempotency AND (other.bound_at, other.id) > (sandboxes.bound_at, sandboxes.id));

CREATE UNIQUE INDEX names_of_sandboxes ON sandboxes (key, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX idempotency_of_sandboxes ON sandboxes (key, idempotency) WHERE idempotency IS NOT NULL;
CREATE INDEX use_of_keys ON sandboxes (key, running, memory_mib, disk_mib) WHERE present = 1;

ALTER TABLE snapshots ADD COLUMN disk_mib INTEGER NOT NULL DEFAULT 0; -- that it counts for

UPDATE snapshots SET disk_mib = iif(coalesce(data ->> '$.passing', 0), 0, coalesce(data ->> '$.config.limits.diskMiB', 0)
    + iif(data ->> '$.checkpoint.mode' = 'memory', coalesce(data ->> '$.config.limits.memoryMiB', 0), 0)) WHERE json_valid(data);
