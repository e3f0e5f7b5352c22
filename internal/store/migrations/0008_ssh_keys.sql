-- Public keys of SSH clients, each good for what an API key is good for. Several
-- API keys may have the same one.

CREATE TABLE ssh_keys (
    id         TEXT PRIMARY KEY CHECK (id <> ''),
    key        TEXT NOT NULL, -- keys.id
    name       TEXT NOT NULL,
    public_key TEXT NOT NULL, -- type and Base64, as in authorized_keys
    created_at TEXT NOT NULL,
    UNIQUE (key, public_key)
) STRICT;
