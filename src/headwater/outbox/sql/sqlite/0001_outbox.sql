-- The outbox, version 1, for SQLite 3.35 or later. May be run again: what is there stays.
-- Statements are separated by empty lines. The file should be in WAL mode, so that staging does
-- not wait for readers; that cannot be set in a transaction: PRAGMA journal_mode = WAL

-- What transactions staged and the log does not hold yet. Ids say in which order one transaction
-- staged its rows, and nothing else. Headers are one map of MessagePack, empty if there are none.
CREATE TABLE IF NOT EXISTS headwater_outbox (
    id        INTEGER NOT NULL PRIMARY KEY,
    stream    TEXT    NOT NULL,
    tag       TEXT    NOT NULL,
    value     BLOB    NOT NULL CHECK (typeof(value) = 'blob'),
    headers   BLOB    NOT NULL DEFAULT x'',
    staged_ms BIGINT  NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
);

-- One row: the batch that is on its way to the log. Its rows are named in "claimed" as in
-- '1-1000,1007'; nothing is on its way when it is empty. (producer, batch) is what the log
-- recognises a repeat by.
CREATE TABLE IF NOT EXISTS headwater_streamer (
    name       TEXT   NOT NULL PRIMARY KEY,
    producer   TEXT   NOT NULL,
    batch      BIGINT NOT NULL,
    claimed    TEXT   NOT NULL,
    claimed_ms BIGINT NOT NULL
);

INSERT INTO headwater_streamer (name, producer, batch, claimed, claimed_ms)
VALUES ('outbox', '', 0, '', 0)
ON CONFLICT (name) DO NOTHING;

-- How far each consumer is: the next offset it will handle, moved in the transaction that holds
-- the effects of what came before. "history" is which stream it has read up to there, and in which
-- history; see log/lua/shared/12-history.lua. It is not known when it is null.
CREATE TABLE IF NOT EXISTS headwater_checkpoints (
    consumer    TEXT   NOT NULL,
    stream      TEXT   NOT NULL,
    next_offset BIGINT NOT NULL,
    updated_ms  BIGINT NOT NULL,
    history     TEXT,
    PRIMARY KEY (consumer, stream)
);

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
