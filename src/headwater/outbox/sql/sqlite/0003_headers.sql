-- The outbox, for SQLite 3.35 or later: adds a table. May be run again: what is there stays.

-- The headers of rows of headwater_outbox that have some, as one map of MessagePack. A row without
-- headers has none here.
CREATE TABLE IF NOT EXISTS headwater_outbox_headers (
    id      INTEGER NOT NULL PRIMARY KEY,
    headers BLOB    NOT NULL
);
