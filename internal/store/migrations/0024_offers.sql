-- A server can offer another one a sandbox that sleeps, which takes it by its copy.

ALTER TABLE replicas ADD COLUMN offered TEXT NOT NULL DEFAULT ''; -- to which server; empty for none
