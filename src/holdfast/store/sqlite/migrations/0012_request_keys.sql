-- Requests that were executed, by their key, with the answer for a repeat. Old ones are removed.
CREATE TABLE request_keys (
    key TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    answer TEXT NOT NULL,
    at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX request_keys_at ON request_keys (at);
