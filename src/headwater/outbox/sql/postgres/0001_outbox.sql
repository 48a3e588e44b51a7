-- The outbox, version 1, for Postgres 14 or later. May be run again: what is there stays.
-- Statements are separated by empty lines.

-- What transactions staged and the log does not hold yet. Ids say in which order one transaction
-- staged its rows, and nothing else: a later commit may bring a lower id. Headers are one map of
-- MessagePack, empty if there are none.
CREATE TABLE IF NOT EXISTS headwater_outbox (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream    text   NOT NULL,
    tag       text   NOT NULL,
    value     bytea  NOT NULL,
    headers   bytea  NOT NULL DEFAULT '',
    staged_ms bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
);

-- One row: the batch that is on its way to the log. Its rows are named in "claimed" as in
-- '1-1000,1007'; nothing is on its way when it is empty. (producer, batch) is what the log
-- recognises a repeat by.
CREATE TABLE IF NOT EXISTS headwater_streamer (
    name       text   PRIMARY KEY,
    producer   text   NOT NULL,
    batch      bigint NOT NULL,
    claimed    text   NOT NULL,
    claimed_ms bigint NOT NULL
);

INSERT INTO headwater_streamer (name, producer, batch, claimed, claimed_ms)
VALUES ('outbox', '', 0, '', 0)
ON CONFLICT (name) DO NOTHING;

-- How far each consumer is: the next offset it will handle, moved in the transaction that holds
-- the effects of what came before. "history" is which stream it has read up to there, and in which
-- history; see log/lua/shared/12-history.lua. It is not known when it is null.
CREATE TABLE IF NOT EXISTS headwater_checkpoints (
    consumer    text   NOT NULL,
    stream      text   NOT NULL,
    next_offset bigint NOT NULL,
    updated_ms  bigint NOT NULL,
    history     text,
    PRIMARY KEY (consumer, stream)
);

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

-- Which messages a consumer has given up, and not applied since. A row is written with the step of
-- the position over its message, and deleted with the effect of its dead letter: a letter without
-- its row was applied in another way. `created` is which stream of that name it was: one that was
-- deleted, and one that was written afterwards, have the same offsets.
CREATE TABLE IF NOT EXISTS headwater_given_up (
    consumer       text NOT NULL,
    stream         text NOT NULL,
    created        bigint NOT NULL,
    message_offset bigint NOT NULL,
    PRIMARY KEY (consumer, stream, created, message_offset)
);

-- A commit that staged something wakes the streamer; whoever stages need not think of it.
CREATE OR REPLACE FUNCTION headwater_outbox_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('headwater_outbox', '');
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER headwater_outbox_wake AFTER INSERT ON headwater_outbox
FOR EACH STATEMENT EXECUTE FUNCTION headwater_outbox_wake();
