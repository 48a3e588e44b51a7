-- What sinks of Spark have committed, version 1, for Postgres 14 or later. May be run again: what
-- is there stays.

-- One row for each of the last epochs of a producer, noted in the transaction that holds its rows.
-- "state" is what the writer wanted to find again with it. "content" is what it held: digests,
-- joined by dots. A repeat of an epoch has one of them in common; other rows under its number are
-- refused.
CREATE TABLE IF NOT EXISTS headwater_epochs (
    target       text   NOT NULL,
    producer     text   NOT NULL,
    sequence     bigint NOT NULL,
    state        text,
    content      text   NOT NULL,
    committed_ms bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    PRIMARY KEY (target, producer, sequence)
);
