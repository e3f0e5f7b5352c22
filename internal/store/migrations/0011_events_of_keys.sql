-- Whose sandbox an event is about, so that the events of one API key are found
-- without reading those of all.

ALTER TABLE events ADD COLUMN key TEXT NOT NULL DEFAULT ''; -- keys.id

UPDATE events SET key = coalesce((SELECT json_extract(data, '$.config.key') FROM sandboxes WHERE id = events.sandbox), '');

CREATE INDEX events_of_key ON events (key);
