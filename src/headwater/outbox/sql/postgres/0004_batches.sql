-- The outbox, for Postgres 14 or later: adds a table. May be run again: what is there stays.

-- Which rows the streamer brought to which offsets, the newest 10,000 batches: by this a message is
-- traced back to its row. "ids" names the rows as "claimed" of headwater_streamer does, in the order
-- of the offsets; it is empty where that would be long. All times are by the clock of the database:
-- between which its rows were staged, and when they were claimed, by which they were committed.
CREATE TABLE IF NOT EXISTS headwater_batches (
    batch           bigint NOT NULL,
    stream          text NOT NULL,
    producer        text NOT NULL,
    first_offset    bigint NOT NULL,
    last_offset     bigint NOT NULL,
    first_id        bigint NOT NULL,
    last_id         bigint NOT NULL,
    ids             text NOT NULL,
    staged_first_ms bigint,
    staged_last_ms  bigint,
    claimed_ms      bigint NOT NULL,
    PRIMARY KEY (batch, stream)
);
