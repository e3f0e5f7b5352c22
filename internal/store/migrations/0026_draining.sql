-- A server that is drained gives what it has to others, while it lives.

ALTER TABLE servers ADD COLUMN draining INTEGER NOT NULL DEFAULT 0; -- how often that was said, or its opposite; below 0 where it is not drained
