-- Lists read a page from the database, and not all records. A server fills these columns when it
-- starts, for records that have none yet.

ALTER TABLE sandboxes ADD COLUMN outline    TEXT NOT NULL DEFAULT ''; -- the state, and the phase and cause of the operation in flight
ALTER TABLE sandboxes ADD COLUMN started_at TEXT NOT NULL DEFAULT '';

CREATE INDEX unlisted_sandboxes ON sandboxes (id) WHERE outline = '';
