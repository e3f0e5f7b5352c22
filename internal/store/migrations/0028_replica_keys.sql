-- Copies in object storage are encrypted.

ALTER TABLE replicas ADD COLUMN encryption_key BLOB; -- empty or NULL for a copy that is not
