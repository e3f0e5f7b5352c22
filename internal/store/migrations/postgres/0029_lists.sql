-- With SQLite a server has all its sandboxes in memory, and makes lists of those.

CREATE INDEX births_of_sandboxes ON sandboxes (substr(created_at, 1, 26) DESC, id);
CREATE INDEX starts_of_sandboxes ON sandboxes (substr(started_at, 1, 26) DESC, id);
CREATE INDEX births_of_keys ON sandboxes (key, substr(created_at, 1, 26) DESC, id);
CREATE INDEX starts_of_keys ON sandboxes (key, substr(started_at, 1, 26) DESC, id);
CREATE INDEX outlines_of_sandboxes ON sandboxes (key, outline);
