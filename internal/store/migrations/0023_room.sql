-- What each server has for more sandboxes, as it said last.

ALTER TABLE servers ADD COLUMN room TEXT NOT NULL DEFAULT ''; -- JSON; empty for one that has not said yet
