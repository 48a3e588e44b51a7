-- The outbox, for SQLite 3.35 or later: adds a table. May be run again: what is there stays.

-- Which stream each consumer has read up to its position, and in which history; see
-- log/lua/shared/12-history.lua. Without a row it is not known.
CREATE TABLE IF NOT EXISTS headwater_histories (
    consumer TEXT NOT NULL,
    stream   TEXT NOT NULL,
    history  TEXT NOT NULL,
    PRIMARY KEY (consumer, stream)
);
