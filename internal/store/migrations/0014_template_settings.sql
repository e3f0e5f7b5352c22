-- What API keys said last of templates, and how many creates are to come for it.

CREATE TABLE template_settings (
    key      TEXT NOT NULL, -- keys.id
    template TEXT NOT NULL, -- as the key calls it
    waiting  INTEGER NOT NULL, -- creates that are to come
    set_at   TEXT NOT NULL,
    version  INTEGER NOT NULL, -- of the form of data
    data     TEXT NOT NULL, -- JSON
    PRIMARY KEY (key, template)
) STRICT;

CREATE INDEX age_of_template_settings ON template_settings (set_at);
