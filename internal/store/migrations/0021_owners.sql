-- Several servers can have their records in one database. Each row of these has an owner,
-- the server with its files; empty for none yet, until the only server claims it. Until now
-- a database had one server.

ALTER TABLE sandboxes ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE volumes ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE templates ADD COLUMN owner TEXT NOT NULL DEFAULT '';

UPDATE sandboxes SET owner = coalesce((SELECT min(id) FROM servers), '');
UPDATE snapshots SET owner = coalesce((SELECT min(id) FROM servers), '');
UPDATE volumes   SET owner = coalesce((SELECT min(id) FROM servers), '');
UPDATE templates SET owner = coalesce((SELECT min(id) FROM servers), '');

ALTER TABLE servers ADD COLUMN address TEXT NOT NULL DEFAULT ''; -- where the others reach it

-- How often records of a kind were changed, so that a server sees when its copy is old.
CREATE TABLE changes (
    kind TEXT PRIMARY KEY,
    n    INTEGER NOT NULL
) STRICT;

INSERT INTO changes (kind, n) VALUES ('keys', 0), ('ssh_keys', 0), ('used_secrets', 0), ('webhooks', 0), ('volumes', 0), ('snapshots', 0), ('templates', 0);

-- Which server does what only one may do, while its lease lasts.
CREATE TABLE offices (
    name   TEXT PRIMARY KEY,
    server TEXT NOT NULL,
    claim  TEXT NOT NULL -- the server's, as of when it got the office
) STRICT;
