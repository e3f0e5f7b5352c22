-- What is left of sandboxes that have ended, counted for each API key, so that the
-- commit in which another ends can tell at once whether there are too many.

ALTER TABLE sandboxes ADD COLUMN ended_at TEXT; -- NULL while more than the tombstone is left
ALTER TABLE sandboxes ADD COLUMN bytes    INTEGER NOT NULL DEFAULT 0; -- of data, from then on

-- Of another number of decimals than its text would be: within a second the order may
-- be another.
UPDATE sandboxes SET ended_at = coalesce(data ->> '$.record.tombstone.at', created_at), bytes = octet_length(data)
WHERE state = 'terminated' AND json_valid(data) AND iif(json_valid(data), data ->> '$.record.op', '') IS NULL;

CREATE INDEX ends_of_sandboxes ON sandboxes (key, ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE tombstones (
    key       TEXT PRIMARY KEY,
    sandboxes INTEGER NOT NULL, -- of the key with ended_at
    bytes     INTEGER NOT NULL -- of all of them
) STRICT;

INSERT INTO tombstones SELECT key, count(*), sum(bytes) FROM sandboxes WHERE ended_at IS NOT NULL GROUP BY key;

CREATE TRIGGER tombstone_added AFTER INSERT ON sandboxes WHEN NEW.ended_at IS NOT NULL BEGIN
    INSERT INTO tombstones VALUES (NEW.key, 1, NEW.bytes)
    ON CONFLICT (key) DO UPDATE SET sandboxes = sandboxes + 1, bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER tombstone_changed AFTER UPDATE OF ended_at, bytes ON sandboxes
WHEN (NEW.ended_at IS NULL) <> (OLD.ended_at IS NULL) OR NEW.bytes <> OLD.bytes BEGIN
    INSERT INTO tombstones VALUES (NEW.key, (NEW.ended_at IS NOT NULL) - (OLD.ended_at IS NOT NULL), NEW.bytes - OLD.bytes)
    ON CONFLICT (key) DO UPDATE SET sandboxes = sandboxes + excluded.sandboxes, bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER tombstone_removed AFTER DELETE ON sandboxes WHEN OLD.ended_at IS NOT NULL BEGIN
    UPDATE tombstones SET sandboxes = sandboxes - 1, bytes = bytes - OLD.bytes WHERE key = OLD.key;
    DELETE FROM tombstones WHERE key = OLD.key AND sandboxes = 0;
END;
