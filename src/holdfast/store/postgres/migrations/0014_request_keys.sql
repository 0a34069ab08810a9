-- Requests that were executed, by their key, with the answer for a repeat. Old ones are removed.
CREATE TABLE {schema}.request_keys (
    key text PRIMARY KEY,
    fingerprint text NOT NULL,
    answer text NOT NULL,
    at double precision NOT NULL
);
CREATE INDEX request_keys_at ON {schema}.request_keys (at);
