-- The outbox, for Postgres 14 or later: adds a table. May be run again: what is there stays.

-- Which stream each consumer has read up to its position, and in which history; see
-- log/lua/shared/12-history.lua. Without a row it is not known.
CREATE TABLE IF NOT EXISTS headwater_histories (
    consumer text NOT NULL,
    stream   text NOT NULL,
    history  text NOT NULL,
    PRIMARY KEY (consumer, stream)
);
