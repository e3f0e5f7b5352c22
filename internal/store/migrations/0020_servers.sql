-- Who writes: for each server, the process that claimed it last. Times are milliseconds
-- since 1970 by the clock of the database.

CREATE TABLE servers (
    id          TEXT PRIMARY KEY CHECK (id <> ''),
    name        TEXT NOT NULL, -- of its machine
    place       TEXT NOT NULL, -- its state directory, at one start of one machine
    epoch       INTEGER NOT NULL, -- one higher with each claim
    claim       TEXT NOT NULL, -- of the last one, random: no other has it, also where the database has lost some
    lease_until INTEGER NOT NULL,
    last_write  TEXT NOT NULL DEFAULT '' -- the transaction that wrote last, by a random name
) STRICT;
