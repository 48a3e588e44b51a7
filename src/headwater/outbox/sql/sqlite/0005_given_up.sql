-- The outbox, for SQLite 3.35 or later: adds a table. May be run again: what is there stays.

-- Which messages a consumer has given up, and not applied since. A row is written with the step of
-- the position over its message, and deleted with the effect of its dead letter: a letter without
-- its row was applied in another way. `created` is which stream of that name it was: one that was
-- deleted, and one that was written afterwards, have the same offsets.
CREATE TABLE IF NOT EXISTS headwater_given_up (
    consumer       TEXT NOT NULL,
    stream         TEXT NOT NULL,
    created        BIGINT NOT NULL,
    message_offset BIGINT NOT NULL,
    PRIMARY KEY (consumer, stream, created, message_offset)
);
