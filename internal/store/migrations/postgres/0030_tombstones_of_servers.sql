-- What SQLite's step does; the reasons are there.

DROP TRIGGER tombstone_added ON sandboxes;
DROP TRIGGER tombstone_changed ON sandboxes;
DROP TRIGGER tombstone_removed ON sandboxes;
DROP FUNCTION IF EXISTS tombstone_added;
DROP FUNCTION tombstone_changed;
DROP FUNCTION IF EXISTS tombstone_removed;
DROP FUNCTION count_tombstone;
DROP TABLE tombstones;
DROP INDEX ends_of_sandboxes;

CREATE INDEX ends_of_sandboxes ON sandboxes (key, owner, ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE tombstones (
    key       TEXT NOT NULL,
    server    TEXT NOT NULL,
    sandboxes INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    PRIMARY KEY (key, server)
) STRICT;

INSERT INTO tombstones SELECT key, owner, count(*), sum(bytes) FROM sandboxes WHERE ended_at IS NOT NULL GROUP BY key, owner;

CREATE FUNCTION count_tombstone(of text, on_server text, more integer, more_bytes bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO tombstones AS t VALUES (of, on_server, more, more_bytes)
    ON CONFLICT (key, server) DO UPDATE SET sandboxes = t.sandboxes + excluded.sandboxes, bytes = t.bytes + excluded.bytes;
    DELETE FROM tombstones WHERE key = of AND server = on_server AND sandboxes = 0;
$$;

CREATE FUNCTION tombstone_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ended_at IS NOT NULL THEN
        PERFORM count_tombstone(OLD.key, OLD.owner, -1, -OLD.bytes);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ended_at IS NOT NULL THEN
        PERFORM count_tombstone(NEW.key, NEW.owner, 1, NEW.bytes);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER tombstone_added AFTER INSERT ON sandboxes FOR EACH ROW
    WHEN (NEW.ended_at IS NOT NULL) EXECUTE FUNCTION tombstone_changed();

CREATE TRIGGER tombstone_changed AFTER UPDATE OF ended_at, bytes, key, owner ON sandboxes FOR EACH ROW
    WHEN ((NEW.ended_at IS NULL) <> (OLD.ended_at IS NULL) OR NEW.bytes <> OLD.bytes OR NEW.key <> OLD.key OR NEW.owner <> OLD.owner) EXECUTE FUNCTION tombstone_changed();

CREATE TRIGGER tombstone_removed AFTER DELETE ON sandboxes FOR EACH ROW
    WHEN (OLD.ended_at IS NOT NULL) EXECUTE FUNCTION tombstone_changed();
