-- What a key may do and use. Until now every key could do everything, without a
-- bound. A bound of 0 is none; a time that is NULL is never.

ALTER TABLE keys ADD COLUMN role          TEXT    NOT NULL DEFAULT 'admin';
ALTER TABLE keys ADD COLUMN max_running   INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN max_sandboxes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN max_memory    INTEGER NOT NULL DEFAULT 0; -- MiB
ALTER TABLE keys ADD COLUMN expires_at    TEXT;
ALTER TABLE keys ADD COLUMN last_used_at  TEXT;
