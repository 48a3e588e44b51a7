-- The outbox, for SQLite 3.35 or later: adds a table. May be run again: what is there stays.

-- Which rows the streamer brought to which offsets, the newest 10,000 batches: by this a message is
-- traced back to its row. "ids" names the rows as "claimed" of headwater_streamer does, in the order
-- of the offsets; it is empty where that would be long. All times are by the clock of the database:
-- between which its rows were staged, and when they were claimed, by which they were committed.
CREATE TABLE IF NOT EXISTS headwater_batches (
    batch           BIGINT NOT NULL,
    stream          TEXT NOT NULL,
    producer        TEXT NOT NULL,
    first_offset    BIGINT NOT NULL,
    last_offset     BIGINT NOT NULL,
    first_id        BIGINT NOT NULL,
    last_id         BIGINT NOT NULL,
    ids             TEXT NOT NULL,
    staged_first_ms BIGINT,
    staged_last_ms  BIGINT,
    claimed_ms      BIGINT NOT NULL,
    PRIMARY KEY (batch, stream)
);
