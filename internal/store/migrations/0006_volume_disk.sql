-- What a volume may take of the disk. 0 says nothing: then the server's own limit
-- for volumes holds.

ALTER TABLE volumes ADD COLUMN disk INTEGER NOT NULL DEFAULT 0; -- MiB
