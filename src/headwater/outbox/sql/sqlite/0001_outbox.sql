-- The outbox, version 1, for SQLite 3.35 or later. May be run again: what is there stays.
-- Statements are separated by empty lines. The file should be in WAL mode, so that staging does
-- not wait for readers; that cannot be set in a transaction: PRAGMA journal_mode = WAL

-- What transactions staged and the log does not hold yet. Ids say in which order one transaction
-- staged its rows, and nothing else.
CREATE TABLE IF NOT EXISTS headwater_outbox (
    id        INTEGER NOT NULL PRIMARY KEY,
    stream    TEXT    NOT NULL,
    tag       TEXT    NOT NULL,
    value     BLOB    NOT NULL CHECK (typeof(value) = 'blob'),
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
-- the effects of what came before.
CREATE TABLE IF NOT EXISTS headwater_checkpoints (
    consumer    TEXT   NOT NULL,
    stream      TEXT   NOT NULL,
    next_offset BIGINT NOT NULL,
    updated_ms  BIGINT NOT NULL,
    PRIMARY KEY (consumer, stream)
);
