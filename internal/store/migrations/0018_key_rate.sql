-- How many calls per second an API key may make. 0 is what the server allows all keys.

ALTER TABLE keys ADD COLUMN max_rate INTEGER NOT NULL DEFAULT 0;
