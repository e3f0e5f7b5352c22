-- What the sandboxes of a key may take of the disk. 0 is no bound.

ALTER TABLE keys ADD COLUMN max_disk INTEGER NOT NULL DEFAULT 0; -- MiB
