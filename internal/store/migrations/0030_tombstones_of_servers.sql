-- What has ended is counted for each API key and server: a server forgets its own alone, so
-- what another server has of the key must not make it forget all but one.

DROP TRIGGER tombstone_added;
DROP TRIGGER tombstone_changed;
DROP TRIGGER tombstone_removed;
DROP TABLE tombstones;
DROP INDEX ends_of_sandboxes;

CREATE INDEX ends_of_sandboxes ON sandboxes (key, owner, ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE tombstones (
    key       TEXT NOT NULL,
    server    TEXT NOT NULL, -- the owner of the sandboxes
    sandboxes INTEGER NOT NULL, -- of the key and the server with ended_at
    bytes     INTEGER NOT NULL, -- of all of them
    PRIMARY KEY (key, server)
) STRICT;

INSERT INTO tombstones SELECT key, owner, count(*), sum(bytes) FROM sandboxes WHERE ended_at IS NOT NULL GROUP BY key, owner;

CREATE TRIGGER tombstone_added AFTER INSERT ON sandboxes WHEN NEW.ended_at IS NOT NULL BEGIN
    INSERT INTO tombstones VALUES (NEW.key, NEW.owner, 1, NEW.bytes)
    ON CONFLICT (key, server) DO UPDATE SET sandboxes = sandboxes + 1, bytes = bytes + excluded.bytes;
END;

-- As if it were removed, and added as it is now.
CREATE TRIGGER tombstone_changed AFTER UPDATE OF ended_at, bytes, key, owner ON sandboxes
WHEN (NEW.ended_at IS NULL) <> (OLD.ended_at IS NULL) OR NEW.bytes <> OLD.bytes OR NEW.key <> OLD.key OR NEW.owner <> OLD.owner BEGIN
    UPDATE tombstones SET sandboxes = sandboxes - 1, bytes = bytes - OLD.bytes WHERE key = OLD.key AND server = OLD.owner AND OLD.ended_at IS NOT NULL;
    INSERT INTO tombstones SELECT NEW.key, NEW.owner, 1, NEW.bytes WHERE NEW.ended_at IS NOT NULL
    ON CONFLICT (key, server) DO UPDATE SET sandboxes = sandboxes + 1, bytes = bytes + excluded.bytes;
    DELETE FROM tombstones WHERE key = OLD.key AND server = OLD.owner AND sandboxes = 0;
END;

CREATE TRIGGER tombstone_removed AFTER DELETE ON sandboxes WHEN OLD.ended_at IS NOT NULL BEGIN
    UPDATE tombstones SET sandboxes = sandboxes - 1, bytes = bytes - OLD.bytes WHERE key = OLD.key AND server = OLD.owner;
    DELETE FROM tombstones WHERE key = OLD.key AND server = OLD.owner AND sandboxes = 0;
END;
