-- What sinks of Spark have committed, version 1, for SQLite 3.35 or later. May be run again: what
-- is there stays.

-- One row for each of the last epochs of a producer, noted in the transaction that holds its rows.
-- "state" is what the writer wanted to find again with it. "content" is what it held: digests,
-- joined by dots. A repeat of an epoch has one of them in common; other rows under its number are
-- refused.
CREATE TABLE IF NOT EXISTS headwater_epochs (
    target       TEXT   NOT NULL,
    producer     TEXT   NOT NULL,
    sequence     BIGINT NOT NULL,
    state        TEXT,
    content      TEXT   NOT NULL,
    committed_ms BIGINT NOT NULL
                 DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    PRIMARY KEY (target, producer, sequence)
);
