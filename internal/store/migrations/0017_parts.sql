-- Who needs which layers and memory images: the sandboxes that have not ended, and the
-- snapshots. A part that nobody has here may be removed, and is never needed again.

CREATE TABLE parts (
    part   TEXT NOT NULL, -- the id of a layer or image
    holder TEXT NOT NULL, -- the id of a sandbox or snapshot
    PRIMARY KEY (part, holder)
) STRICT, WITHOUT ROWID;

CREATE INDEX parts_of_holders ON parts (holder);

INSERT OR IGNORE INTO parts
WITH checkpoints (holder, checkpoint) AS (
    SELECT id, data -> '$.record.checkpoint' FROM sandboxes WHERE ended_at IS NULL AND json_valid(data)
    UNION ALL
    SELECT id, data -> '$.record.op.restore.checkpoint' FROM sandboxes WHERE ended_at IS NULL AND json_valid(data)
    UNION ALL
    SELECT id, data -> '$.checkpoint' FROM snapshots WHERE json_valid(data)
)
SELECT layer.value, holder FROM checkpoints, json_each(checkpoint, '$.stack') AS layer WHERE layer.value IS NOT NULL
UNION ALL
SELECT checkpoint ->> '$.id', holder FROM checkpoints WHERE checkpoint ->> '$.mode' = 'memory';

CREATE TRIGGER parts_of_sandbox AFTER DELETE ON sandboxes BEGIN
    DELETE FROM parts WHERE holder = OLD.id;
END;

CREATE TRIGGER parts_of_snapshot AFTER DELETE ON snapshots BEGIN
    DELETE FROM parts WHERE holder = OLD.id;
END;
