-- The outbox, for Postgres 14 or later: adds a table. May be run again: what is there stays.

-- The headers of rows of headwater_outbox that have some, as one map of MessagePack. A row without
-- headers has none here.
CREATE TABLE IF NOT EXISTS headwater_outbox_headers (
    id      bigint PRIMARY KEY,
    headers bytea  NOT NULL
);
